"""One call across the process: a function of the suite runs where a kernel's arrays are, here or in another process.

Such a function is given a bridge, kernels and arrays as they are there. Who asks for it in the judge has what stands
for them (`conformance.execution.remote`), and gets its answer in the type that it is annotated with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ParamSpec, TypeVar

import numpy as np
from msgspec import Struct

from conformance.failure import Failure
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.bridges.tape import Footprint, Saved
from conformance.implementations.errors import KernelFailure
from conformance.worker.wire import plain

P = ParamSpec("P")
T = TypeVar("T")
MAX_INPUTS = 1 << 28
"""Bytes of the inputs of a call that are looked at: a copy of them is kept."""


def perform(bridge: ArrayBridge, routine: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """What a function returns where the bridge's arrays are."""
    elsewhere = getattr(bridge, "perform", None)
    found: T = routine(*given, **named) if elsewhere is None else elsewhere(routine, *given, **named)
    return found


class Result:
    """What a kernel has returned, or another object that stays in its process: there the object itself, and in the
    judge handles of its arrays."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Change(Struct, frozen=True, array_like=True):
    """What a call has done to its inputs, and how that showed, with sizes."""

    what: str
    how: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.how}" if self.how else self.what


class Audited(Struct, frozen=True):
    """What a call returned, finished; what it has done to its inputs; its work, where a bridge counts what a
    device would move and issue; and how many kernels it has launched, where that is counted."""

    result: Result
    changed: tuple[Change, ...] = ()
    work: dict[str, int] = {}
    launches: int | None = None


class Taped(Struct, frozen=True):
    """A call that was recorded, what is kept for its backward, and the function that this is."""

    result: Result
    saved: tuple[Saved, ...]
    pull: Result


def is_several(result: Any) -> bool:
    """Whether these are several results. An array that was made a list is one, of the wrong type."""
    array = type(result) is list and {*map(type, result)} <= {list, int, float}
    return isinstance(result, (tuple, list)) and not array


def started(function: Callable[..., Any], given: Sequence[Any], parameters: Mapping[str, Any]) -> Result:
    """A call, whether the device has finished or not."""
    return Result(function(*given, **parameters))


def audited(
    bridge: ArrayBridge,
    function: Callable[..., Any],
    names: Sequence[str],
    given: Sequence[Any],
    parameters: Mapping[str, Any],
) -> Audited:
    """A finished call, and what it must leave alone: its inputs, and their memory, where no result may lie.

    Earlier calls are left out of it, so that the verdict on a case is the same when it is run alone.
    """
    present = [(name, array) for name, array in zip(names, given, strict=False) if array is not None]
    hosts = [bridge.to_host(array) for _, array in present]
    before = [host.copy() for host in hosts] if sum(host.nbytes for host in hosts) <= MAX_INPUTS else []
    del hosts
    # an emulator counts exactly what a device would move and issue, which tells more than its time on a CPU
    launched = getattr(bridge, "launches", None)
    with getattr(bridge, "metered", nullcontext)() as counted:
        result = function(*given, **parameters)
        bridge.synchronize(result)
    launches = None if launched is None else int(getattr(bridge, "launches", launched)) - int(launched)
    changed: list[Change] = []
    for (name, array), copy in zip(present, before, strict=False):
        try:
            now = bridge.to_host(array)
        except Exception as error:  # jax says so of a buffer that was donated
            changed.append(Change(f"input {name} cannot be read any more", plain(str(error))))
            continue
        if difference := differing(copy, now):
            changed.append(Change(f"input {name} was written to", difference))
    try:
        arrays = [*result] if type(result) in (tuple, list) else [result]
        shared = [name for name, array in present if any(bridge.overlap(one, array) for one in arrays)]
        changed += [Change(f"a result lies in the memory of input {name}") for name in shared]
    except Exception:  # no arrays: whoever fetches the results says so
        pass
    work = {plain(str(name)): int(count) for name, count in (counted or {}).items()}
    return Audited(Result(result), tuple(changed), work, launches)


def differing(before: np.ndarray, after: np.ndarray) -> str:
    """Which bytes of an array are others now, in words; empty where none is."""
    first, second = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (before, after))
    if np.array_equal(first, second):
        return ""
    changed = np.flatnonzero(first != second)
    return f"{changed.size:,} bytes changed, first at [{changed[0] // before.itemsize}]"


def fetched(bridge: ArrayBridge, arrays: Sequence[Any]) -> list[np.ndarray]:
    """Arrays on the host. Raises KernelFailure for what is not the framework's own array."""
    try:
        return [np.asanyarray(bridge.to_host(array)) for array in arrays]
    except TypeError as error:
        raise KernelFailure(str(error), Failure(kind="malformed", message=str(error))) from None


def differentiated(
    bridge: Any, function: Callable[..., Any], given: Sequence[Any], wanted: Sequence[int], parameters: dict[str, Any]
) -> Taped:
    """An autograd variant's call."""
    tape = bridge.differentiate(function, given, wanted, parameters)
    return Taped(Result(tape.result), tape.saved, Result(tape.pull))


def footprint(
    bridge: Any, function: Callable[..., Any], arguments: int, parameters: dict[str, Any], batch: int
) -> Footprint:
    """Of a training step with an autograd variant."""
    found: Footprint = bridge.footprint(function, arguments, parameters, batch)
    return found


def switched(
    bridge: Any, function: Callable[..., Any], given: Sequence[Any], parameters: Mapping[str, Any]
) -> list[str]:
    """Return, in words, what a call of a torch module and the import of its file change in the whole process."""
    found: list[str] = bridge.switched(lambda: function(*given, **parameters))
    return [plain(change) for change in found]


def asked(bridge: Any, method: str, *given: Any) -> bool:
    """What a method of a bridge answers by yes or no."""
    return bool(getattr(bridge, method)(*given))


def described(bridge: ArrayBridge) -> dict[str, str]:
    """What a bridge says of itself. Raises Unavailable."""
    bridge.require()
    return {plain(str(key)): plain(str(value)) for key, value in bridge.describe().items()}
