"""The bridge between host tensors and what an implementation's kernels take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np


class ArrayBridge(Protocol):
    """Moves tensors between the host and one framework's device. Construction imports no framework."""

    @property
    def name(self) -> str:
        """The framework's name."""
        ...

    def unavailable(self) -> str:
        """Why the framework or its device cannot be used here; empty if it can."""
        ...

    def from_host(self, array: np.ndarray) -> Any:
        """A fresh copy of a C-contiguous host array (storage dtypes of `conformance.dtypes`, or bytes), on the
        device."""
        ...

    def to_host(self, array: Any) -> np.ndarray:
        """A plain NumPy copy of a result; raises TypeError for what is not the framework's own array."""
        ...

    def synchronize(self, result: Any) -> None:
        """Return when `result` is computed and all work submitted to the device has finished."""
        ...

    def view(self, array: Any, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Any | None:
        """A view into a 1-D array, offset and strides in elements; None where the framework has no views."""
        ...

    def overwrite(self, array: Any, host: np.ndarray) -> bool:
        """Give an array other values in the memory that it has; False where its memory never changes."""
        ...

    def overlap(self, first: Any, second: Any) -> bool:
        """Whether writing to one array could change the other."""
        ...

    def stopwatch(self, call: Callable[[], Any]) -> tuple[float, float] | None:
        """Seconds of a call between events on the stream it is made on, and until the whole device is idle.

        None where work has no streams to hide on.
        """
        ...

    def describe(self) -> dict[str, str]:
        """Versions and device name, for the records."""
        ...


def refuse(array: Any, expected: str) -> TypeError:
    """The error of a result that is not an array of the framework."""
    kind = type(array)
    return TypeError(f"returned {kind.__module__}.{kind.__qualname__}; expected {expected}")
