"""Tiles that a kernel of the Beta 1 API places itself. Page: "NKI Direct Allocation Developer Guide", Neuron SDK 2.26.

Tiles may share their place, one after another: what is written to a tile makes every other one there undefined.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from math import prod
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import numpy as np

from .beta_tensor import BetaTensor, Memory
from .errors import SOURCES, refuse
from .indexing import Ints
from .machine import Machine
from .storage import Region
from .targets import BANK, BANKS, PARTITIONS

Function = Callable[..., Ints]
"""Index `idx` of a block, `pdim_size` partitions, `fdim_size` bytes each -> (partition, byte), in PSUM (bank, both)."""
RESERVED = 16 * 1024
"""Bytes of a partition of SBUF that the compiler keeps."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What `buffer=` is given for memory that a kernel places itself."""

    region: Region
    function: Function


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block of a tensor lies: partitions and bytes, both half open; PSUM counts bytes through its banks."""

    memory: ReferenceType[Memory]
    block: int
    region: Region
    partitions: tuple[int, int]
    bytes: tuple[int, int]

    def meets(self, other: Place) -> bool:
        pairs = ((self.partitions, other.partitions), (self.bytes, other.bytes))
        return self.region is other.region and all(a[0] < b[1] and b[0] < a[1] for a, b in pairs)


_places: WeakKeyDictionary[Machine, list[Place]] = WeakKeyDictionary()
_first: WeakKeyDictionary[Machine, dict[Any, Ints]] = WeakKeyDictionary()
"""The place that a call of a kernel asked for when it was first made."""


def place(memory: Memory, placement: Placement) -> None:
    """Give each block of a tensor its place.

    Raises:
        Refusal: a place is outside of the memory, or not one that the hardware addresses.
    """
    shape, partition = memory.values.shape, memory.partition
    count, size = shape[partition], prod(shape[partition + 1 :]) * memory.dtype.itemsize
    here, places = _call_sites(), []
    first = _first.setdefault(memory.machine, {})
    for block, index in enumerate(np.ndindex(*shape[:partition])):
        arguments = {"idx": tuple(int(i) for i in index), "pdim_size": count, "fdim_size": size}
        named = arguments.keys() <= signature(placement.function).parameters.keys()
        answer = placement.function(**arguments) if named else placement.function(*arguments.values())
        address = tuple(int(part) for part in answer)
        moved = first.setdefault((here, block), address) != address
        places.append(_checked(memory, block, address, count, size, moved))
    taken = [other for other in _places.get(memory.machine, ()) if other.memory() is not None]
    _places[memory.machine] = taken + places
    memory.placed = partial(_overwritten, places)


def _call_sites() -> tuple[tuple[str, int], ...]:
    """File and line of each call of kernel code that is running."""
    frame, sites = sys._getframe(), []
    while frame is not None:
        if frame.f_code.co_filename in SOURCES:
            sites.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(sites)


def _checked(memory: Memory, block: int, address: Ints, count: int, size: int, moved: bool) -> Place:
    bank, start, byte = address if memory.region is Region.psum else (0, *address)
    step = PARTITIONS if count > 64 else 64 if count > 32 else 32
    if start % step or start + count > PARTITIONS:
        refuse(
            "start-partition", f"a tile of {count} partitions at partition {start}; it starts at a multiple of {step}"
        )
    if memory.region is Region.psum:
        if start or byte:
            refuse("address", f"a tile of PSUM at partition {start}, byte {byte}; both must be 0")
        if not 0 <= bank < BANKS or size > BANK:
            refuse("psum-bank", f"a tile of {size} bytes a partition in bank {bank}; there are {BANKS} of {BANK}")
        return Place(ref(memory), block, memory.region, (0, count), (bank * BANK, bank * BANK + size))
    total = memory.machine.target.sbuf_total
    outside = not 0 <= byte < total - RESERVED or byte + size > total
    if outside and moved:
        why = "the compiler traces a loop once, this emulator runs its Python in every pass"
        refuse("not-implemented", f"addresses that Python adds up inside a loop: {why}")
    if outside:
        where = f"a tile at bytes {byte} to {byte + size} of a partition of {total}"
        refuse("address", f"{where}; tiles begin below {total - RESERVED}")
    return Place(ref(memory), block, memory.region, (start, start + count), (byte, byte + size))


def _modulo(base: int, tiles: Ints, scale: int, index: Ints) -> int:
    """base + scale times the row-major number of index modulo tiles; no tiles are one."""
    sizes = tuple(int(size) for size in tiles) or (1,) * len(index)
    if index and len(sizes) != len(index):
        refuse(
            "operand",
            f"{len(sizes)} numbers of tiles for {len(index)} dimensions of blocks; give one for each, or none",
        )
    number = 0
    for i, size in zip(index, sizes, strict=False):
        number = number * size + i % size
    return base + number * scale


class Allocator:
    """nki.compiler.sbuf or nki.compiler.psum."""

    def __init__(self, region: Region) -> None:
        self.region = region

    def auto_alloc(self) -> Region:
        return self.region

    def alloc(self, func: Function) -> Placement:
        return Placement(self.region, func)

    def mod_alloc(
        self, *, base_addr: int = 0, base_bank: int = 0, base_partition: int = 0, num_bank_tiles: Ints = (),
        num_par_tiles: Ints = (), num_free_tiles: Ints = (),
    ) -> Placement:  # fmt: skip
        """Blocks in turn at so many tiles of a bank, the partitions and the bytes."""

        def modulo(idx: Ints, pdim_size: int, fdim_size: int) -> Ints:
            inner = (
                _modulo(base_partition, num_par_tiles, pdim_size, idx),
                _modulo(base_addr, num_free_tiles, fdim_size, idx),
            )
            bank = _modulo(base_bank, num_bank_tiles, 1, idx)
            return (bank, *inner) if self.region is Region.psum else inner

        return Placement(self.region, modulo)


def _overwritten(places: list[Place], tensor: BetaTensor) -> None:
    """Make undefined what shares its place with the blocks that an access writes."""
    written = [places[block] for block in _blocks(tensor)]
    for other in _places[tensor.memory.machine]:
        memory = other.memory()
        if memory is not None and any(other is not here and other.meets(here) for here in written):
            defined = memory.defined.reshape(-1, *memory.defined.shape[memory.partition :])
            defined[other.block] = False


def _blocks(tensor: BetaTensor) -> set[int]:
    """Numbers of the blocks that an access reaches."""
    memory = tensor.memory
    sizes = memory.values.shape[: memory.partition]
    if not sizes:
        return {0}
    numbers = np.arange(prod(sizes)).reshape(sizes)
    if tensor.key is not None and tensor.values.shape == memory.values.shape:
        keys = tuple(key.clip(0, size - 1) for key, size in zip(tensor.key, sizes, strict=False))
        return set(numbers[keys].reshape(-1).tolist())
    low, high = np.lib.array_utils.byte_bounds(tensor.values)
    start = np.lib.array_utils.byte_bounds(memory.values)[0]
    size = memory.values.nbytes // prod(sizes)
    return set(range((low - start) // size, (high - start - 1) // size + 1))
