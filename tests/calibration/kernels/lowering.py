"""Every direction of convolution, and of transposed convolution, and a matrix product itself, as one matrix product per
group, so that an algorithm is only an order of a sum.

    out[g, m, t] = sum_i a[g, m, i] * b[g, i, t]

Terms that are padding, or lie between the inputs of a strided gradient, are zeros, which no order of a sum can tell
from absent ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.operators import Arrays, ConvGeometry, Operator
from conformance.operators.conv_transpose.geometry import TransposedGeometry
from conformance.operators.conv_transpose.operators import mirrored
from conformance.operators.matmul.geometry import MatmulGeometry
from conformance.operators.matmul_grouped.geometry import GroupedGeometry
from conformance.operators.spatial import padded, spans, windows


@dataclass(frozen=True, slots=True)
class Product:
    """The two factors, in the inputs' values as float64, and the way back to the operator's main output."""

    a: np.ndarray
    """[G, M, KS]"""
    b: np.ndarray
    """[G, KS, T]"""
    shape: tuple[int, ...]
    """Shape of the output, channels first: [G*M, N, rows, columns], or that of dw."""
    batch_first: bool

    def restored(self, out: np.ndarray) -> np.ndarray:
        """Return the product [G, M, T] as the operator's output."""
        result = out.reshape(self.shape)
        return np.ascontiguousarray(result.swapaxes(0, 1)) if self.batch_first else result


@dataclass(frozen=True, slots=True)
class Ragged(Product):
    """A product whose columns are the rows of groups of several sizes, with zeros behind those of smaller groups."""

    taken: np.ndarray
    """[G, T], true at the rows that a group has."""

    def restored(self, out: np.ndarray) -> np.ndarray:
        """Return the product [G, M, T] as rows."""
        return np.ascontiguousarray(out.swapaxes(1, 2)[self.taken])


def lowered(operator: Operator, geometry: Any, inputs: Arrays) -> Product:
    """Return the matrix product that computes the operator's main output (y, dx or dw; bias and dbias apart)."""
    values = {name: array.astype(np.float64) for name, array in inputs.items()}
    return _LOWERINGS[operator.name](geometry, values)


def _patches(g: ConvGeometry, x: np.ndarray) -> np.ndarray:
    """Return the windows of x as [G, C/g*R*S, N*P*Q]."""
    view = windows(padded(x, g.padding, np.dtype(np.float64)), g.window, g.stride, g.dilation, g.output_size)
    return _by_group(g, view, g.c)


def _by_group(g: ConvGeometry, view: np.ndarray, channels: int) -> np.ndarray:
    """Reshape [N, channels, *window, *places] to [G, channels/g * taps, N * places]."""
    grouped = view.reshape(g.n, g.groups, channels // g.groups, *view.shape[2:])
    order = (*range(1, 3 + g.rank), 0, *range(3 + g.rank, 3 + 2 * g.rank))
    return grouped.transpose(order).reshape(g.groups, channels // g.groups * math.prod(g.window), -1)


def _forward(g: ConvGeometry, values: Arrays) -> Product:
    a = values["w"].reshape(g.groups, g.k // g.groups, -1)
    return Product(a, _patches(g, values["x"]), (g.k, g.n, *g.output_size), batch_first=True)


def _backward_weight(g: ConvGeometry, values: Arrays) -> Product:
    dy = values["dy"].swapaxes(0, 1).reshape(g.groups, g.k // g.groups, -1)
    return Product(dy, _patches(g, values["x"]).swapaxes(1, 2), g.filter.shape, batch_first=False)


def _backward_data(g: ConvGeometry, values: Arrays) -> Product:
    """Return a stride-1 convolution of dy, spread out by the stride, with the flipped filter."""
    first: list[Any] = [...]
    kept: list[Any] = [...]
    inner: list[Any] = [...]
    extent = []
    axes = zip(g.size, spans(g), g.stride, g.padding, g.output_size, strict=True)
    for size, span, u, (before, _), count in axes:
        extent.append(size + span - 1 + before)
        reached = min((count - 1) * u + 1, size + before)  # results behind the image depend on no element of it
        first.append(slice(span - 1, span - 1 + reached, u))
        kept.append(slice(-(-reached // u)))
        inner.append(slice(before, None))
    image = np.zeros((g.n, g.k, *extent))
    image[tuple(first)] = values["dy"][tuple(kept)]
    view = windows(image[tuple(inner)], g.window, (1,) * g.rank, g.dilation, g.size)
    kg, cg = g.k // g.groups, g.c // g.groups
    flipped = np.flip(values["w"], tuple(range(2, 2 + g.rank))).reshape(g.groups, kg, cg, *g.window)
    a = flipped.swapaxes(1, 2).reshape(g.groups, cg, -1)
    return Product(a, _by_group(g, view, g.k), (g.c, g.n, *g.size), batch_first=True)


def _transposed_forward(g: TransposedGeometry, values: Arrays) -> Product:
    """Return the data gradient of the mirror, whose images are the parts of y that windows reach."""
    return _backward_data(g.mirror, mirrored(g, values))


def _transposed_backward_data(g: TransposedGeometry, values: Arrays) -> Product:
    return _forward(g.mirror, mirrored(g, values))


def _transposed_backward_weight(g: TransposedGeometry, values: Arrays) -> Product:
    return _backward_weight(g.mirror, mirrored(g, values))


def _matmul(g: MatmulGeometry, values: Arrays) -> Product:
    """Return the product as that of the columns of b and the rows of a."""
    b = values["b"].reshape(g.groups, g.k // g.groups, g.c // g.groups)
    a = values["a"].reshape(g.n, g.groups, g.c // g.groups).transpose(1, 2, 0)
    return Product(b, a, (g.k, g.n), batch_first=True)


def _matmul_backward_a(g: MatmulGeometry, values: Arrays) -> Product:
    b = values["b"].reshape(g.groups, g.k // g.groups, g.c // g.groups)
    dy = values["dy"].reshape(g.n, g.groups, g.k // g.groups).transpose(1, 2, 0)
    return Product(b.swapaxes(1, 2), dy, (g.c, g.n), batch_first=True)


def _matmul_backward_b(g: MatmulGeometry, values: Arrays) -> Product:
    dy = values["dy"].reshape(g.n, g.groups, g.k // g.groups).transpose(1, 2, 0)
    a = values["a"].reshape(g.n, g.groups, g.c // g.groups).swapaxes(0, 1)
    return Product(dy, a, g.filter.shape, batch_first=False)


def _by_groups(g: GroupedGeometry, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows as a matrix for each group [G, T, columns], as long as the largest group, and which are its own."""
    taken = np.arange(max(g.sizes)) < np.array(g.sizes)[:, None]
    spread = np.zeros((*taken.shape, rows.shape[1]))
    spread[taken] = rows
    return spread, taken


def _grouped(g: GroupedGeometry, values: Arrays) -> Product:
    """Return the product as that of the columns of each b and the rows of its group."""
    a, taken = _by_groups(g, values["a"])
    b = values["b"].reshape(g.groups, g.k // g.groups, g.c // g.groups)
    return Ragged(b, a.swapaxes(1, 2), g.y.shape, batch_first=True, taken=taken)


def _grouped_backward_a(g: GroupedGeometry, values: Arrays) -> Product:
    dy, taken = _by_groups(g, values["dy"])
    b = values["b"].reshape(g.groups, g.k // g.groups, g.c // g.groups)
    return Ragged(b.swapaxes(1, 2), dy.swapaxes(1, 2), g.x.shape, batch_first=True, taken=taken)


def _grouped_backward_b(g: GroupedGeometry, values: Arrays) -> Product:
    (dy, _), (a, _) = (_by_groups(g, values[name]) for name in ("dy", "a"))
    return Product(dy.swapaxes(1, 2), a, g.filter.shape, batch_first=False)


_LOWERINGS: dict[str, Callable[[Any, Arrays], Product]] = {
    "conv_forward": _forward,
    "conv_backward_data": _backward_data,
    "conv_backward_weight": _backward_weight,
    "conv_transpose_forward": _transposed_forward,
    "conv_transpose_backward_data": _transposed_backward_data,
    "conv_transpose_backward_weight": _transposed_backward_weight,
    "matmul": _matmul,
    "gemm": _matmul,
    "matmul_backward_a": _matmul_backward_a,
    "matmul_backward_b": _matmul_backward_b,
    "matmul_grouped": _grouped,
    "matmul_grouped_backward_a": _grouped_backward_a,
    "matmul_grouped_backward_b": _grouped_backward_b,
}
