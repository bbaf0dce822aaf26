"""NumPy arrays; bf16 and fp8 are those of ml_dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.implementations.bridges.base import ArrayBridge, beside_guard_page, refuse
from conformance.zeros import copied

_VERSION = np.__version__
"""As it is before a kernel's file can give NumPy another one."""


@dataclass(frozen=True, slots=True)
class NumpyArrays(ArrayBridge):
    """Host arrays as they are."""

    name: str = "numpy"

    def require(self) -> None:
        """Return at once: NumPy is always here."""

    def from_host(self, array: np.ndarray) -> np.ndarray:
        """Return a copy, so that a kernel that writes to its inputs changes nobody else's."""
        return copied(array)

    def to_host(self, array: Any) -> np.ndarray:
        """Return the array itself; a subclass is refused, since it may compute when it is compared."""
        if type(array) is not np.ndarray:
            raise refuse(array, "numpy.ndarray")
        return array

    def synchronize(self, result: Any) -> None:
        """Return at once: nothing is asynchronous."""

    def view(self, array: Any, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Any | None:
        steps = [stride * array.itemsize for stride in strides]
        # the view's base is the whole array, as a slice's is; for bf16 and fp8 NumPy has no buffers
        whole = array.view(np.uint8) if array.dtype.isbuiltin == 2 else array
        return np.ndarray(shape, array.dtype, whole, offset * array.itemsize, steps)

    @property
    def negative_strides(self) -> bool:
        return True

    def placed(self, array: np.ndarray, side: str) -> Any | None:
        return beside_guard_page(array, side)

    def overwrite(self, array: Any, host: np.ndarray) -> bool:
        """Overwrite the values of an array; return False where it is read-only."""
        if array.flags.writeable:
            array[...] = host
        return bool(array.flags.writeable)

    def overlap(self, first: Any, second: Any) -> bool:
        """Return whether two arrays share an element: views of one buffer may interleave without that."""
        return np.shares_memory(first, second)

    def describe(self) -> dict[str, str]:
        return {"numpy": _VERSION}


def numpy_arrays() -> NumpyArrays:
    """Return the bridge for kernels that take and return NumPy arrays."""
    return NumpyArrays()
