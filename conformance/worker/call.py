"""Calls between processes: a function of the suite runs where a kernel's arrays are, here or in another process.

Such a function is given the bridge, kernels and arrays of that process. In the judge, other objects stand for these
(`conformance.execution.remote`), and the answer has the type that the function is annotated with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from conformance.failure import Failure
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.bridges.tape import Footprint, Saved
from conformance.implementations.errors import KernelFailure
from conformance.worker.wire import plain

MAX_INPUTS = 1 << 28
"""Most bytes of the inputs of a call that are checked for changes: a copy of them is kept."""


class Result:
    """The result of a kernel, or another object that stays in its process: there `value` is the object itself, in the
    judge handles of its arrays."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Change(Struct, frozen=True, array_like=True):
    """A change that a call has made to its inputs, and how it showed, with sizes."""

    what: str
    how: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.how}" if self.how else self.what


class Audited(Struct, frozen=True):
    """A finished call: its result; its changes of inputs; its work, where a bridge counts what a device would move and
    issue; and the number of kernels that it has launched, where that is counted."""

    result: Result
    changed: tuple[Change, ...] = ()
    work: dict[str, int] = {}
    launches: int | None = None


class Taped(Struct, frozen=True):
    """A recorded call: its result, the buffers that are kept for its backward, and the backward function."""

    result: Result
    saved: tuple[Saved, ...]
    pull: Result


def is_several(result: Any) -> bool:
    """Return whether a result is several results. An array that was made a list is one, of the wrong type."""
    array = type(result) is list and {*map(type, result)} <= {list, int, float}
    return isinstance(result, (tuple, list)) and not array


def started(function: Callable[..., Any], arguments: Sequence[Any], parameters: Mapping[str, Any]) -> Result:
    """Make a call, and return its result whether the device has finished or not."""
    return Result(function(*arguments, **parameters))


def audited(
    bridge: ArrayBridge,
    function: Callable[..., Any],
    names: Sequence[str],
    arguments: Sequence[Any],
    parameters: Mapping[str, Any],
) -> Audited:
    """Make a call, wait for its end, and check what it must leave alone: its inputs, and their memory, where no result
    may lie.

    Earlier calls are left out of this, so that the verdict on a case is the same when it is run alone.
    """
    present = [(name, array) for name, array in zip(names, arguments, strict=False) if array is not None]
    hosts = [bridge.to_host(array) for _, array in present]
    before = [host.copy() for host in hosts] if sum(host.nbytes for host in hosts) <= MAX_INPUTS else []
    del hosts
    launched = bridge.launches
    with bridge.metered() as counted:
        result = function(*arguments, **parameters)
        bridge.synchronize(result)
    launches = None if launched is None else int(bridge.launches or 0) - int(launched)
    changed: list[Change] = []
    for (name, array), copy in zip(present, before, strict=False):
        try:
            now = bridge.to_host(array)
        except Exception as error:  # as jax does for a buffer that was donated
            changed.append(Change(f"input {name} cannot be read any more", plain(str(error))))
            continue
        if difference := differing(copy, now):
            changed.append(Change(f"input {name} was written to", difference))
    try:
        arrays = [*result] if type(result) in (tuple, list) else [result]
        shared = [name for name, array in present if any(bridge.overlap(output, array) for output in arrays)]
        changed += [Change(f"a result lies in the memory of input {name}") for name in shared]
    except Exception:  # the results are no arrays: `fetched` says so
        pass
    work = {plain(str(name)): int(count) for name, count in counted.items()}
    return Audited(Result(result), tuple(changed), work, launches)


def differing(before: np.ndarray, after: np.ndarray) -> str:
    """Return which bytes of an array have changed, in words; empty where none has."""
    first, second = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (before, after))
    if np.array_equal(first, second):
        return ""
    changed = np.flatnonzero(first != second)
    return f"{changed.size:,} bytes changed, first at [{changed[0] // before.itemsize}]"


def fetched(bridge: ArrayBridge, arrays: Sequence[Any]) -> list[np.ndarray]:
    """Copy arrays to the host. Raises KernelFailure for any other object than the framework's own array."""
    try:
        return [np.asanyarray(bridge.to_host(array)) for array in arrays]
    except TypeError as error:
        raise KernelFailure(str(error), Failure(kind="malformed", message=str(error))) from None


def differentiated(
    bridge: ArrayBridge,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    places: Sequence[int],
    parameters: dict[str, Any],
) -> Taped:
    """Record a call of an autograd variant."""
    tape = bridge.differentiate(function, arguments, places, parameters)
    return Taped(Result(tape.result), tape.saved, Result(tape.pull))


def footprint(
    bridge: ArrayBridge, function: Callable[..., Any], arguments: int, parameters: dict[str, Any], batch: int
) -> Footprint:
    """Measure the memory of a training step with an autograd variant."""
    return bridge.footprint(function, arguments, parameters, batch)


def switched(
    bridge: Any, function: Callable[..., Any], arguments: Sequence[Any], parameters: Mapping[str, Any]
) -> list[str]:
    """Return, in words, what a call of a torch module and the import of its file change in the whole process."""
    changes: list[str] = bridge.switched(lambda: function(*arguments, **parameters))
    return [plain(change) for change in changes]


def ask(bridge: Any, method: str, *arguments: Any) -> bool:
    """Return the answer, yes or no, of a method of a bridge."""
    return bool(getattr(bridge, method)(*arguments))


def described(bridge: ArrayBridge) -> dict[str, str]:
    """Return a bridge's description of itself. Raises Unavailable."""
    bridge.require()
    return {plain(str(key)): plain(str(value)) for key, value in bridge.describe().items()}
