"""Tensors that a kernel places itself. Pages: "nki.language.ndarray", and on address= the migration guide, SDK 2.32."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from .dtypes import DType
from .errors import refuse
from .machine import Machine
from .patterns import contiguous, integer
from .storage import Region, Storage
from .targets import BANK, BANKS, PARTITIONS


class PlacedStorage(Storage):
    """Memory from byte `start` on of the partitions from 0 on; nothing is reserved, since others may lie there too."""

    __slots__ = ("__weakref__", "end", "start")

    def _reserve(self) -> None:
        if self.shape[0] > PARTITIONS:
            refuse("partition-limit", f"{self} has {self.shape[0]} partitions; there are {PARTITIONS}")

    def overlaps(self, other: PlacedStorage) -> bool:
        """Whether they share bytes of a partition."""
        return self.region is other.region and self.start < other.end and other.start < self.end

    def forget(self) -> None:
        """What was here is another tensor's now."""
        for coverage in (self.written, self.started):
            if coverage is not None:
                coverage.mark(self.shape, contiguous(self.shape), 0, True, False)


_placed: WeakKeyDictionary[Machine, WeakSet[PlacedStorage]] = WeakKeyDictionary()


def placed(
    machine: Machine, shape: tuple[int, ...], dtype: DType, region: Region, name: str, address: Any
) -> PlacedStorage:
    """Memory at address = (first partition, byte in it).

    Tensors that lie there already are undefined from now on. The device would keep them until the new one is written,
    in an order that only the kernel's dependencies decide.
    """
    if not region.on_chip or not isinstance(address, tuple | list) or len(address) != 2:
        refuse("address", f"address {address!r} of a tensor in {region.value}; it is (partition, byte) on chip")
    partition, start = (integer(part, "an address") for part in address)
    if partition:
        refuse("not-implemented", f"a tensor that starts at partition {partition}")
    found = PlacedStorage(machine, shape, dtype, region, name)
    found.start, found.end = start, start + found.free * dtype.itemsize
    _check_range(machine, found)
    neighbours = _placed.setdefault(machine, WeakSet())
    for other in list(neighbours):
        if found.overlaps(other):
            other.forget()
    neighbours.add(found)
    return found


def _check_range(machine: Machine, found: PlacedStorage) -> None:
    size = machine.target.sbuf if found.region is Region.sbuf else BANK * BANKS
    if found.start < 0 or found.end > size:
        refuse("address", f"{found} at bytes {found.start} to {found.end}; {found.region.value} has {size}")
    if found.region is Region.psum and found.start % BANK and found.start // BANK != (found.end - 1) // BANK:
        refuse("psum-bank", f"{found} at bytes {found.start} to {found.end} begins inside a bank and leaves it")
