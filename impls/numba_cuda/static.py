"""Helpers that let the compiler keep a thread's arrays in registers and compute indexes at compile time.

A local array is in registers only if every index is a constant, which NVVM finds out too late where loops are long (for
compute capability 10.0 always): so loops are written out before NVVM sees them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .storage import inline
from .target import SIMULATED


@inline
def natural(number: int) -> int:
    """Return an index that is not negative: for any other type numba tests whether to count from the end."""
    return np.uint64(number)


@inline
def divide(number: int, size: int) -> tuple[int, int]:
    """Return divmod of natural numbers below 2^32: in 64 bits a division is dozens of instructions."""
    quotient = np.int64(np.uint32(number) // np.uint32(size))
    return quotient, number - quotient * size


if SIMULATED:  # plain numbers: mixed integer types of NumPy would give a float
    natural, divide = int, divmod


def unrolled(count: int, body: Callable[..., None]) -> Callable[..., None]:
    """Return `for number in range(count): body(number, *arguments)`, written out with constants, as a device
    function."""
    if SIMULATED:

        def counted(*arguments: Any) -> None:
            for number in range(count):
                body(number, *arguments)

        return counted
    return _written_out(0, count, body)


def _written_out(first: int, end: int, body: Callable[..., None]) -> Callable[..., None]:
    """Write out from `first` up to `end`, by halves: one level for each number exceeds the compiler's recursion
    limit."""
    middle, last = (first + end) // 2, end - 1
    if end - first <= 2:

        @inline
        def single(*arguments: Any) -> None:
            body(first, *arguments)

        @inline
        def two(*arguments: Any) -> None:
            body(first, *arguments)
            body(last, *arguments)

        return single if first == last else two
    before, after = _written_out(first, middle, body), _written_out(middle, end, body)

    @inline
    def all_of_them(*arguments: Any) -> None:
        before(*arguments)
        after(*arguments)

    return all_of_them
