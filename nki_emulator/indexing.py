"""Indexing of tensors: ints, slices, Ellipsis and nl.ds. Page: "NKI Language Guide", Neuron SDK 2.32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import refuse
from .patterns import Ints, integer, span

if TYPE_CHECKING:
    from .storage import View
    from .tensor import NkiTensor


@dataclass(frozen=True, slots=True)
class DynamicSlice:
    """nki.language.ds: `size` elements from `start`."""

    start: int
    size: int


class VirtualRegister:
    """nki.isa.VirtualRegister: an int that the device holds; frozen where a loop owns it."""

    __slots__ = ("frozen", "value")

    def __init__(self, value: int | None, frozen: bool = False) -> None:
        self.value, self.frozen = value, frozen

    def __bool__(self) -> bool:
        refuse("tensor-value", "a register has no value while the kernel is built; use nl.fori_loop or nl.while_loop")


def select_index(index: Any) -> int:
    """An index that is an int, a register, or the content of a (1, 1) tensor."""
    if type(index) is int:
        return index
    if isinstance(index, VirtualRegister):
        if index.value is None:
            refuse("uninitialised", "a register is read before it is written")
        return index.value
    if getattr(index, "size", None) != 1 or index.dtype.is_float:
        refuse("index", f"{index!r} is no index; use an int, a register or a (1, 1) tensor of integers")
    if not index.storage.written.count(index.shape, index.strides, index.offset):
        refuse("uninitialised", f"the index in {index} has not been written")
    return int(index.array.reshape(-1)[0])


def indexed(tensor: NkiTensor, key: object) -> tuple[Ints, Ints, int]:
    """Shape, strides and offset of tensor[key]. Every index must lie inside: nothing is clipped.

    An int removes its dimension, but on chip the partition stays, and at least two dimensions do (one in HBM).
    """
    keys = expanded(tensor, key if isinstance(key, tuple) else (key,))
    on_chip = tensor.storage.region.on_chip
    shape: list[int] = []
    strides: list[int] = []
    offset = tensor.offset
    for dim, (entry, size, stride) in enumerate(zip(keys, tensor.shape, tensor.strides, strict=True)):
        start, count, step = _entry(tensor, dim, entry, size)
        offset += start * stride
        if count:
            if dim == 0 and on_chip and step > 1 and count > 1:
                refuse("partition-stride", f"{tensor}: every {step}th partition; an access takes adjacent partitions")
            shape.append(count)
            strides.append(stride * step)
        elif dim == 0 and on_chip:
            shape.append(1)
            strides.append(stride)
    if len(shape) < 1 + on_chip:
        shape.append(1)
        strides.append(1)
    return tuple(shape), tuple(strides), offset


_ALL = slice(None)


def expanded(tensor: View, keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """One key for each dimension."""
    missing = tensor.ndim - len(keys)
    for position, entry in enumerate(keys):
        if entry is Ellipsis:
            return (*keys[:position], *(_ALL,) * (missing + 1), *keys[position + 1 :])
    if missing < 0:
        refuse("index", f"{len(keys)} indices for {tensor}")
    return keys + (_ALL,) * missing


def _entry(tensor: NkiTensor, dim: int, entry: Any, size: int) -> tuple[int, int, int]:
    """Start, count (0 for an int, which removes the dimension) and step."""
    if entry is _ALL:
        return 0, size, 1
    if isinstance(entry, DynamicSlice):
        start = select_index(entry.start)
        entry = slice(start, start + integer(entry.size, "ds"))
    if not isinstance(entry, slice):
        index = _from_end(select_index(entry), size)
        if not 0 <= index < size:
            refuse("out-of-bounds", f"index {entry} in dimension {dim} of {tensor}")
        return index, 0, 1
    start = 0 if entry.start is None else _from_end(select_index(entry.start), size)
    stop = size if entry.stop is None else _from_end(select_index(entry.stop), size)
    step = 1 if entry.step is None else integer(entry.step, "a step")
    if step == 1 and 0 <= start < stop <= size:
        return start, stop - start, 1
    return start, span(start, stop, step, size, f"slice of dimension {dim} of {tensor}"), step


def _from_end(index: int, size: int) -> int:
    return index + size if index < 0 else index
