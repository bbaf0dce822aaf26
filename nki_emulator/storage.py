"""Memory behind tensors, and which of its elements hold anything."""

from __future__ import annotations

from enum import Enum
from math import prod
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from .dtypes import DType
from .errors import refuse
from .indexing import Ints, contiguous, integer
from .machine import Machine
from .targets import BANK, BANKS, PARTITIONS


class Region(Enum):
    """Memories: nki.language.sbuf and so on, Neuron SDK 2.32."""

    sbuf = "sbuf"
    psum = "psum"
    hbm = "hbm"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    @property
    def on_chip(self) -> bool:
        return self in _ON_CHIP


_ON_CHIP = frozenset({Region.sbuf, Region.psum})


class Coverage:
    """A property of each element of a storage; `everywhere` answers for all of them without looking."""

    __slots__ = ("everywhere", "flags", "size")

    def __init__(self, size: int, everywhere: bool) -> None:
        self.size, self.everywhere = size, everywhere
        self.flags: np.ndarray | None = None

    def _view(self, shape: Ints, strides: Ints, offset: int) -> np.ndarray:
        if self.flags is None:
            self.flags = np.full(self.size, self.everywhere)
        return np.ndarray(shape, np.bool_, self.flags, offset, strides)

    def mark(self, shape: Ints, strides: Ints, offset: int, whole: bool, value: bool) -> None:
        """Set it for the elements of a view (strides in elements); `whole` says that these are all there are."""
        if whole:
            self.flags, self.everywhere = None, value
        elif value and self.everywhere:
            return
        elif value or self.everywhere or self.flags is not None:
            self._view(shape, strides, offset)[...] = value
            self.everywhere = False

    def count(self, shape: Ints, strides: Ints, offset: int) -> int:
        if self.everywhere:
            return prod(shape)
        if self.flags is None:
            return 0
        count = int(np.count_nonzero(np.ndarray(shape, np.bool_, self.flags, offset, strides)))
        if count == self.size and self.flags.all():
            self.flags, self.everywhere = None, True
        return count


class View:
    """What tensors of both generations have: `shape`, `dtype` and the memory `buffer` that they lie in."""

    __slots__ = ()
    shape: Ints
    dtype: DType

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def buffer(self) -> Region:
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.name or 'tensor'}{list(self.shape)} {self.dtype} in {self.buffer.value}"

    __repr__ = __str__

    def __bool__(self) -> NoReturn:
        refuse("tensor-value", "Python cannot look into a tensor while the kernel is built")

    def __iter__(self) -> NoReturn:
        refuse("tensor-value", "a tensor is no sequence; loop over a range and index it")


class Storage:
    """A buffer of one memory. What it takes of SBUF or PSUM is given back when no tensor refers to it any more."""

    __slots__ = (
        "_banks", "_bytes", "_hbm", "data", "dtype", "free", "is_input", "machine", "modified", "name", "partition",
        "ready", "region", "shape", "size", "source", "started", "used", "written",
    )  # fmt: skip

    def __init__(
        self, machine: Machine, shape: Ints, dtype: DType, region: Region, name: str, data: np.ndarray | None = None
    ) -> None:
        self.machine, self.shape, self.dtype, self.region, self.name = machine, shape, dtype, region, name
        self.size = prod(shape)
        self._banks = self._bytes = self._hbm = 0
        self.is_input = False
        self.ready = self.used = 0.0
        """When its contents are there and when nobody reads them any more, where the time is modelled (ns)."""
        self.partition = 0
        """Where its first partition lies on chip."""
        self.source: np.ndarray | None = None
        """The array of an argument."""
        self.modified = False
        self.free = prod(shape[1:])
        if region.on_chip:
            if shape[0] > PARTITIONS:
                refuse("partition-limit", f"{self} has {shape[0]} partitions; there are {PARTITIONS}")
            self._reserve()
        elif data is None:
            self._hbm = self.size * dtype.host.itemsize
            machine.reserve_hbm(self._hbm)
        self.data = np.empty(self.size, dtype.host) if data is None else data
        self.written = Coverage(self.size, data is not None)
        self.started = Coverage(self.size, False) if region is Region.psum else None

    def _reserve(self) -> None:
        """Take what it needs of SBUF, or whole banks of PSUM."""
        size, trace = self.free * self.dtype.itemsize, self.machine.trace
        if trace is not None:
            trace.close()
        if self.region is Region.sbuf:
            self._bytes = size
            self.machine.reserve_sbuf(size)
        else:
            self._banks = -(-size // BANK)
            self.machine.reserve_banks(self._banks)
        if trace is not None:
            trace.reserve(self, self._bytes + self._banks)

    def __del__(self) -> None:
        self.machine.sbuf -= self._bytes
        self.machine.banks -= self._banks
        self.machine.hbm -= self._hbm
        if self.machine.trace is not None and self._bytes + self._banks:
            self.machine.trace.release(self, self._bytes + self._banks)

    def __str__(self) -> str:
        return f"{self.name or 'tensor'}{list(self.shape)} in {self.region.value}"

    @classmethod
    def of_input(cls, machine: Machine, array: np.ndarray, dtype: DType, name: str) -> Storage:
        """Memory of an argument. What a kernel writes there is in the array after the call."""
        stored = array.view(np.uint8) if array.dtype == np.bool_ else array
        values = np.ascontiguousarray(stored).reshape(-1).astype(dtype.host, copy=False)
        storage = cls(machine, array.shape, dtype, Region.hbm, name, values)
        storage.source = array
        return storage

    def give_back(self) -> None:
        """Into the array of an argument, what a kernel wrote to it."""
        if self.modified and self.source is not None and not np.shares_memory(self.source, self.data):
            self.source[...] = self.data.reshape(self.shape).astype(self.source.dtype)


class PlacedStorage(Storage):
    """Bytes `start` to `end` of the partitions from 0 on. Nothing is reserved, since others may lie there too.

    Pages: "nki.language.ndarray", and on address= the migration guide, SDK 2.32.
    """

    __slots__ = ("__weakref__", "end", "start")

    start: int
    end: int

    def _reserve(self) -> None:
        pass


_placed: WeakKeyDictionary[Machine, WeakSet[PlacedStorage]] = WeakKeyDictionary()


def placed(machine: Machine, shape: Ints, dtype: DType, region: Region, name: str, address: Any) -> PlacedStorage:
    """Memory at address = (first partition, byte in it).

    Tensors that lie there already are undefined from now on. The device would keep them until the new one is written,
    in an order that only the kernel's dependencies decide.
    """
    if not region.on_chip or not isinstance(address, tuple | list) or len(address) != 2:
        refuse("address", f"address {address!r} of a tensor in {region.value}; it is (partition, byte) on chip")
    partition, start = (integer(part, "an address") for part in address)
    if partition < 0 or partition + shape[0] > PARTITIONS:
        refuse("address", f"{shape[0]} partitions from {partition} on; there are {PARTITIONS}")
    storage = PlacedStorage(machine, shape, dtype, region, name)
    storage.partition = partition
    storage.start, storage.end = start, start + storage.free * dtype.itemsize
    size = machine.target.sbuf if region is Region.sbuf else BANK * BANKS
    if start < 0 or storage.end > size:
        refuse("address", f"{storage} at bytes {start} to {storage.end}; {region.value} has {size}")
    if region is Region.psum and start % BANK:
        refuse(
            "psum-bank", f"{storage} at byte {start}; a tensor in PSUM is placed at the beginning of a bank of {BANK}"
        )
    neighbours = _placed.setdefault(machine, WeakSet())
    for other in list(neighbours):
        apart = other.partition + other.shape[0] <= partition or partition + shape[0] <= other.partition
        if other.region is region and start < other.end and other.start < storage.end and not apart:
            for coverage in (other.written, other.started):
                if coverage is not None:
                    coverage.mark(other.shape, contiguous(other.shape), 0, True, False)
    neighbours.add(storage)
    return storage
