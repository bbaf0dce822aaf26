"""Strided views, by shapes, strides and offsets in elements, and how indices make them: ints, slices, Ellipsis, nl.ds.

Page: "NKI Language Guide", Neuron SDK 2.32.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from .errors import refuse
from .machine import current
from .subset import DYNAMIC_LOOPS

if TYPE_CHECKING:
    from .storage import View
    from .tensor import NkiTensor

Ints = tuple[int, ...]


def contiguous(shape: Ints) -> Ints:
    """Row-major strides."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def extent(shape: Ints, strides: Ints) -> int:
    """Distance from the first to the last element of a view with strides of at least 0."""
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def disjoint(shape: Ints, strides: Ints) -> bool:
    """Whether no two indices address one element; False where the strides alone do not show it.

    In order of their strides, each dimension must step over all that the smaller ones reach.
    """
    pairs = tuple(zip(strides, shape, strict=True))
    return _nested(pairs[::-1]) or _nested(tuple(sorted(pairs)))


def _nested(pairs: tuple[tuple[int, int], ...]) -> bool:
    reach = 0
    for stride, size in pairs:
        if size > 1:
            if stride <= reach:
                return False
            reach += (size - 1) * stride
    return True


def integer(value: object, what: str) -> int:
    """A Python int (no bool), as every size, step and index must be."""
    if type(value) is not int:
        refuse("index", f"{what} must be an int, not {value!r}")
    return value


def positive(shape: object, what: str) -> Ints:
    """A shape: a tuple or list of ints of at least 1."""
    if not isinstance(shape, tuple | list) or not shape:
        refuse("shape", f"{what} must be a tuple of sizes, not {shape!r}")
    sizes = tuple(integer(size, what) for size in shape)
    if min(sizes) < 1:
        refuse("shape", f"{what} {sizes} has a size below 1")
    return sizes


def span(start: int, stop: int, step: int, size: int, what: str) -> int:
    """Number of elements of start:stop:step, which must lie in a dimension and hold at least one.

    NumPy would clip such a slice in silence; a device reads what lies behind the tensor.
    """
    if step < 1:
        refuse("slice-step", f"{what}: step {step} is not positive")
    if not 0 <= start < stop <= size:
        refuse("out-of-bounds", f"{what}: {start}:{stop} is not a part of 0:{size}")
    return -(-(stop - start) // step)


def reshaped(shape: Ints, strides: Ints, target: Ints) -> Ints:
    """Strides of a view in another shape, refused where it would have to copy.

    Both shapes are cut into the shortest groups of equal products; each group of the source must be dense in itself.
    """
    if prod(shape) != prod(target):
        refuse("reshape", f"{shape} has {prod(shape)} elements, {target} has {prod(target)}")
    source = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size > 1]
    result: list[int] = []
    taken = 0
    while len(result) < len(target):
        taken, end = _group(source, taken, target, len(result))
        step = source[taken - 1][1] if taken else 1
        result.extend(step * inner for inner in contiguous(target[len(result) : end]))
    return tuple(result)


def _group(source: list[tuple[int, int]], taken: int, target: Ints, done: int) -> tuple[int, int]:
    """Where the next group ends in the source and in the target."""
    covered, needed, end = 1, target[done], done + 1
    while covered != needed:
        if covered < needed:
            size, stride = source[taken]
            if covered > 1 and source[taken - 1][1] != size * stride:
                refuse("reshape", f"{target} is no view of a tensor with strides {tuple(s for _, s in source)}")
            covered, taken = covered * size, taken + 1
        else:
            needed, end = needed * target[end], end + 1
    return taken, end


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
        """True in `while register:`, which runs on the device, until it is 0."""
        frame = sys._getframe(1)
        if (frame.f_code.co_filename, frame.f_lineno) not in DYNAMIC_LOOPS:
            refuse("tensor-value", "a register has no value while the kernel is built; use nl.fori_loop, nl.while_loop")
        _dynamic_loop()
        return select_index(self) != 0


def _dynamic_loop() -> None:
    if not current().unordered:
        refuse("loop", "a loop whose end a register decides is not supported inside nl.no_reorder()")


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
    if not index.storage.machine.computes:
        refuse("not-implemented", f"an index in {index} without arithmetic: what is in memory decides what is issued")
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
