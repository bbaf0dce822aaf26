"""What a call must leave alone, looked at in every call: its inputs, and the results of the calls before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from conformance.implementations.bridges import ArrayBridge

HELD = 3
"""Results that are held while a kernel is called again."""
MAX_INPUTS, MAX_RESULTS = 1 << 28, 1 << 24
"""Bytes of the inputs of a call that are looked at, and of the results of one that are held: a copy of them is kept."""


class Audit:
    """Of the calls of one process."""

    def __init__(self) -> None:
        self._held: dict[Hashable, deque[tuple[list[Any], list[np.ndarray]]]] = {}

    def call(
        self,
        bridge: ArrayBridge,
        function: Callable[..., Any],
        names: Sequence[str],
        given: Sequence[Any],
        parameters: Mapping[str, Any],
    ) -> tuple[Any, tuple[str, ...]]:
        """What the function returns, finished, and what it has changed or returned twice."""
        present = [(name, array) for name, array in zip(names, given, strict=False) if array is not None]
        before = _copies(bridge, [array for _, array in present], MAX_INPUTS)
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
        held = self._held.setdefault(function, deque(maxlen=HELD))
        known = [(f"input {name}", array) for name, array in present]
        for ago, (arrays, copies) in enumerate(reversed(held), 1):
            what = f"a result of {'the call before' if ago == 1 else f'{ago} calls before'}"
            known += [(f"{what}, of shape {copy.shape}", array) for array, copy in zip(arrays, copies, strict=True)]
            for array, copy in zip(arrays, copies, strict=True):
                if difference := differing(copy, bridge.to_host(array)):
                    changed.append(f"{what}, of shape {copy.shape}, was written to: {difference}")
        arrays = [*result] if type(result) in (tuple, list) else [result]
        try:
            copies = _copies(bridge, arrays, MAX_RESULTS)
            changed += [f"a result lies in the memory of {n}" for n, a in known for r in arrays if bridge.overlap(r, a)]
        except Exception:  # no arrays: whoever fetches the results says so
            copies = []
        if changed:
            held.clear()
        if copies:
            held.append((arrays, copies))
        return result, tuple(changed)


def _copies(bridge: ArrayBridge, arrays: Sequence[Any], most: int) -> list[np.ndarray]:
    """Arrays as they are now; none where that takes too much memory."""
    hosts = [bridge.to_host(array) for array in arrays]
    return [host.copy() for host in hosts] if sum(host.nbytes for host in hosts) <= most else []


def differing(before: np.ndarray, after: np.ndarray) -> str:
    """Which bytes of an array are others now, in words; empty where none is."""
    first, second = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (before, after))
    if np.array_equal(first, second):
        return ""
    changed = np.flatnonzero(first != second)
    return f"{changed.size:,} bytes changed, first at [{changed[0] // before.itemsize}]"


AUDIT = Audit()
"""Of this process."""
