"""Exact results for inputs with few nonzero elements: the cost does not depend on the size of the tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from conformance.operators.base import Arrays
from conformance.operators.conv_transpose.operators import mirrored

Places = Mapping[str, np.ndarray]
"""Input -> flat positions, in canonical order, of the elements that may be nonzero."""
Nonzero = tuple[np.ndarray, np.ndarray]
"""Ascending flat positions and the values there, float64; all other elements are zero."""
Place = list[np.ndarray]
"""For each axis, the positions of all elements on it."""
Link = tuple[tuple[int, ...], Place, np.ndarray]
"""A tap, the place of every element in the other image, and whether that place exists."""


def windows_of(g: Any, place: Place) -> Iterator[Link]:
    """Yield for every tap the places in the output of the windows whose tap lies on these elements of the image."""
    axes = [*zip(place, g.stride, g.dilation, g.padding, g.output_size, strict=True)]
    for tap in np.ndindex(*g.window):
        exists, found = np.ones(place[0].shape, bool), []
        for t, (position, stride, dilation, (before, _), count) in zip(tap, axes, strict=True):
            p, rest = np.divmod(position + before - t * dilation, stride)
            exists &= (rest == 0) & (p >= 0) & (p < count)
            found.append(p)
        yield tap, found, exists


def elements_of(g: Any, place: Place) -> Iterator[Link]:
    """Yield for every tap the elements of the image on which that tap of these windows lies."""
    axes = [*zip(place, g.stride, g.dilation, g.padding, strict=True)]
    for tap in np.ndindex(*g.window):
        found = [p * u + t * d - before for t, (p, u, d, (before, _)) in zip(tap, axes, strict=True)]
        inside = [(p >= 0) & (p < size) for p, size in zip(found, g.size, strict=True)]
        yield tap, found, np.logical_and.reduce(inside)


def _within(place: Place, exists: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(position[exists] for position in place)


def nonzero(operator: str, g: Any, inputs: Arrays, places: Places) -> dict[str, Nonzero]:
    """Return the nonzero elements of every output of an operator of `RULES`. Biases are not supported."""
    return {output: rule(g, inputs, places) for output, rule in RULES[operator].items()}


def _summed(parts: list[tuple[np.ndarray, np.ndarray]]) -> Nonzero:
    places, which = np.unique(np.concatenate([place for place, _ in parts]), return_inverse=True)
    sums = np.bincount(which, np.concatenate([value for _, value in parts]), len(places))
    return places[sums != 0], sums[sums != 0]


def _at(array: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the values at flat positions, and these positions on every axis."""
    return array.reshape(-1)[places].astype(np.float64), list(np.unravel_index(places, array.shape))


def _conv_forward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    values, (n, c, *place) = _at(inputs["x"], places["x"])
    weights, parts = inputs["w"].astype(np.float64), []
    filters, channels = g.k // g.groups, g.c // g.groups
    for tap, window, exists in windows_of(g, place):
        for member in range(filters):
            k = c // channels * filters + member
            products = values * weights[(k, c % channels, *tap)]
            parts.append((np.ravel_multi_index((n, k, *window), g.y.shape, "clip")[exists], products[exists]))
    return _summed(parts)


def _conv_backward_data(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    values, (n, k, *place) = _at(inputs["dy"], places["dy"])
    weights, parts = inputs["w"].astype(np.float64), []
    filters, channels = g.k // g.groups, g.c // g.groups
    for tap, element, exists in elements_of(g, place):
        for member in range(channels):
            c = k // filters * channels + member
            products = values * weights[(k, member, *tap)]
            parts.append((np.ravel_multi_index((n, c, *element), g.x.shape, "clip")[exists], products[exists]))
    return _summed(parts)


def _conv_backward_weight(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    values, (n, c, *place) = _at(inputs["x"], places["x"])
    parts, filters, channels = [], g.k // g.groups, g.c // g.groups
    for tap, window, exists in windows_of(g, place):
        for member in range(filters):
            k = (c // channels * filters + member)[exists]
            products = values[exists] * inputs["dy"][(n[exists], k, *_within(window, exists))].astype(np.float64)
            parts.append((np.ravel_multi_index((k, c[exists] % channels, *tap), g.filter.shape), products))
    return _summed(parts)


def _transposed_forward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    found, values = _conv_backward_data(g.mirror, mirrored(g, inputs), {"dy": places["x"]})
    index = np.unravel_index(found, g.mirror.x.shape)
    return np.ravel_multi_index(index, g.y.shape), values


def _reached(g: Any, places: Places) -> Places:
    """Convert places in dy to places in x of the mirrored convolution, without those that no window reaches."""
    index = np.unravel_index(places["dy"], g.y.shape)
    inside = np.logical_and.reduce([at < size for at, size in zip(index[2:], g.mirror.size, strict=True)])
    read = np.ravel_multi_index(tuple(at[inside] for at in index), g.mirror.x.shape)
    return {"x": read}


def _transposed_backward_data(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    return _conv_forward(g.mirror, mirrored(g, inputs), _reached(g, places))


def _transposed_backward_weight(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    return _conv_backward_weight(g.mirror, mirrored(g, inputs), _reached(g, places))


def _divisors(g: Any, windows: Sequence[np.ndarray]) -> np.ndarray:
    if g.divisor_override is not None:
        return np.full(windows[0].shape, float(g.divisor_override))
    return np.asarray(math.prod(g.counted(axis, place) for axis, place in enumerate(windows)), np.float64)


def _avg_forward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    values, (n, c, *place) = _at(inputs["x"], places["x"])
    parts = []
    for _, window, ok in windows_of(g, place):
        shared = values[ok] / _divisors(g, _within(window, ok))
        parts.append((np.ravel_multi_index((n, c, *window), g.y.shape, "clip")[ok], shared))
    return _summed(parts)


def _avg_backward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    values, (n, c, *place) = _at(inputs["dy"], places["dy"])
    shares = values / _divisors(g, place)
    return _summed(
        [
            (np.ravel_multi_index((n, c, *element), g.x.shape, "clip")[ok], shares[ok])
            for _, element, ok in elements_of(g, place)
        ]
    )


def _max_forward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    """Return the nonzero maxima; the data must not be negative anywhere."""
    values, (n, c, *place) = _at(inputs["x"], places["x"])
    found = [
        (np.ravel_multi_index((n, c, *window), g.y.shape, "clip")[ok], values[ok])
        for _, window, ok in windows_of(g, place)
    ]
    windows, which = np.unique(np.concatenate([place for place, _ in found]), return_inverse=True)
    largest = np.zeros(len(windows))
    np.maximum.at(largest, which, np.concatenate([value for _, value in found]))
    return windows[largest > 0], largest[largest > 0]


def _max_backward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    values, (n, c, *place) = _at(inputs["dy"], places["dy"])
    last = np.array(g.size)[:, None] - 1
    links = [(np.clip(element, 0, last), ok) for _, element, ok in elements_of(g, place)]
    seen = np.array([np.where(ok, inputs["x"][(n, c, *at)].astype(np.float64), -np.inf) for at, ok in links])
    chosen = np.array([at for at, _ in links])[seen.argmax(axis=0), :, np.arange(len(n))]
    return _summed([(np.ravel_multi_index((n, c, *chosen.T), g.x.shape), values)])


RULES: dict[str, dict[str, Callable[[Any, Arrays, Places], Nonzero]]] = {
    "conv_forward": {"y": _conv_forward},
    "conv_backward_data": {"dx": _conv_backward_data},
    "conv_backward_weight": {"dw": _conv_backward_weight},
    "conv_transpose_forward": {"y": _transposed_forward},
    "conv_transpose_backward_data": {"dx": _transposed_backward_data},
    "conv_transpose_backward_weight": {"dw": _transposed_backward_weight},
    "avg_pool_forward": {"y": _avg_forward},
    "avg_pool_backward": {"dx": _avg_backward},
    "max_pool_forward": {"y": _max_forward},
    "max_pool_backward": {"dx": _max_backward},
}
