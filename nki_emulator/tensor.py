"""NkiTensor: a strided view of a storage. Page: "nki.language.NkiTensor" and "NKI Language Guide", Neuron SDK 2.32."""

from __future__ import annotations

from math import prod
from typing import Any, NoReturn

import numpy as np

from .dtypes import DType, checked
from .errors import refuse
from .indexing import Ints, contiguous, extent, indexed, integer, positive, reshaped, select_index, span
from .objects import NKIObject
from .storage import Region, Storage, View


class NkiTensor(View, NKIObject):
    """Shape, strides and offset in elements, dtype and storage. Views share the storage; nothing is copied."""

    __slots__ = ("_array", "dtype", "dynamic", "offset", "shape", "size", "storage", "strides")

    def __init__(self, storage: Storage, shape: Ints, strides: Ints, offset: int, dtype: DType) -> None:
        self.storage, self.shape, self.strides, self.offset, self.dtype = storage, shape, strides, offset, dtype
        self.size = prod(shape)
        self.dynamic = False
        """Whether an index on chip or in a register chose it."""
        self._array: np.ndarray | None = None

    @classmethod
    def of(cls, storage: Storage) -> NkiTensor:
        return cls(storage, storage.shape, contiguous(storage.shape), 0, storage.dtype)

    @property
    def buffer(self) -> Region:
        return self.storage.region

    @property
    def name(self) -> str:
        return self.storage.name

    @property
    def free(self) -> int:
        return self.size // self.shape[0]

    @property
    def array(self) -> np.ndarray:
        """The elements, as a view of the storage."""
        if self._array is None:
            host = self.dtype.host
            size = host.itemsize
            strides = tuple([stride * size for stride in self.strides])
            self._array = np.ndarray(self.shape, host, self.storage.data, self.offset * size, strides)
        return self._array

    def same_elements(self, other: NkiTensor) -> bool:
        """Whether index by index both are the same memory."""
        return (self.shape, self.strides, self.offset) == (other.shape, other.strides, other.offset)

    def _view(self, shape: Ints, strides: Ints, offset: int) -> NkiTensor:
        access = NkiTensor(self.storage, shape, strides, offset, self.dtype)
        access.dynamic = self.dynamic
        return access

    def _replaced(self, dim: int, pairs: tuple[tuple[int, int], ...], offset: int, width: int = 1) -> NkiTensor:
        """A view with (size, stride) pairs in place of `width` dimensions."""
        sizes, steps = tuple(size for size, _ in pairs), tuple(stride for _, stride in pairs)
        shape = (*self.shape[:dim], *sizes, *self.shape[dim + width :])
        return self._view(shape, (*self.strides[:dim], *steps, *self.strides[dim + width :]), offset)

    def _free_dimension(self, dim: object, what: str) -> int:
        dimension = self._dimension(dim, what)
        if dimension == 0 and self.storage.region.on_chip:
            refuse("partition-view", f"{what}: dimension 0 of {self} is the partition, which no view rearranges")
        return dimension

    def _dimension(self, dim: object, what: str) -> int:
        if not 0 <= integer(dim, f"{what}: the dimension") < self.ndim:
            refuse("out-of-bounds", f"{what}: {self} has no dimension {dim}")
        return dim  # type: ignore[return-value]

    def __getitem__(self, key: object) -> NkiTensor:
        return self._view(*indexed(self, key))

    def __setitem__(self, key: object, value: Any) -> None:
        """Copy a tile on chip into a part of this one. Page: "NKI Migration Guides", on block dimensions."""
        from .isa_memory import tensor_copy

        if type(value) is not NkiTensor or not value.buffer.on_chip or not self.buffer.on_chip:
            refuse(
                "operand", f"{value!r} is assigned to a part of {self}; tiles on chip are, others go by nisa.dma_copy"
            )
        part = self[key]
        if part.shape != value.shape:
            refuse("shape", f"{value} is assigned to {part}")
        tensor_copy(part, value)

    def is_contiguous(self) -> bool:
        """Dense in row-major order; on chip the partition does not count."""
        shape, strides = (self.shape[1:], self.strides[1:]) if self.buffer.on_chip else (self.shape, self.strides)
        dense = contiguous(shape)
        return all(size == 1 or a == b for size, a, b in zip(shape, strides, dense, strict=True))

    def is_indirect(self) -> bool:
        """Whether an index on chip or a register chose what it shows."""
        return self.dynamic

    def get_pattern(self) -> list[list[int]]:
        return [[stride, size] for stride, size in zip(self.strides, self.shape, strict=True)]

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        dim = self._dimension(dim, "slice")
        start, end, step = (integer(value, "slice") for value in (start, end, step))
        count = span(start, end, step, self.shape[dim], f"slice of dimension {dim} of {self}")
        if dim == 0 and step > 1 and count > 1 and self.storage.region.on_chip:
            refuse("partition-stride", f"{self}: every {step}th partition; an access takes adjacent partitions")
        return self._replaced(dim, ((count, self.strides[dim] * step),), self.offset + start * self.strides[dim])

    def select(self, dim: int, index: Any) -> NkiTensor:
        """One element of a dimension, which is removed; the index may be a (1, 1) tensor or a register."""
        dim = self._free_dimension(dim, "select")
        dynamic = type(index) is not int
        if dynamic and self.dynamic:
            refuse("indirect", f"select: {self} is chosen by an index already; only one is allowed")
        index = select_index(index)
        if not 0 <= index < self.shape[dim]:
            if dynamic and not self.buffer.on_chip:
                return indirect.outside(self, (*self.shape[:dim], *self.shape[dim + 1 :]) or (1,))
            refuse("out-of-bounds", f"select: {index} in dimension {dim} of {self}")
        access = self._replaced(dim, (), self.offset + index * self.strides[dim])
        access.dynamic = access.dynamic or dynamic
        return access

    def permute(self, dims: tuple[int, ...]) -> NkiTensor:
        """Dimensions in another order; on chip the partition stays first."""
        dims = tuple(integer(dim, "permute") for dim in dims)
        if sorted(dims) != list(range(self.ndim)):
            refuse("shape", f"permute: {dims} is no order of the {self.ndim} dimensions of {self}")
        if dims[0] != 0 and self.buffer.on_chip:
            refuse("partition-view", f"permute: dimension 0 of {self} is the partition and stays first")
        return self._view(tuple(self.shape[d] for d in dims), tuple(self.strides[d] for d in dims), self.offset)

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        dim = self._free_dimension(dim, "broadcast")
        (size,) = positive((size,), "broadcast")
        if self.shape[dim] != 1:
            refuse("shape", f"broadcast: dimension {dim} of {self} is not 1")
        return self._replaced(dim, ((size, 0),), self.offset)

    def expand_dim(self, dim: int) -> NkiTensor:
        if not 0 <= integer(dim, "expand_dim") <= self.ndim:
            refuse("out-of-bounds", f"expand_dim: {dim} for {self}")
        if dim == 0 and self.buffer.on_chip:
            refuse("partition-view", f"expand_dim: dimension 0 of {self} is the partition and stays first")
        inner = self.strides[dim] * self.shape[dim] if dim < self.ndim else 1
        return self._replaced(dim, ((1, inner),), self.offset, width=0)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        dim = self._free_dimension(dim, "squeeze_dim")
        if self.shape[dim] != 1:
            refuse("shape", f"squeeze_dim: dimension {dim} of {self} is not 1")
        return self._replaced(dim, (), self.offset)

    def reshape(self, shape: tuple[int, ...]) -> NkiTensor:
        """Another shape of the same elements, in the same order; on chip the partition stays."""
        shape = positive(shape, "reshape")
        if not self.buffer.on_chip:
            return self._view(shape, reshaped(self.shape, self.strides, shape), self.offset)
        if shape[0] != self.shape[0]:
            refuse("partition-view", f"reshape: {self} to {shape} changes the partition dimension")
        free = reshaped(self.shape[1:], self.strides[1:], shape[1:] or (1,))
        return self._view(shape, (self.strides[0], *free[: len(shape) - 1]), self.offset)

    def reshape_dim(self, dim: int, shape: tuple[int, ...]) -> NkiTensor:
        """One dimension as several; one size may be -1."""
        dim = self._dimension(dim, "reshape_dim")
        product = prod(size for size in shape if size != -1)
        sizes = tuple(self.shape[dim] // product if size == -1 else size for size in shape)
        return self.reshape((*self.shape[:dim], *sizes, *self.shape[dim + 1 :]))

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Dimensions start_dim to end_dim as one."""
        start, end = self._free_dimension(start_dim, "flatten_dims"), self._dimension(end_dim, "flatten_dims")
        return self.reshape((*self.shape[:start], prod(self.shape[start : end + 1]), *self.shape[end + 1 :]))

    def ap(
        self, pattern: list[list[int]], offset: int | None = None, scalar_offset: Any = None,
        vector_offset: Any = None, indirect_dim: int = 0, dtype: DType | None = None,
    ) -> NkiTensor:  # fmt: skip
        """[[stride, count], ...] over the storage. Page: "NKI Access Patterns", Neuron SDK 2.32.

        The pages disagree on whether an explicit offset counts from the storage or from the view that is asked, so
        that on a view with an offset of its own it is refused.
        """
        if dtype is not None and checked(dtype).itemsize != self.dtype.itemsize:
            # pattern and offset count elements of the other type
            if scalar_offset is not None or vector_offset is not None:
                refuse("not-implemented", "ap: an index, and a dtype of another size")
            if self.offset:
                refuse("ap-on-view", f"ap with a dtype of another size on a view that starts at {self.offset}")
            return NkiTensor.of(self.storage).view(self.dtype).view(dtype).ap(pattern, offset)
        strides = tuple(integer(pair[0], "ap: a stride") for pair in pattern)
        shape = positive([pair[1] for pair in pattern], "ap: the counts")
        if offset is not None and self.offset:
            refuse("ap-on-view", f"ap with an offset on a view that starts at {self.offset}; ask the tensor itself")
        start = self.offset if offset is None else integer(offset, "ap: the offset")
        storage, dynamic = self.storage, scalar_offset is not None
        if dynamic and vector_offset is not None:
            refuse("indirect", "ap: scalar_offset and vector_offset exclude each other")
        if (dynamic or vector_offset is not None) and self.dynamic:
            refuse("indirect", f"ap: {self} is chosen by an index already")
        if min(strides) < 0:
            refuse("out-of-bounds", f"ap: a stride of {strides} is negative")
        if vector_offset is not None:
            if indirect_dim != 0:
                refuse("indirect", f"ap: vector_offset along dimension {indirect_dim}; only 0 is supported")
            inner = start + indirect.steps(shape[1:], strides[1:])
            row = indirect.row_stride(self)
            access = indirect.by_vector(self, vector_offset, row, storage.shape[0], inner, shape[0])
            return access if dtype is None else access.view(dtype)
        if dynamic:
            dim = self._dimension(indirect_dim, "ap")
            start += select_index(scalar_offset) * prod(storage.shape[dim + 1 :])
        end = start + extent(shape, strides)
        if start < 0 or end >= storage.size:
            if dynamic and not storage.region.on_chip:
                return indirect.outside(self, shape)
            refuse("out-of-bounds", f"ap: elements {start} to {end} of {storage}, which has {storage.size}")
        if storage.region.on_chip and strides[0] != storage.free and shape[0] > 1:
            message = f"ap: step {strides[0]} of the partition is not the {storage.free} elements of one"
            refuse("partition-stride", message)
        if storage.region.on_chip and start % storage.free + extent(shape[1:], strides[1:]) >= storage.free:
            refuse("out-of-bounds", f"ap: {strides} x {shape} from {start} leaves the partition of {storage}")
        view = self._view(shape, strides, start)
        view = view if dtype is None else view.view(dtype)
        view.dynamic = dynamic
        return view

    def view(self, dtype: DType) -> NkiTensor:
        """The same bits as another type; the last dimension is longer or shorter where the sizes differ."""
        dtype = checked(dtype)
        if type(self) is not NkiTensor or self.dynamic:
            refuse("indirect", f"{self} is addressed by an index and cannot be seen as another type")
        if dtype is self.dtype:
            return self
        if not all(kind.host == kind.stored for kind in (self.dtype, dtype)):
            refuse("not-implemented", f"{self.dtype} seen as {dtype}: only float32 and integers are, here")
        before, after = self.dtype.itemsize, dtype.itemsize
        if before == after:
            return NkiTensor(self.storage, self.shape, self.strides, self.offset, dtype)
        counts = [self.offset, self.shape[-1], *self.strides[:-1]]
        if self.strides[-1] != 1 or any(count * before % after for count in counts):
            refuse("reshape", f"{self} seen as {dtype}: its last dimension must be dense and a whole number of them")
        offset, last, *strides = (count * before // after for count in counts)
        storage = casts.CastStorage(self.storage, dtype)
        return NkiTensor(storage, (*self.shape[:-1], last), (*strides, 1), offset, dtype)

    reinterpret_cast = view

    def rearrange(
        self, src_pattern: tuple[Any, ...], dst_pattern: tuple[Any, ...], fixed_sizes: dict[str, int] | None = None
    ) -> NkiTensor:
        """Dimensions split by name, ordered and merged, as (("b", ("h", "w")), ("b", "w", "h"), {"h": 4})."""
        groups = [(name,) if isinstance(name, str) else tuple(name) for name in src_pattern]
        dst_groups = [(name,) if isinstance(name, str) else tuple(name) for name in dst_pattern]
        names, order = [n for group in groups for n in group], [n for group in dst_groups for n in group]
        if len(groups) != self.ndim or sorted(names) != sorted(order) or len(set(names)) != len(names):
            refuse("shape", f"rearrange: {src_pattern} to {dst_pattern} does not name the dimensions of {self}")
        sizes = dict(fixed_sizes or {})
        view: NkiTensor = self
        for dim in reversed(range(self.ndim)):
            unknown = [name for name in groups[dim] if name not in sizes]
            product = prod(sizes[name] for name in groups[dim] if name in sizes)
            if len(unknown) > 1 or self.shape[dim] % product or (not unknown and product != self.shape[dim]):
                refuse("shape", f"rearrange: sizes of {groups[dim]} do not give {self.shape[dim]}")
            sizes |= dict.fromkeys(unknown, self.shape[dim] // product)
            if len(groups[dim]) > 1:
                view = view.reshape_dim(dim, tuple(sizes[name] for name in groups[dim]))
        view = view.permute(tuple(names.index(name) for name in order))
        for position, group in enumerate(dst_groups):
            if len(group) > 1:
                view = view.flatten_dims(position, position + len(group) - 1)
        return view

    def vector_select(self, dim: int, vector_offset: Any) -> NkiTensor:
        """Row vector_offset[i] of a tensor in HBM as row i."""
        if self._dimension(dim, "vector_select") != 0:
            refuse("indirect", f"vector_select along dimension {dim}; only 0 is supported")
        inner = self.offset + indirect.steps(self.shape[1:], self.strides[1:])
        return indirect.by_vector(self, vector_offset, self.strides[0], self.shape[0], inner)

    def indirect(self, *_: object, **__: object) -> NoReturn:
        if self.storage.machine.generation < 4:
            refuse("target", "tensor indirection needs gen4")
        refuse("not-implemented", "tensor indirection (NkiTensor.indirect)")


from . import casts, indirect  # noqa: E402 - a class there derives from NkiTensor
