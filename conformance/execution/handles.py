"""Handles of arrays in a kernel's process, and the values of its replies: what a kernel raised there is raised here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from conformance.execution.process import Crash, Process
from conformance.execution.status import KernelFailure
from conformance.implementations import implementation as declared
from conformance.implementations.devices import Unavailable
from conformance.worker import wire

T = TypeVar("T")


class Raised(Exception):
    """What a kernel raised; a class of the same name is made for each. `traceback` is the part in the kernel."""

    blame = traceback = ""


class Exited(BaseException):
    """The same for what is no Exception, such as SystemExit."""

    blame = traceback = ""


class Handle:
    """An array in a kernel's process; freed there when nobody holds it here."""

    __slots__ = ("__weakref__", "number", "process")

    def __init__(self, process: Process, number: int) -> None:
        self.process, self.number = process, number

    def __del__(self) -> None:
        self.process.dropped.append(self.number)


def asked(process: Process, expected: type[T], name: str, *given: Any) -> T:
    """The value of an operation. Raises what the kernel raised, KernelFailure for a finding, Crash."""
    return value(process, process.ask(name, *given), expected)


def value(process: Process, reply: wire.Reply, expected: type[T]) -> T:
    """The value of a reply; raises the same."""
    if reply.findings:
        raise KernelFailure("\n".join(reply.findings))
    if reply.failure is not None:
        raise _raised(reply.failure)
    try:
        return msgspec.convert(reply.value, expected)
    except msgspec.ValidationError as error:
        process.end(f"crashed: its process sent what is no answer ({error})")
        raise Crash(process.ended) from None


def _raised(failure: wire.Failure) -> BaseException:
    if failure.kind == "unsupported":
        return declared.Unsupported(failure.message)
    if failure.kind == "unavailable":
        return Unavailable(failure.message)
    if failure.kind == "failure":
        return KernelFailure(failure.message)
    if failure.kind == "declaration":
        return declared.ImplementationError(failure.message)
    base = Exited if failure.kind == "exit" else Raised
    error: Raised | Exited = type(failure.name, (base,), {})(failure.message)
    error.blame, error.traceback = failure.blame, failure.traceback
    return error


def received(process: Process, returned: wire.Returned, first: int) -> Any:
    """Handles of what was returned; those that are beyond what is looked at are None."""
    if returned.count is None:
        return Handle(process, first)
    count = min(returned.count, 1 << 20)
    handles = [Handle(process, first + place) for place in range(min(count, wire.MAX_RESULTS))]
    items = (*handles, *[None] * (count - len(handles)))
    if not returned.computes:
        return items
    computing = type("computing", (tuple,), {"__iter__": lambda self: tuple.__iter__(self)})
    computing.__qualname__ = returned.computes
    return computing(items)


def numbers(handles: Sequence[Any]) -> list[int | None]:
    """What the process knows arrays by; None stands for an absent one."""
    return [None if one is None else require_handle(one).number for one in handles]


def named(value: Any) -> Any:
    """A parameter with arrays as the process knows them."""
    if isinstance(value, tuple):
        return tuple(map(named, value))
    return wire.Array(value.number) if isinstance(value, Handle) else value


def require_handle(array: Any) -> Handle:
    if not isinstance(array, Handle):
        raise TypeError(f"returned more than {wire.MAX_RESULTS} results")
    return array
