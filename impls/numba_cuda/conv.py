"""The convolution operators: arguments checked, results made, products computed by an engine.

Layouts: "nchw" is x[N, C, H, W], w[K, C/g, R, S], y[N, K, P, Q]; "nhwc" is x[N, H, W, C], w[K, R, S, C/g],
y[N, P, Q, K].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .engine import Engine
from .memory import Tensor, empty, tensor
from .plan import splits_for
from .product import Padding, Pair, Product, axes, backward_data, backward_weight, forward, shape_of, windows
from .reduce import add_partials, channel_sums


def multiply(
    engine: Engine,
    products: Sequence[Product],
    out: Tensor,
    operands: tuple[Tensor, Tensor],
    bias: Tensor | None = None,
) -> None:
    """All products into one result, which they fill; where they are few and deep, by partial sums."""
    splits = splits_for(products, engine.blocks(products, operands))
    if splits == 1:
        engine.run(products, out, operands, bias, 1)
        return
    parts = empty((splits * out.size,), np.dtype(out.format.wide))
    engine.run(products, parts, operands, bias, splits)
    add_partials(out, parts, splits)


def _pair(first: Any, second: Any) -> tuple[Tensor, Tensor]:
    operands = tensor(first), tensor(second)
    if operands[0].dtype != operands[1].dtype:
        raise TypeError(f"tensors are {operands[0].dtype} and {operands[1].dtype}; they must have one dtype")
    return operands


def _matching(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{what}: {found} where {expected} are expected")


@dataclass(frozen=True)
class Convolution:
    """The three directions on one engine. Results have the dtype of the inputs, or the given one."""

    engine: Engine
    result: np.dtype | None = None

    def forward(
        self, x: Any, w: Any, bias: Any, *, stride: Pair, padding: Padding, dilation: Pair, groups: int, layout: str
    ) -> Any:
        """y = x cross-correlated with w, plus bias[K]."""
        images, weights = _pair(x, w)
        n, c, *size = axes(images.shape, layout)
        k, per_group, *kernel = axes(weights.shape, layout)
        _matching("channels of x", c, per_group * groups)
        window = windows((size[0], size[1]), (kernel[0], kernel[1]), stride, padding, dilation)
        y = empty(shape_of(n, k, (window[0].outputs, window[1].outputs), layout), self.result or images.dtype)
        products = forward(images, weights, y, window, groups, layout)
        multiply(self.engine, products, y, (weights, images), None if bias is None else tensor(bias))
        return y.array

    def backward_data(
        self, dy: Any, w: Any, *, input_size: Pair, stride: Pair, padding: Padding, dilation: Pair, groups: int,
        layout: str,
    ) -> Any:  # fmt: skip
        """dx: every input pixel gathers from the outputs whose window covers it."""
        outputs, weights = _pair(dy, w)
        n, k, *size = axes(outputs.shape, layout)
        filters, per_group, *kernel = axes(weights.shape, layout)
        _matching("channels of dy", k, filters)
        window = windows(input_size, (kernel[0], kernel[1]), stride, padding, dilation)
        _matching("rows of dy", size[0], window[0].outputs)
        _matching("columns of dy", size[1], window[1].outputs)
        dx = empty(shape_of(n, per_group * groups, input_size, layout), self.result or outputs.dtype)
        multiply(self.engine, backward_data(outputs, weights, dx, window, groups, layout), dx, (weights, outputs))
        return dx.array

    def backward_weight(
        self, x: Any, dy: Any, *, kernel_size: Pair, with_bias: bool, stride: Pair, padding: Padding, dilation: Pair,
        groups: int, layout: str,
    ) -> Any:  # fmt: skip
        """dw, or (dw, dbias): sums over all images and output pixels."""
        images, outputs = _pair(x, dy)
        n, c, *size = axes(images.shape, layout)
        _matching("images of dy", axes(outputs.shape, layout)[0], n)
        k = axes(outputs.shape, layout)[1]
        window = windows((size[0], size[1]), kernel_size, stride, padding, dilation)
        _matching("rows of dy", axes(outputs.shape, layout)[2], window[0].outputs)
        dw = empty(shape_of(k, c // groups, kernel_size, layout), self.result or images.dtype)
        multiply(self.engine, backward_weight(images, outputs, dw, window, groups, layout), dw, (outputs, images))
        return (dw.array, _bias_gradient(outputs, layout)) if with_bias else dw.array


def _bias_gradient(dy: Tensor, layout: str) -> Any:
    channels = axes(dy.shape, layout)[1]
    dbias, nothing = empty((channels,), dy.dtype), empty((channels,), np.dtype(dy.format.wide))
    channel_sums(dbias, dy, dy, nothing, layout)
    return dbias.array
