"""What a call must leave alone, looked at in every call: its inputs, and their memory, where no result may lie.

Earlier calls are left out of it, so that the verdict on a case is the same when it is run alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from conformance.implementations.bridges import ArrayBridge

MAX_INPUTS = 1 << 28
"""Bytes of the inputs of a call that are looked at: a copy of them is kept."""


def audited(
    bridge: ArrayBridge,
    function: Callable[..., Any],
    names: Sequence[str],
    given: Sequence[Any],
    parameters: Mapping[str, Any],
) -> tuple[Any, tuple[str, ...]]:
    """What the function returns, finished, and what it has done to its inputs, in words."""
    present = [(name, array) for name, array in zip(names, given, strict=False) if array is not None]
    hosts = [bridge.to_host(array) for _, array in present]
    before = [host.copy() for host in hosts] if sum(host.nbytes for host in hosts) <= MAX_INPUTS else []
    del hosts
    result = function(*given, **parameters)
    bridge.synchronize(result)
    changed = []
    for (name, array), copy in zip(present, before, strict=False):
        try:
            now = bridge.to_host(array)
        except Exception as error:  # jax says so of a buffer that was donated
            changed.append(f"input {name} cannot be read any more: {error}")
            continue
        if difference := differing(copy, now):
            changed.append(f"input {name} was written to: {difference}")
    try:
        arrays = [*result] if type(result) in (tuple, list) else [result]
        shared = [name for name, array in present if any(bridge.overlap(one, array) for one in arrays)]
        changed += [f"a result lies in the memory of input {name}" for name in shared]
    except Exception:  # no arrays: whoever fetches the results says so
        pass
    return result, tuple(changed)


def differing(before: np.ndarray, after: np.ndarray) -> str:
    """Which bytes of an array are others now, in words; empty where none is."""
    first, second = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (before, after))
    if np.array_equal(first, second):
        return ""
    changed = np.flatnonzero(first != second)
    return f"{changed.size:,} bytes changed, first at [{changed[0] // before.itemsize}]"
