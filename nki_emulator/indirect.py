"""Views of HBM whose rows lie where an index on chip says, which only DMA reaches.

Pages: "NKI Access Patterns" on vector_offset and scalar_offset, "nki.isa.dma_copy" on indirect addressing, Neuron SDK
2.32.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .dtypes import DType
from .errors import refuse
from .indexing import Ints, contiguous, expanded, indexed
from .storage import Region
from .tensor import NkiTensor


class IndirectTensor(NkiTensor):
    """`elements` [shape] are the indices of its elements in the storage, those of row i only where `inside`[i].

    `offsets` is the shape of the index vector, () for a scalar index, and `index_dtype` its type.
    """

    __slots__ = ("elements", "index_dtype", "inside", "offsets")

    def __init__(
        self, base: NkiTensor, elements: np.ndarray, inside: np.ndarray, offsets: Ints, dtype: DType | None = None
    ) -> None:
        shape = elements.shape
        super().__init__(base.storage, shape, contiguous(shape), 0, base.dtype if dtype is None else dtype)
        self.elements, self.inside, self.offsets = elements, inside, offsets
        self.index_dtype: DType | None = None
        self.dynamic = True

    def __getitem__(self, key: object) -> IndirectTensor:
        """A part of each row: the dimension that the index chooses from is whole."""
        keys = expanded(self, key if isinstance(key, tuple) else (key,))
        first = keys[0]
        if first != slice(None):
            refuse("indirect", f"{self} is chosen by an index along dimension 0, which is not sliced again")
        shape, strides, offset = indexed(self, key)
        flat = np.ndarray(shape, np.int64, np.ascontiguousarray(self.elements), offset * 8, [8 * s for s in strides])
        return IndirectTensor(self, flat, self.inside, self.offsets)

    def _view(self, *_: Any) -> Any:
        refuse("indirect", f"{self} is addressed by an index; only [:, ...] makes a view of it")

    def __str__(self) -> str:
        return f"{super().__str__()} at indices on chip"


def by_vector(
    base: NkiTensor, offsets: Any, row_stride: int, rows: int, inner: np.ndarray, count: int | None = None
) -> IndirectTensor:
    """Rows of `base` in HBM: element j of row i at offsets[i] * row_stride + inner[j], for offsets below `rows`.

    Offsets of several columns are taken column by column, and the first `count` of them.
    """
    if base.storage.region.on_chip:
        refuse("indirect", f"{base} is on chip; vector_offset and vector_select address tensors in HBM")
    if base.dynamic:
        refuse("indirect", f"{base} is addressed by an index already")
    if type(offsets) is not NkiTensor or offsets.storage.region is not Region.sbuf or offsets.dtype.is_float:
        refuse("operand", f"the offsets {offsets!r} must be a tile of integers in SBUF")
    if offsets.storage.written.count(offsets.shape, offsets.strides, offsets.offset) != offsets.size:
        refuse("uninitialised", f"the offsets in {offsets} have not been written")
    chosen = offsets.array.reshape(offsets.shape[0], -1).T.reshape(-1).astype(np.int64)
    if count is not None:
        if chosen.size < count:
            refuse("shape", f"{count} rows are chosen by {chosen.size} offsets in {offsets}")
        chosen = chosen[:count]
    inside = (chosen >= 0) & (chosen < rows)
    elements = np.where(inside, chosen, 0).reshape((-1,) + (1,) * inner.ndim) * row_stride + inner[None]
    if elements.size and inside.any() and elements[inside].max() >= base.storage.size:
        refuse("out-of-bounds", f"rows of {base} at {row_stride} elements each leave {base.storage}")
    access = IndirectTensor(base, elements, inside, offsets.shape)
    access.index_dtype = offsets.dtype
    return access


def steps(shape: Ints, strides: Ints) -> np.ndarray:
    """[shape] distances from the first element."""
    distances = np.zeros(shape, np.int64)
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        distances = distances + (np.arange(size) * stride).reshape((size,) + (1,) * (len(shape) - axis - 1))
    return distances


def outside(base: NkiTensor, shape: Ints) -> IndirectTensor:
    """A view that a scalar index puts outside of its tensor in HBM: a DMA may skip it."""
    return IndirectTensor(base, np.zeros(shape, np.int64), np.zeros(shape[0], np.bool_), ())


def row_stride(base: NkiTensor) -> int:
    """Elements from one index of the first dimension of the base tensor to the next."""
    return prod(base.storage.shape[1:])
