"""Arithmetic of strided views: shapes, strides and offsets in elements, without looking at data."""

from __future__ import annotations

from math import prod

from .errors import refuse

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
    found: list[int] = []
    taken = 0
    while len(found) < len(target):
        taken, end = _group(source, taken, target, len(found))
        step = source[taken - 1][1] if taken else 1
        found.extend(step * inner for inner in contiguous(target[len(found) : end]))
    return tuple(found)


def _group(source: list[tuple[int, int]], taken: int, target: Ints, done: int) -> tuple[int, int]:
    """Where the next group ends in the source and in the target."""
    held, wanted, end = 1, target[done], done + 1
    while held != wanted:
        if held < wanted:
            size, stride = source[taken]
            if held > 1 and source[taken - 1][1] != size * stride:
                refuse("reshape", f"{target} is no view of a tensor with strides {tuple(s for _, s in source)}")
            held, taken = held * size, taken + 1
        else:
            wanted, end = wanted * target[end], end + 1
    return taken, end
