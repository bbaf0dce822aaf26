"""Exact results for inputs with few nonzero elements: the cost does not depend on the size of the tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from conformance.operators.base import Arrays, Tensor, Workload

Places = Mapping[str, np.ndarray]
"""Input -> flat positions, in canonical order, of the elements that may be nonzero."""
Nonzero = tuple[np.ndarray, np.ndarray]
"""Ascending flat positions and the values there, float64; all other elements are zero."""
SparseRule = Callable[[Any, Arrays, Places], Nonzero]
"""(geometry, inputs, places) -> nonzero elements of an output."""
Place = list[np.ndarray]
"""For each axis, the positions of all elements on it."""
Link = tuple[tuple[int, ...], Place, np.ndarray]
"""A tap, the place of every element in the other image, and whether that place exists."""


def windows_of(g: Any, place: Place) -> Iterator[Link]:
    """Yield, for every tap, the places in the output of the windows that have this tap on the given elements."""
    axes = [*zip(place, g.stride, g.dilation, g.padding, g.output_size, strict=True)]
    for tap in np.ndindex(*g.window):
        exists, windows = np.ones(place[0].shape, bool), []
        for t, (position, stride, dilation, (before, _), count) in zip(tap, axes, strict=True):
            p, rest = np.divmod(position + before - t * dilation, stride)
            exists &= (rest == 0) & (p >= 0) & (p < count)
            windows.append(p)
        yield tap, windows, exists


def elements_of(g: Any, place: Place) -> Iterator[Link]:
    """Yield, for every tap, the elements of the image on which this tap of the given windows lies."""
    axes = [*zip(place, g.stride, g.dilation, g.padding, strict=True)]
    for tap in np.ndindex(*g.window):
        elements = [p * u + t * d - before for t, (p, u, d, (before, _)) in zip(tap, axes, strict=True)]
        inside = [(p >= 0) & (p < size) for p, size in zip(elements, g.size, strict=True)]
        yield tap, elements, np.logical_and.reduce(inside)


def within(place: Place, exists: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the places that exist."""
    return tuple(position[exists] for position in place)


def beside_powers(shape: tuple[int, ...]) -> np.ndarray:
    """Return flat positions [N, C, H, W] at both ends and beside powers of two, counted in NCHW and in NHWC; of a
    matrix, by rows and by columns."""
    size = math.prod(shape)
    powers = [(1 << bits) + step for bits in range(8, size.bit_length() + 1) for step in (-1, 0, 1)]
    linear = np.array([place for place in (0, 1, 2, size - 3, size - 2, size - 1, *powers) if 0 <= place < size])
    if len(shape) == 2:
        columns, rows = np.divmod(linear, shape[0])
        return np.union1d(linear, rows * shape[1] + columns)
    n, *pixel, c = np.unravel_index(linear, (shape[0], *shape[2:], shape[1]))
    return np.union1d(linear, np.ravel_multi_index((n, c, *pixel), shape))


def through_windows(geometry: Any, name: str, tensor: Tensor) -> dict[str, np.ndarray]:
    """Return positions of the input `name` that a window joins with an element beside a power of two of the image on
    the other side."""
    read, mirror = tensor == geometry.x, getattr(geometry, "mirror", None)
    ways = (windows_of, elements_of) if mirror else (elements_of, windows_of)
    other, links = (geometry.y, ways[0]) if read else (geometry.x, ways[1])
    n, c, *pixel = np.unravel_index(beside_powers(other.shape), other.shape)
    places = []
    for _, place, exists in links(mirror or geometry, pixel):
        index = (n, c % tensor.shape[1], *place)
        places.append(np.ravel_multi_index(index, tensor.shape, "clip")[exists])
    return {name: np.concatenate(places)}


def joined(
    first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the places in two lists, and the products of their values, of all pairs that have the same key: the
    elements of two matrices that are multiplied. A list is keys and values."""
    (keys, values), (sought, factors) = first, second
    order = np.argsort(sought, kind="stable")
    begin, end = (np.searchsorted(sought[order], keys, side) for side in ("left", "right"))
    counts = end - begin
    place = np.repeat(np.arange(len(keys)), counts)
    within_run = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    partner = order[np.repeat(begin, counts) + within_run]
    return place, partner, values[place] * factors[partner]


def nonzero(workload: Workload, inputs: Arrays, places: Places) -> dict[str, Nonzero]:
    """Return the nonzero elements of every output that an operator has a rule for. Biases are not supported."""
    return {output: rule(workload.geometry, inputs, places) for output, rule in workload.operator.sparse}


def added(parts: list[tuple[np.ndarray, np.ndarray]]) -> Nonzero:
    """Add up terms, given by flat positions and values."""
    places, which = np.unique(np.concatenate([place for place, _ in parts]), return_inverse=True)
    sums = np.bincount(which, np.concatenate([value for _, value in parts]), len(places))
    return places[sums != 0], sums[sums != 0]


def read(array: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the values at flat positions, and the indices of these positions on every axis."""
    return array.reshape(-1)[places].astype(np.float64), list(np.unravel_index(places, array.shape))
