"""Memory behind tensors, and which of its elements hold anything."""

from __future__ import annotations

from enum import Enum
from math import prod

import numpy as np

from .dtypes import DType
from .errors import refuse
from .machine import Machine
from .targets import BANK, PARTITIONS


class Region(Enum):
    """Memories: nki.language.sbuf and so on, Neuron SDK 2.32."""

    sbuf = "sbuf"
    psum = "psum"
    hbm = "hbm"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    @property
    def on_chip(self) -> bool:
        """Whether dimension 0 is the partition."""
        return self in _ON_CHIP


_ON_CHIP = frozenset({Region.sbuf, Region.psum})


class Coverage:
    """A property of each element of a storage; `everywhere` answers for all of them without looking."""

    __slots__ = ("everywhere", "flags", "size")

    def __init__(self, size: int, everywhere: bool) -> None:
        self.size, self.everywhere = size, everywhere
        self.flags: np.ndarray | None = None

    def _view(self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> np.ndarray:
        if self.flags is None:
            self.flags = np.full(self.size, self.everywhere)
        return np.ndarray(shape, np.bool_, self.flags, offset, strides)

    def mark(self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, whole: bool, value: bool) -> None:
        """Set it for the elements of a view (strides in elements); `whole` says that these are all there are."""
        if whole:
            self.flags, self.everywhere = None, value
        elif value and self.everywhere:
            return
        elif value or self.everywhere or self.flags is not None:
            self._view(shape, strides, offset)[...] = value
            self.everywhere = False

    def count(self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> int:
        """In how many elements of a view it holds."""
        if self.everywhere:
            return prod(shape)
        if self.flags is None:
            return 0
        found = int(np.count_nonzero(np.ndarray(shape, np.bool_, self.flags, offset, strides)))
        if found == self.size and self.flags.all():
            self.flags, self.everywhere = None, True
        return found


class Storage:
    """A buffer of one memory. What it takes of SBUF or PSUM is given back when no tensor refers to it any more."""

    __slots__ = ("_banks", "_bytes", "data", "dtype", "free", "is_input", "machine", "name", "region", "shape", "size")
    __slots__ += ("started", "written")

    def __init__(self, machine: Machine, shape: tuple[int, ...], dtype: DType, region: Region, name: str) -> None:
        self.machine, self.shape, self.dtype, self.region, self.name = machine, shape, dtype, region, name
        self.size = prod(shape)
        self._banks = self._bytes = 0
        self.is_input = False
        self.free = prod(shape[1:])
        if region.on_chip:
            self._reserve()
        self.data = np.empty(self.size, dtype.held)
        self.written = Coverage(self.size, False)
        self.started = Coverage(self.size, False) if region is Region.psum else None

    def _reserve(self) -> None:
        if self.shape[0] > PARTITIONS:
            refuse("partition-limit", f"{self} has {self.shape[0]} partitions; there are {PARTITIONS}")
        size = self.free * self.dtype.itemsize
        if self.region is Region.sbuf:
            self._bytes = size
            self.machine.reserve_sbuf(size)
        else:
            self._banks = -(-size // BANK)
            self.machine.reserve_banks(self._banks)

    def __del__(self) -> None:
        self.machine.sbuf -= self._bytes
        self.machine.banks -= self._banks

    def __str__(self) -> str:
        return f"{self.name or 'tensor'}{list(self.shape)} in {self.region.value}"

    @classmethod
    def of_input(cls, machine: Machine, array: np.ndarray, dtype: DType, name: str) -> Storage:
        """Memory of an argument, which a kernel may read only."""
        self = cls.__new__(cls)
        self.machine, self.shape, self.dtype, self.region = machine, array.shape, dtype, Region.hbm
        self.name, self.size, self._banks, self._bytes, self.is_input = name, array.size, 0, 0, True
        self.free = prod(array.shape[1:])
        stored = array.view(np.uint8) if array.dtype == np.bool_ else array
        self.data = np.ascontiguousarray(stored).reshape(-1).astype(dtype.held, copy=False)
        self.written, self.started = Coverage(array.size, True), None
        return self
