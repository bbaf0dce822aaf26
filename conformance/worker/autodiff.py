"""Operations that go through a framework's autodiff, for `Server.perform`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from conformance.implementations.bridges.tape import Footprint, Saved
from conformance.worker import wire

if TYPE_CHECKING:
    from conformance.worker.serve import Server


class Taped(Struct, frozen=True):
    """A call that was recorded."""

    returned: wire.Returned
    saved: tuple[Saved, ...]


def differentiate(
    server: Server,
    name: str,
    index: int,
    arguments: Sequence[int | None],
    wanted: Sequence[int],
    parameters: dict[str, Any],
    number: int,
    first: int,
) -> Taped:
    """An autograd variant's call. The tape gets a number like an array, its results those from `first` on."""
    bridge: Any = server.known[name].arrays
    function = server.function(name, "variant", index)
    tape = server.arrays[number] = bridge.differentiate(function, server.given(arguments), wanted, parameters)
    return Taped(server.keep(tape.result, first), tape.saved)


def pull(server: Server, name: str, number: int, gradient: int, first: int) -> wire.Returned:
    """The gradients of a tape."""
    return server.keep(server.arrays[number].pull(server.arrays[gradient]), first)


def footprint(
    server: Server, name: str, index: int, arguments: int, parameters: dict[str, Any], batch: int
) -> Footprint:
    bridge: Any = server.known[name].arrays
    found: Footprint = bridge.footprint(server.function(name, "variant", index), arguments, parameters, batch)
    return found
