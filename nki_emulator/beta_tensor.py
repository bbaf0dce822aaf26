"""Tensors of the Beta 1 API. Pages: "NKI Programming Model" and "nki.tensor", Neuron SDK 2.26.

The compiler of that generation places tiles and spills them, so that capacity is no rule here; a single tile must fit.
What an instruction was masked out of is undefined. Undefined elements may be computed with, as the tutorials do, but
what depends on them is undefined too and must not reach HBM.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NoReturn

import numpy as np

from .beta_index import Grid, Index, Mask, broadcast, executed
from .dtypes import FLOAT32, DType, rounded
from .errors import refuse
from .indexing import DynamicSlice
from .machine import Machine, running
from .operands import as_float
from .patterns import Ints, positive
from .storage import Region
from .targets import BANK, BANKS, PARTITIONS

Arithmetic = Callable[..., Any]


class Memory:
    """Elements of a tensor and which of them are defined; `partition` is the dimension along the partitions."""

    def __init__(
        self, machine: Machine, shape: Ints, dtype: DType, region: Region, partition: int = 0, name: str = ""
    ) -> None:
        self.machine, self.dtype, self.region, self.name = machine, dtype, region, name
        self.is_input = self.is_stored = False
        if region.on_chip:
            self._check(shape, partition)
        self.values = np.empty(shape, dtype.held)
        self.known = np.zeros(shape, np.bool_)

    def _check(self, shape: Ints, partition: int) -> None:
        if len(shape) < 2:
            refuse("shape", f"a tensor on chip has a partition and a free dimension; {shape} has one")
        if shape[partition] > PARTITIONS:
            refuse("partition-limit", f"{shape}: {shape[partition]} partitions in dimension {partition}, at most 128")
        size = prod(shape[partition + 1 :]) * self.dtype.itemsize
        most = BANK * BANKS if self.region is Region.psum else self.machine.target.sbuf
        if size > most:
            refuse(f"{self.region.value}-capacity", f"a tile of {size} bytes a partition; there are {most}")


class BetaTensor:
    """A view of a memory: basic indexing leaves views of NumPy, index expressions a `key` that is looked up late."""

    __slots__ = ("executed", "key", "known", "memory", "partition", "shape", "values")

    def __init__(
        self,
        memory: Memory,
        values: np.ndarray,
        known: np.ndarray,
        partition: int = 0,
        key: tuple[Any, ...] | None = None,
        shape: Ints | None = None,
    ) -> None:
        self.memory, self.values, self.known, self.partition, self.key = memory, values, known, partition, key
        self.shape: Ints = values.shape if shape is None else shape
        self.executed: np.ndarray | None = None

    @classmethod
    def of(cls, memory: Memory, partition: int = 0) -> BetaTensor:
        """All of a memory."""
        return cls(memory, memory.values, memory.known, partition)

    @property
    def dtype(self) -> DType:
        """Of its elements."""
        return self.memory.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def buffer(self) -> Region:
        """The memory it lies in."""
        return self.memory.region

    def __str__(self) -> str:
        return f"{self.memory.name or 'tensor'}{list(self.shape)} {self.dtype} in {self.buffer.value}"

    __repr__ = __str__

    def __bool__(self) -> NoReturn:
        refuse("tensor-value", "Python cannot look into a tensor while the kernel is built")

    def __iter__(self) -> NoReturn:
        refuse("tensor-value", "a tensor is no sequence; loop over a range and index it")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> BetaTensor:
        entries = tuple(key) if isinstance(key, tuple | Grid) else (key,)
        if self.key is not None:
            return self._again(entries)
        if any(isinstance(entry, Mask) for entry in entries):
            refuse("not-implemented", "operand masking, as x[i < n]; give mask= to the instruction")
        if any(isinstance(entry, BetaTensor) for entry in entries):
            refuse("not-implemented", "indices that are data; use index expressions")
        if any(isinstance(entry, Index) for entry in entries):
            return self._gathered(entries)
        return self._sliced(entries)

    def _again(self, entries: tuple[Any, ...]) -> BetaTensor:
        if not all(entry is Ellipsis or entry == slice(None) for entry in entries):
            refuse("not-implemented", f"indexing {self} again; index the tensor once")
        return self

    def _sliced(self, entries: tuple[Any, ...]) -> BetaTensor:
        """Ints and slices. An int drops its dimension, except the partition, which stays with size 1."""
        entries = self._expanded(entries)
        keys = tuple([self._inside(dim, entry) for dim, entry in enumerate(entries)])
        dropped = sum(type(entry) is int for entry in keys[: self.partition])
        return BetaTensor(self.memory, self.values[keys], self.known[keys], self.partition - dropped)

    def _expanded(self, entries: tuple[Any, ...]) -> tuple[Any, ...]:
        missing = self.ndim - len(entries)
        if Ellipsis in entries:
            at = entries.index(Ellipsis)
            return entries[:at] + (slice(None),) * (missing + 1) + entries[at + 1 :]
        if missing < 0:
            refuse("index", f"{len(entries)} indices for {self}")
        return entries + (slice(None),) * missing

    def _inside(self, dim: int, entry: Any) -> int | slice:
        """One entry; nothing is clipped and nothing counts from the end."""
        size = self.shape[dim]
        if isinstance(entry, DynamicSlice):
            entry = slice(entry.start, entry.start + entry.size)
        if isinstance(entry, slice):
            start, stop = entry.start or 0, size if entry.stop is None else entry.stop
            if not 0 <= start < stop <= size or (entry.step or 1) < 1:
                refuse("out-of-bounds", f"{start}:{stop} in dimension {dim} of {self}")
            return slice(start, stop, entry.step)
        if not isinstance(entry, int | np.integer) or isinstance(entry, bool):
            refuse("index", f"{entry!r} is no index of {self}")
        if not 0 <= entry < size:
            refuse("out-of-bounds", f"index {entry} in dimension {dim} of {self}")
        if dim == self.partition and self.buffer.on_chip:
            return slice(int(entry), int(entry) + 1)
        return int(entry)

    def _gathered(self, entries: tuple[Any, ...]) -> BetaTensor:
        """Index expressions and ints, one for each dimension."""
        if len(entries) != self.ndim:
            refuse("index", f"{len(entries)} indices for {self}; index expressions name every dimension")
        if not all(isinstance(entry, Index | int | np.integer) for entry in entries):
            refuse("mixed-index", "slices and index expressions in one access are not supported")
        shape = broadcast(*[entry.shape for entry in entries if isinstance(entry, Index)])
        keys = tuple([self._open(entry, len(shape)) for entry in entries])
        if self.buffer.on_chip:
            self._check_partition(keys)
        return BetaTensor(self.memory, self.values, self.known, 0, keys, shape)

    @staticmethod
    def _open(entry: Any, ndim: int) -> np.ndarray:
        values = entry.values if isinstance(entry, Index) else np.array(int(entry))
        return values.reshape((1,) * (ndim - values.ndim) + values.shape)

    def _check_partition(self, keys: tuple[np.ndarray, ...]) -> None:
        """The partition follows the first axis of the tile in steps of 1, and nothing else does."""
        for dim, values in enumerate(keys):
            along = dim == self.partition
            if values.size // values.shape[0] > 1 if along else values.shape[0] > 1:
                refuse("partition-index", f"{self}: its partitions, and only they, follow the first axis of the index")
            if along and values.shape[0] > 1 and (np.diff(values.reshape(-1)) != 1).any():
                refuse("partition-stride", f"{self}: an access takes adjacent partitions")

    def _looked_up(self, ran: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """Keys inside the tensor; those outside must be masked out."""
        keys = []
        for dim, values in enumerate(self.key or ()):
            size = self.values.shape[dim]
            outside = (values < 0) | (values >= size)
            if outside.any():
                if ran is None or (ran & outside).any():
                    refuse("out-of-bounds", f"indices {values.min()} to {values.max()} in dimension {dim} of {self}")
                values = values.clip(0, size - 1)
            keys.append(values)
        return tuple(keys)

    def read(self, mask: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Values as they are held, and which of them are defined and not masked out."""
        ran = executed(mask, self.shape)
        self._check_current()
        if self.key is None:
            values, known = self.values, self.known
        else:
            keys = self._looked_up(ran)
            values = np.broadcast_to(self.values[keys], self.shape)
            known = np.broadcast_to(self.known[keys], self.shape)
        return values, known if ran is None else known & ran

    def write(self, values: np.ndarray, known: np.ndarray, ran: np.ndarray | None = None) -> None:
        """Round once and store where the instruction ran; the rest keeps what it holds."""
        self._check_writable()
        result = rounded(np.where(known, values, 0), self.dtype, self.memory.machine.precise)
        if self.key is None and ran is None:
            self.values[...], self.known[...] = result, known
            return
        keys = self._looked_up(ran) if self.key is not None else np.ix_(*map(range, self.shape))
        keys = tuple([np.broadcast_to(part, self.shape) for part in keys])
        if ran is not None:
            keys, result, known = tuple([part[ran] for part in keys]), result[ran], known[ran]
        self._check_once(keys, result.size)
        self.values[keys], self.known[keys] = result, known

    def _check_current(self) -> None:
        if self.memory.machine is not running():
            refuse("stale-tensor", f"{self} belongs to another call; a kernel depends on its arguments alone")

    def _check_writable(self) -> None:
        self._check_current()
        if self.memory.is_input:
            self.memory.is_stored = True
        if self.values.size and 0 in self.values.strides:
            refuse("overlapping-write", f"{self} is a broadcast; several of its elements are one")

    def _check_once(self, keys: tuple[np.ndarray, ...], count: int) -> None:
        flat = np.ravel_multi_index(keys, self.values.shape).reshape(-1)
        if count > 1 and np.bincount(flat).max() > 1:
            refuse("overlapping-write", f"several indices of {self} are one element")

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self[key]
        if not isinstance(value, BetaTensor):
            target.write(np.full(target.shape, value, np.float32), np.ones(target.shape, np.bool_))
            return
        values, known = value.read()
        shape = _alike(target, value)
        ran = value.executed if value.executed is None else value.executed.reshape(shape)
        target.write(_wide(values, target.dtype, value.dtype).reshape(shape), known.reshape(shape), ran)

    def reshape(self, shape: Any) -> BetaTensor:
        """A view in another shape; on chip the partition stays."""
        sizes = positive(tuple(shape), "reshape")
        if prod(sizes) != self.size:
            refuse("reshape", f"{self} has {self.size} elements, {sizes} has {prod(sizes)}")
        if self.buffer.on_chip and (self.partition or sizes[0] != self.shape[0]):
            refuse("partition-view", f"reshape: {self} to {sizes} changes the partition dimension")
        if self.key is not None or not self.values.flags.c_contiguous:
            refuse("reshape", f"{self} is a strided access, of which {sizes} is no view")
        return BetaTensor(self.memory, self.values.reshape(sizes), self.known.reshape(sizes))

    def broadcast_to(self, shape: Any) -> BetaTensor:
        """A view that repeats dimensions of size 1."""
        sizes = positive(tuple(shape), "broadcast_to")
        if broadcast(self.shape, sizes) != sizes:
            refuse("shape", f"{self} does not broadcast to {sizes}")
        if self.buffer.on_chip and sizes[0] > PARTITIONS:
            refuse("partition-limit", f"{self} broadcast to {sizes[0]} partitions, at most 128")
        values, known = self.read()
        return BetaTensor(self.memory, np.broadcast_to(values, sizes), np.broadcast_to(known, sizes))

    def expand_dims(self, axis: int) -> BetaTensor:
        """A view with a new dimension of size 1."""
        if axis == 0 and self.buffer.on_chip:
            refuse("partition-view", f"expand_dims: dimension 0 of {self} is the partition and stays first")
        values, known = self.read()
        return BetaTensor(self.memory, np.expand_dims(values, axis), np.expand_dims(known, axis))

    def astype(self, dtype: Any) -> BetaTensor:
        """A new tile of another type."""
        return self._operator("copy")(self, dtype=dtype)

    def _operator(self, name: str) -> Arithmetic:
        return getattr(self.memory.machine.arithmetic, name)  # type: ignore[no-any-return]

    def __iadd__(self, other: Any) -> BetaTensor:
        """In place, as the accumulation of products in PSUM is written."""
        result = self._operator("add")(self, other, dtype=FLOAT32 if self.dtype.is_float else self.dtype)
        values, known = result.read()
        self.write(values, known)
        return self

    def __neg__(self) -> BetaTensor:
        return self._operator("negative")(self)


def _binary(name: str, reverse: bool) -> Arithmetic:
    def method(self: BetaTensor, other: Any) -> BetaTensor:
        operands = (other, self) if reverse else (self, other)
        return self._operator(name)(*operands)

    return method


_SYMBOLS = {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "pow": "power"}
for _symbol, _name in _SYMBOLS.items():
    setattr(BetaTensor, f"__{_symbol}__", _binary(_name, False))
    setattr(BetaTensor, f"__r{_symbol}__", _binary(_name, True))
_COMPARISONS = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
for _symbol, _name in _COMPARISONS.items():
    setattr(BetaTensor, f"__{_symbol}__", _binary(_name, False))


def _wide(values: np.ndarray, target: DType, source: DType) -> np.ndarray:
    return values if target is source else as_float(values)


def _alike(target: BetaTensor, value: BetaTensor) -> Ints:
    """The shape of target, if value has it but for dimensions of size 1."""
    if [n for n in target.shape if n > 1] != [n for n in value.shape if n > 1]:
        refuse("shape", f"{value} is written to {target}")
    return target.shape
