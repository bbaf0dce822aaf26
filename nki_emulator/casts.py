"""A storage seen as elements of another size. Page: "nki.language.NkiTensor" on `view`, Neuron SDK 2.32."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .dtypes import DType
from .errors import refuse
from .indexing import Ints
from .storage import Coverage, Storage


class _CastCoverage(Coverage):
    """What is written of the elements, as far as whole elements of the storage behind are."""

    __slots__ = ("_parent",)

    def __init__(self, parent: Coverage, size: int) -> None:
        self._parent, self.size = parent, size

    @property
    def everywhere(self) -> bool:  # type: ignore[override]
        return self._parent.everywhere

    @property
    def flags(self) -> np.ndarray | None:  # type: ignore[override]
        flags = self._parent.flags
        if flags is None:
            return None
        return _repeated(flags, self.size)

    def mark(self, shape: Ints, strides: Ints, offset: int, whole: bool, value: bool) -> None:
        if whole:
            self._parent.mark(shape, strides, offset, True, value)
            return
        before = self.flags
        flags = np.full(self.size, self.everywhere) if before is None else before
        np.ndarray(shape, np.bool_, flags, offset, strides)[...] = value
        self._parent.flags, self._parent.everywhere = _repeated(flags, self._parent.size), False

    def count(self, shape: Ints, strides: Ints, offset: int) -> int:
        if self.everywhere:
            return prod(shape)
        flags = self.flags
        return 0 if flags is None else int(np.count_nonzero(np.ndarray(shape, np.bool_, flags, offset, strides)))


def _repeated(flags: np.ndarray, size: int) -> np.ndarray:
    """One flag for each of `size` elements: that of the element which holds it, or of all that it holds."""
    if flags.size < size:
        return np.repeat(flags, size // flags.size)
    return np.asarray(flags.reshape(size, -1).all(axis=1))


class CastStorage(Storage):
    """The bytes of another storage as elements of another type; the last dimension is longer or shorter."""

    __slots__ = ("_parent",)

    def __init__(self, parent: Storage, dtype: DType) -> None:
        before, after = parent.dtype.itemsize, dtype.itemsize
        if parent.shape[-1] * before % after:
            refuse("reshape", f"{parent}: its last dimension of {parent.shape[-1]} is no whole number of {dtype}")
        self._parent = parent
        self.machine, self.region, self.name, self.dtype = parent.machine, parent.region, parent.name, dtype
        self.partition, self.source = parent.partition, parent.source
        self._banks = self._bytes = self._hbm = 0
        self.shape = (*parent.shape[:-1], parent.shape[-1] * before // after)
        self.size, self.free = prod(self.shape), prod(self.shape[1:])
        self.data = parent.data.view(dtype.host)
        self.written = _CastCoverage(parent.written, self.size)
        self.started = None if parent.started is None else _CastCoverage(parent.started, self.size)

    @property
    def modified(self) -> bool:
        return self._parent.modified

    @modified.setter
    def modified(self, value: Any) -> None:
        self._parent.modified = value
