"""Exact results of inputs that are zero but for a few elements: no tensor is gone through, however large it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from conformance.operators.base import Arrays

Places = Mapping[str, np.ndarray]
"""By input: flat positions, in canonical order, outside of which it is zero."""
Nonzero = tuple[np.ndarray, np.ndarray]
"""Ascending flat positions and the values there, float64; all else is zero."""
Link = tuple[int, int, np.ndarray, np.ndarray, np.ndarray]
"""A tap (r, s), a position on each axis of the other image for every element, and whether it exists."""


def windows_of(g: Any, rows: np.ndarray, columns: np.ndarray) -> Iterator[Link]:
    """The windows whose tap (r, s) lies on these elements of the image, by their places in the output."""
    (u, v), (d, e), ((top, _), (left, _)) = g.stride, g.dilation, g.padding
    for r, s in np.ndindex(g.r, g.s):
        (p, over), (q, across) = np.divmod(rows + top - r * d, u), np.divmod(columns + left - s * e, v)
        exists = (over == 0) & (across == 0) & (p >= 0) & (q >= 0) & (p < g.output_size[0]) & (q < g.output_size[1])
        yield r, s, p, q, exists


def elements_of(g: Any, p: np.ndarray, q: np.ndarray) -> Iterator[Link]:
    """The elements of the image on which tap (r, s) of these windows lies."""
    (u, v), (d, e), ((top, _), (left, _)) = g.stride, g.dilation, g.padding
    for r, s in np.ndindex(g.r, g.s):
        rows, columns = p * u + r * d - top, q * v + s * e - left
        yield r, s, rows, columns, (rows >= 0) & (columns >= 0) & (rows < g.h) & (columns < g.w)


def nonzero(operator: str, g: Any, inputs: Arrays, places: Places) -> dict[str, Nonzero]:
    """What an operator of `RULES` makes of them, by output. Biases are not taken."""
    return {output: rule(g, inputs, places) for output, rule in RULES[operator].items()}


def _summed(parts: list[tuple[np.ndarray, np.ndarray]]) -> Nonzero:
    places, which = np.unique(np.concatenate([place for place, _ in parts]), return_inverse=True)
    sums = np.bincount(which, np.concatenate([value for _, value in parts]), len(places))
    return places[sums != 0], sums[sums != 0]


def _at(array: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Values and positions on every axis."""
    return array.reshape(-1)[places].astype(np.float64), list(np.unravel_index(places, array.shape))


def _conv_forward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    values, (n, c, h, w) = _at(inputs["x"], places["x"])
    weights, parts = inputs["w"].astype(np.float64), []
    filters, channels = g.k // g.groups, g.c // g.groups
    for r, s, p, q, exists in windows_of(g, h, w):
        for member in range(filters):
            k = c // channels * filters + member
            products = values * weights[k, c % channels, r, s]
            parts.append((np.ravel_multi_index((n, k, p, q), g.y.shape, "clip")[exists], products[exists]))
    return _summed(parts)


def _conv_backward_data(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    values, (n, k, p, q) = _at(inputs["dy"], places["dy"])
    weights, parts = inputs["w"].astype(np.float64), []
    filters, channels = g.k // g.groups, g.c // g.groups
    for r, s, h, w, exists in elements_of(g, p, q):
        for member in range(channels):
            c = k // filters * channels + member
            products = values * weights[k, member, r, s]
            parts.append((np.ravel_multi_index((n, c, h, w), g.x.shape, "clip")[exists], products[exists]))
    return _summed(parts)


def _conv_backward_weight(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    values, (n, c, h, w) = _at(inputs["x"], places["x"])
    parts, filters, channels = [], g.k // g.groups, g.c // g.groups
    for r, s, p, q, exists in windows_of(g, h, w):
        for member in range(filters):
            k = (c // channels * filters + member)[exists]
            products = values[exists] * inputs["dy"][n[exists], k, p[exists], q[exists]].astype(np.float64)
            parts.append((np.ravel_multi_index((k, c[exists] % channels, r, s), g.filter.shape), products))
    return _summed(parts)


def _divisors(g: Any, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    if g.divisor_override is not None:
        return np.full(p.shape, float(g.divisor_override))
    return np.asarray(g.counted(0, p) * g.counted(1, q), np.float64)


def _avg_forward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    values, (n, c, h, w) = _at(inputs["x"], places["x"])
    links = [link[2:] for link in windows_of(g, h, w)]
    return _summed(
        [
            (np.ravel_multi_index((n, c, p, q), g.y.shape, "clip")[ok], values[ok] / _divisors(g, p[ok], q[ok]))
            for p, q, ok in links
        ]
    )


def _avg_backward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    values, (n, c, p, q) = _at(inputs["dy"], places["dy"])
    shares = values / _divisors(g, p, q)
    links = [link[2:] for link in elements_of(g, p, q)]
    return _summed([(np.ravel_multi_index((n, c, h, w), g.x.shape, "clip")[ok], shares[ok]) for h, w, ok in links])


def _max_forward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    """Of data that is nowhere negative."""
    values, (n, c, h, w) = _at(inputs["x"], places["x"])
    found = [
        (np.ravel_multi_index((n, c, p, q), g.y.shape, "clip")[ok], values[ok])
        for _, _, p, q, ok in windows_of(g, h, w)
    ]
    windows, which = np.unique(np.concatenate([place for place, _ in found]), return_inverse=True)
    largest = np.zeros(len(windows))
    np.maximum.at(largest, which, np.concatenate([value for _, value in found]))
    return windows[largest > 0], largest[largest > 0]


def _max_backward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    values, (n, c, p, q) = _at(inputs["dy"], places["dy"])
    links = [(np.clip(h, 0, g.h - 1), np.clip(w, 0, g.w - 1), ok) for _, _, h, w, ok in elements_of(g, p, q)]
    seen = np.array([np.where(ok, inputs["x"][n, c, h, w].astype(np.float64), -np.inf) for h, w, ok in links])
    first, which = seen.argmax(axis=0), np.arange(len(n))
    rows, columns = (np.array([link[axis] for link in links])[first, which] for axis in (0, 1))
    return _summed([(np.ravel_multi_index((n, c, rows, columns), g.x.shape), values)])


RULES: dict[str, dict[str, Callable[[Any, Arrays, Places], Nonzero]]] = {
    "conv_forward": {"y": _conv_forward},
    "conv_backward_data": {"dx": _conv_backward_data},
    "conv_backward_weight": {"dw": _conv_backward_weight},
    "avg_pool_forward": {"y": _avg_forward},
    "avg_pool_backward": {"dx": _avg_backward},
    "max_pool_forward": {"y": _max_forward},
    "max_pool_backward": {"dx": _max_backward},
}
