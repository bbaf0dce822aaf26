"""Tensors of the Beta 1 API. Pages: "NKI Programming Model" and "nki.tensor", Neuron SDK 2.26.

The compiler of that generation places tiles and spills them, so that capacity is no rule here; a single tile must fit.
What an instruction was masked out of is undefined. Undefined elements may be computed with, as the tutorials do, but
what depends on them is undefined too and must not reach HBM.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from .beta_index import Grid, Index, Mask, aligned, broadcast, executed
from .dtypes import FLOAT32, DType, dtype_of, rounded
from .errors import refuse
from .indexing import DynamicSlice, Ints, expanded, integer, positive
from .machine import Machine, running
from .operands import as_float
from .storage import Region, View
from .targets import BANK, BANKS, PARTITIONS


class Memory:
    """Elements of a tensor and which of them are defined; `partition` is the dimension along the partitions."""

    def __init__(
        self, machine: Machine, shape: Ints, dtype: DType, region: Region, partition: int = 0, name: str = ""
    ) -> None:
        self.machine, self.dtype, self.region, self.name, self.partition = machine, dtype, region, name, partition
        self.placed: Callable[[BetaTensor], None] | None = None
        """Of memory that the kernel places itself: what a write does to others there."""
        self.is_input = self.is_stored = self.is_product = False
        if region.on_chip:
            if len(shape) < 2:
                refuse("shape", f"a tensor on chip has a partition and a free dimension; {shape} has one")
            if (count := shape[partition]) > PARTITIONS:
                refuse("partition-limit", f"{shape}: {count} partitions in dimension {partition}, at most 128")
            size = prod(shape[partition + 1 :]) * dtype.itemsize
            limit = BANK * BANKS if region is Region.psum else machine.target.sbuf
            if size > limit:
                refuse(f"{region.value}-capacity", f"a tile of {size} bytes a partition; there are {limit}")
        self.values = np.empty(shape, dtype.host)
        self.defined = np.zeros(shape, np.bool_)


class BetaTensor(View):
    """A view of a memory: basic indexing leaves views of NumPy, index expressions a `key` that is looked up late."""

    __slots__ = ("defined", "executed", "key", "limit", "memory", "partition", "pending", "shape", "values")

    def __init__(
        self, memory: Memory, values: np.ndarray, defined: np.ndarray, partition: int = 0,
        key: tuple[Any, ...] | None = None, shape: Ints | None = None,
    ) -> None:  # fmt: skip
        self.memory, self.values, self.defined, self.partition, self.key = memory, values, defined, partition, key
        self.shape: Ints = values.shape if shape is None else shape
        self.executed: np.ndarray | None = None
        self.limit: np.ndarray | None = None
        """Of an operand of a product: which elements take part."""
        self.pending: str | None = None
        """Of what nl.loop_reduce returns: the function by which it is reduced into the tile that it is assigned to."""

    @classmethod
    def of(cls, memory: Memory, partition: int = 0) -> BetaTensor:
        return cls(memory, memory.values, memory.defined, partition)

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.memory.dtype

    @property
    def name(self) -> str:
        return self.memory.name

    @property
    def buffer(self) -> Region:
        return self.memory.region

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> BetaTensor:
        if isinstance(key, Mask | bool | np.bool_):
            return self._limited(key if isinstance(key, Mask) else bool(key))
        entries = tuple(key) if isinstance(key, tuple | Grid) else (key,)
        entries = tuple([entry.as_index() if isinstance(entry, BetaTensor) else entry for entry in entries])
        if self.key is not None:
            return self._indexed_again(expanded(self, entries))
        if any(isinstance(entry, Index) for entry in entries):
            return self._gathered(entries)
        return self._sliced(entries)

    def _limited(self, mask: Mask | bool) -> BetaTensor:
        """Operand masking, as x[i < n]: the elements of an operand that take part in a product.

        Page: "NKI API Masking", Neuron SDK 2.26. Masks follow one another in the vendor's own kernels, and all hold.
        """
        chosen = executed(mask, self.shape)
        access = BetaTensor(self.memory, self.values, self.defined, self.partition, self.key, self.shape)
        limits = [limit for limit in (self.limit, chosen) if limit is not None]
        access.limit = np.logical_and.reduce(limits) if limits else None
        return access

    def _indexed_again(self, entries: tuple[Any, ...]) -> BetaTensor:
        """A part of an access that was made of index expressions: its keys, indexed."""
        if all(isinstance(entry, slice) and entry == slice(None) for entry in entries):
            return self
        shown = np.empty(self.shape, np.bool_)
        places = BetaTensor(self.memory, shown, shown, self.partition)
        part = places._gathered(entries) if any(isinstance(e, Index) for e in entries) else places._sliced(entries)
        keys = [np.broadcast_to(key, self.shape) for key in self.key or ()]
        if part.key is None:
            inside = tuple([places._inside(dim, entry) for dim, entry in enumerate(entries)])
            indexed = tuple([key[inside] for key in keys])
        else:
            indexed = tuple([np.broadcast_to(key[part.key], part.shape) for key in keys])
        return BetaTensor(self.memory, self.values, self.defined, 0, indexed, part.shape)

    def as_index(self) -> Index:
        """Integers of a tile as offsets of an access: what they are is known when the instruction runs."""
        values, defined = self.read()
        if self.dtype.is_float:
            refuse("index", f"{self} holds no integers; offsets of an access do")
        if not defined.all():
            refuse("uninitialised", f"{self} is used as offsets; {(~defined).sum()} of its elements are undefined")
        return Index(values.astype(np.int64), values.shape)

    def _sliced(self, entries: tuple[Any, ...]) -> BetaTensor:
        """Ints and slices. An int drops its dimension, except the partition, which stays with size 1."""
        entries = expanded(self, entries)
        if any(self._leaves(dim, entry) for dim, entry in enumerate(entries)):
            return self._late(entries)
        keys = tuple([self._inside(dim, entry) for dim, entry in enumerate(entries)])
        dropped = sum(type(entry) is int for entry in keys[: self.partition])
        values, defined = self.values[keys], self.defined[keys]
        if self.buffer.on_chip and values.ndim == 1:  # a tile keeps a free dimension
            values, defined = values[:, None], defined[:, None]
        return BetaTensor(self.memory, values, defined, self.partition - dropped)

    def _leaves(self, dim: int, entry: Any) -> bool:
        """Whether a slice with both ends goes past the end, where a mask may leave out what is there."""
        if isinstance(entry, DynamicSlice):
            return 0 <= entry.start < entry.start + entry.size > self.shape[dim]
        ends = isinstance(entry, slice) and entry.start is not None and entry.stop is not None
        return bool(ends and 0 <= entry.start < entry.stop > self.shape[dim] and (entry.step or 1) == 1)

    def _late(self, entries: tuple[Any, ...]) -> BetaTensor:
        """Slices as index expressions, whose bounds are checked when the mask is known."""
        spans = [
            range(entry.start, entry.start + entry.size) if isinstance(entry, DynamicSlice) else entry
            for entry in entries
        ]
        spans = [
            range(*slice(s.start or 0, self.shape[d] if s.stop is None else s.stop, s.step).indices(2**62))
            if isinstance(s, slice)
            else s
            for d, s in enumerate(spans)
        ]
        shape = tuple(len(span) for span in spans if isinstance(span, range))
        keys, axis = [], 0
        for span in spans:
            if isinstance(span, range):
                keys.append(np.array(span).reshape(tuple(-1 if i == axis else 1 for i in range(len(shape)))))
                axis += 1
            else:
                keys.append(np.full((1,) * len(shape), integer(span, "an index")))
        return BetaTensor(self.memory, self.values, self.defined, 0, tuple(keys), shape)

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
        """Index expressions and ints, one for each dimension. On chip the partition follows the first axis of the tile
        in steps of 1, and nothing else does."""
        if len(entries) != self.ndim:
            refuse("index", f"{len(entries)} indices for {self}; index expressions name every dimension")
        if not all(isinstance(entry, Index | int | np.integer) for entry in entries):
            refuse("mixed-index", "slices and index expressions in one access are not supported")
        entries = aligned(entries)
        shape = broadcast(*[entry.shape for entry in entries if isinstance(entry, Index)])
        arrays = [entry.values if isinstance(entry, Index) else np.array(int(entry)) for entry in entries]
        keys = tuple([values.reshape((1,) * (len(shape) - values.ndim) + values.shape) for values in arrays])
        for dim, values in enumerate(keys if self.buffer.on_chip else ()):
            along = dim == self.partition
            if values.size // values.shape[0] > 1 if along else values.shape[0] > 1:
                refuse("partition-index", f"{self}: its partitions, and only they, follow the first axis of the index")
            if along and values.shape[0] > 1 and (np.diff(values.reshape(-1)) != 1).any():
                refuse("partition-stride", f"{self}: an access takes adjacent partitions")
        return BetaTensor(self.memory, self.values, self.defined, 0, keys, shape)

    def _looked_up(self, ran: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """Keys inside the tensor; those outside must be masked out."""
        keys = []
        for dim, values in enumerate(self.key or ()):
            size = self.values.shape[dim]
            outside = (values < 0) | (values >= size)
            if outside.any():
                if ran is None or (ran & outside).any():
                    reach = f"indices {values.min()} to {values.max()} in dimension {dim}"
                    refuse("out-of-bounds", f"{reach} of {self.name or 'a tensor'} of {self.values.shape}")
                values = values.clip(0, size - 1)
            keys.append(values)
        return tuple(keys)

    def inside(self) -> np.ndarray:
        """Which elements of an access lie in the tensor, in the shape of the access."""
        inside = np.ones(self.shape, np.bool_)
        for size, values in zip(self.values.shape, self.key or (), strict=False):
            inside &= (values >= 0) & (values < size)
        return inside

    def read(self, mask: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Values as they are held, and which of them are defined and not masked out."""
        ran = executed(mask, self.shape)
        self._check_current()
        if self.limit is not None:
            refuse("mask", f"{self} is masked as an operand, which only products take; give mask= to the instruction")
        if self.key is None:
            values, defined = self.values, self.defined
        else:
            keys = self._looked_up(ran)
            values = np.broadcast_to(self.values[keys], self.shape)
            defined = np.broadcast_to(self.defined[keys], self.shape)
        return values, defined if ran is None else defined & ran

    def write(self, values: np.ndarray, defined: np.ndarray, ran: np.ndarray | None = None) -> None:
        """Round once and store where the instruction ran; the rest keeps what it holds."""
        self._check_current()
        if self.memory.is_input:
            self.memory.is_stored = True
        if any(not step and size > 1 for step, size in zip(self.values.strides, self.values.shape, strict=True)):
            refuse("overlapping-write", f"{self} is a broadcast; several of its elements are one")
        if self.memory.placed is not None:
            self.memory.placed(self)
        result = rounded(np.where(defined, values, 0), self.dtype, self.memory.machine.precise)
        if self.key is None and ran is None:
            self.values[...], self.defined[...] = result, defined
            return
        keys = self._looked_up(ran) if self.key is not None else np.ix_(*map(range, self.shape))
        keys = tuple([np.broadcast_to(part, self.shape) for part in keys])
        if ran is not None:
            keys, result, defined = tuple([part[ran] for part in keys]), result[ran], defined[ran]
        if result.size > 1 and np.bincount(np.ravel_multi_index(keys, self.values.shape).reshape(-1)).max() > 1:
            refuse("overlapping-write", f"several indices of {self} are one element")
        self.values[keys], self.defined[keys] = result, defined

    def add(self, values: np.ndarray, part: np.ndarray) -> None:
        """Add float32 values to some elements, one after another."""
        self._check_current()
        keys = self._looked_up(part) if self.key is not None else np.ix_(*map(range, self.shape))
        keys = tuple([np.broadcast_to(key, self.shape)[part] for key in keys])
        if self.memory.is_input:
            self.memory.is_stored = True
        sums = self.values.astype(np.float32)
        np.add.at(sums, keys, values[part])
        self.values[keys] = rounded(sums[keys], self.dtype, self.memory.machine.precise)

    def view(self, dtype: Any) -> BetaTensor:
        """The same bits as another type of as many bytes, of a tensor in HBM that is read."""
        element_type = dtype if isinstance(dtype, DType) else dtype_of(np.empty(0, dtype))
        if element_type is self.dtype:
            return self
        if element_type.itemsize != self.itemsize or self.buffer.on_chip:
            refuse("not-implemented", f"a view of {self} as {element_type}")
        values, defined = self.read()
        memory = Memory(self.memory.machine, self.shape, element_type, self.buffer, name=self.name)
        memory.values[...] = values.astype(self.dtype.stored).view(element_type.stored).astype(element_type.host)
        memory.defined[...], memory.is_input = defined, True
        return BetaTensor.of(memory)

    def _check_current(self) -> None:
        if self.memory.machine is not running():
            refuse("stale-tensor", f"{self} belongs to another call; a kernel depends on its arguments alone")

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self[key]
        if not isinstance(value, BetaTensor):
            target.write(np.full(target.shape, value, np.float32), np.ones(target.shape, np.bool_))
            return
        if value.pending is not None:
            value = self._computed(value.pending, target, value, dtype=target.dtype)
        values, defined = value.read()
        shape = target.shape
        if [n for n in shape if n > 1] != [n for n in value.shape if n > 1]:
            refuse("shape", f"{value} is written to {target}")
        ran = value.executed if value.executed is None else value.executed.reshape(shape)
        values = values if target.dtype is value.dtype else as_float(values)
        target.write(values.reshape(shape), defined.reshape(shape), ran)

    def reshape(self, shape: Any) -> BetaTensor:
        """A view in another shape; on chip the partition stays."""
        sizes = positive(tuple(shape), "reshape")
        if prod(sizes) != self.size:
            refuse("reshape", f"{self} has {self.size} elements, {sizes} has {prod(sizes)}")
        if self.buffer.on_chip and (self.partition or sizes[0] != self.shape[0]):
            refuse("partition-view", f"reshape: {self} to {sizes} changes the partition dimension")
        if self.key is not None or not self.values.flags.c_contiguous:
            refuse("reshape", f"{self} is a strided access, of which {sizes} is no view")
        return BetaTensor(self.memory, self.values.reshape(sizes), self.defined.reshape(sizes))

    def broadcast_to(self, shape: Any) -> BetaTensor:
        """A view that repeats dimensions of size 1."""
        sizes = positive(tuple(shape), "broadcast_to")
        if broadcast(self.shape, sizes) != sizes:
            refuse("shape", f"{self} does not broadcast to {sizes}")
        if self.buffer.on_chip and sizes[0] > PARTITIONS:
            refuse("partition-limit", f"{self} broadcast to {sizes[0]} partitions, at most 128")
        values, defined = self.read()
        return BetaTensor(self.memory, np.broadcast_to(values, sizes), np.broadcast_to(defined, sizes))

    def expand_dims(self, axis: int) -> BetaTensor:
        """A view with a new dimension of size 1."""
        if axis == 0 and self.buffer.on_chip:
            refuse("partition-view", f"expand_dims: dimension 0 of {self} is the partition and stays first")
        values, defined = self.read()
        return BetaTensor(self.memory, np.expand_dims(values, axis), np.expand_dims(defined, axis))

    def astype(self, dtype: Any) -> BetaTensor:
        return self._computed("copy", self, dtype=dtype)

    def _computed(self, name: str, *operands: Any, dtype: Any = None) -> BetaTensor:
        """By the function of nki.language that an operator of Python stands for."""
        return FUNCTIONS[name](*operands, dtype=dtype)

    def __iadd__(self, other: Any) -> BetaTensor:
        """In place, as the accumulation of products in PSUM is written; nothing is added where nothing was computed.

        A product that is added to PSUM which nothing has written starts the sum, as the Tensor Engine does with the
        first of a group: the SDK's own tutorial on attention relies on it (attn_fwd_v8a, Neuron SDK 2.26).
        """
        ran = other.executed if isinstance(other, BetaTensor) else None
        if isinstance(other, BetaTensor) and other.memory.is_product and self.buffer is Region.psum:
            self._start(ran)
        result = self._computed("add", self, other, dtype=FLOAT32 if self.dtype.is_float else self.dtype)
        self.write(*result.read(), ran)
        return self

    def _start(self, ran: np.ndarray | None) -> None:
        """Zeros where a sum begins."""
        _, defined = self.read()
        fresh = ~defined if ran is None else ~defined & ran
        if fresh.any():
            self.write(np.zeros(self.shape, np.float32), np.ones(self.shape, np.bool_), fresh)

    def __neg__(self) -> BetaTensor:
        return self._computed("negative", self)


FUNCTIONS: dict[str, Callable[..., BetaTensor]] = {}
"""Of nki.language, which fills it in: those that the operators of Python stand for are among them."""


def _binary(name: str, reverse: bool = False) -> Callable[[BetaTensor, Any], Any]:
    """By a function of nki.language; together with an index expression a tile is an offset."""

    def operator(self: BetaTensor, other: Any) -> Any:
        operands = (self.as_index(), other) if isinstance(other, Index) else (self, other)
        if reverse:
            operands = operands[::-1]
        return _INDEXED[name](*operands) if isinstance(other, Index) else self._computed(name, *operands)

    return operator


_INDEXED: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b,
}  # fmt: skip


_ARITHMETIC = {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "pow": "power"}
_COMPARISONS = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
for _symbol, _name in (_ARITHMETIC | _COMPARISONS).items():
    setattr(BetaTensor, f"__{_symbol}__", _binary(_name))
for _symbol, _name in _ARITHMETIC.items():
    setattr(BetaTensor, f"__r{_symbol}__", _binary(_name, reverse=True))
