"""Every direction of convolution as one matrix product per group, so that an algorithm is only an order of a sum.

    out[g, m, t] = sum_i a[g, m, i] * b[g, i, t]

Terms that are padding, or lie between the inputs of a strided gradient, are zeros, which no order of a sum can tell
from absent ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conformance.operators import Arrays, ConvGeometry, Operator
from conformance.operators.spatial import padded, windows


@dataclass(frozen=True, slots=True)
class Product:
    """The two factors, in the inputs' values as float64, and the way back to the operator's main output."""

    a: np.ndarray
    """[G, M, KS]"""
    b: np.ndarray
    """[G, KS, T]"""
    shape: tuple[int, ...]
    """Of the output, channels first: [G*M, N, rows, columns], or that of dw."""
    batch_first: bool

    def restored(self, out: np.ndarray) -> np.ndarray:
        """The product [G, M, T] as the operator's output."""
        result = out.reshape(self.shape)
        return np.ascontiguousarray(result.swapaxes(0, 1)) if self.batch_first else result


def lowered(operator: Operator, geometry: ConvGeometry, inputs: Arrays) -> Product:
    """The matrix product that computes the operator's main output (y, dx or dw; bias and dbias apart)."""
    values = {name: array.astype(np.float64) for name, array in inputs.items()}
    return _LOWERINGS[operator.name](geometry, values)


def _patches(g: ConvGeometry, x: np.ndarray) -> np.ndarray:
    """[G, C/g*R*S, N*P*Q]."""
    view = windows(padded(x, g.padding, np.dtype(np.float64)), (g.r, g.s), g.stride, g.dilation, g.output_size)
    n, c, r, s, p, q = view.shape
    grouped = view.reshape(n, g.groups, c // g.groups, r, s, p, q).transpose(1, 2, 3, 4, 0, 5, 6)
    return grouped.reshape(g.groups, c // g.groups * r * s, n * p * q)


def _forward(g: ConvGeometry, values: Arrays) -> Product:
    a = values["w"].reshape(g.groups, g.k // g.groups, -1)
    return Product(a, _patches(g, values["x"]), (g.k, g.n, *g.output_size), batch_first=True)


def _backward_weight(g: ConvGeometry, values: Arrays) -> Product:
    dy = values["dy"].swapaxes(0, 1).reshape(g.groups, g.k // g.groups, -1)
    return Product(dy, _patches(g, values["x"]).swapaxes(1, 2), g.filter.shape, batch_first=False)


def _backward_data(g: ConvGeometry, values: Arrays) -> Product:
    """A stride-1 convolution of dy, spread out by the stride, with the flipped filter."""
    (p, q), (u, v) = g.output_size, g.stride
    (top, _), (left, _) = g.padding
    reach = (g.dilation[0] * (g.r - 1), g.dilation[1] * (g.s - 1))
    image = np.zeros((g.n, g.k, g.h + reach[0] + top, g.w + reach[1] + left))
    spread = image[:, :, reach[0] : reach[0] + (p - 1) * u + 1, reach[1] : reach[1] + (q - 1) * v + 1]
    rows, columns = spread.shape[2:]
    image[:, :, reach[0] : reach[0] + rows : u, reach[1] : reach[1] + columns : v] = values["dy"][
        :, :, : -(-rows // u), : -(-columns // v)
    ]
    view = windows(image[:, :, top:, left:], (g.r, g.s), (1, 1), g.dilation, (g.h, g.w))
    kg, cg = g.k // g.groups, g.c // g.groups
    b = view.reshape(g.n, g.groups, kg, g.r, g.s, g.h, g.w).transpose(1, 2, 3, 4, 0, 5, 6)
    flipped = values["w"][..., ::-1, ::-1].reshape(g.groups, kg, cg, g.r, g.s).transpose(0, 2, 1, 3, 4)
    a = flipped.reshape(g.groups, cg, kg * g.r * g.s)
    return Product(a, b.reshape(g.groups, kg * g.r * g.s, -1), (g.c, g.n, g.h, g.w), batch_first=True)


_LOWERINGS = {
    "conv_forward": _forward,
    "conv_backward_data": _backward_data,
    "conv_backward_weight": _backward_weight,
}
