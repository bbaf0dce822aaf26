"""The convolution operators: check arguments, allocate results, and let an engine compute the products.

Layouts: "nchw" is x[N, C, H, W], w[K, C/g, R, S], y[N, K, P, Q]; "nhwc" is x[N, H, W, C], w[K, R, S, C/g],
y[N, P, Q, K]; and those of one and of three dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from conformance.implementations.windows import Extents, Padding, shape_of, sizes, windows

from .memory import Tensor, empty, tensor
from .plan import splits_for
from .product import Product, backward_data, backward_weight, forward
from .reduce import add_partials, channel_sums
from .storage import Format


class Work(Protocol):
    """A product as an engine computes it."""

    @property
    def blocks(self) -> int:
        """Number of blocks without splits."""
        ...

    def launch(self, out: Tensor, a: Tensor, b: Tensor, bias: Tensor | None, splits: int) -> None:
        """Compute the product; part `i` of `splits` parts of the depth is summed at `i * size of the result`."""
        ...


Engine = Callable[[Sequence[Product], Format], Sequence[Work]]
"""One way to compute products, which have their rows in common, on tensors of a format."""


def multiply(
    engine: Engine, products: Sequence[Product], out: Tensor, a: Tensor, b: Tensor, bias: Tensor | None = None
) -> Any:
    """Compute all products into one result, which they fill; where they are few and deep, by partial sums."""
    if not out.size:
        return out.array
    works = engine(products, b.format)
    splits = splits_for(products, sum(work.blocks for work in works))
    sums = out if splits == 1 else empty((splits * out.size,), np.dtype(out.format.wide))
    for work in works:
        work.launch(sums, a, b, bias, splits)
    if splits > 1:
        add_partials(out, sums, splits)
    return out.array


def _pair(first: Any, second: Any, layout: str) -> tuple[Tensor, Tensor]:
    operands = tensor(first, layout), tensor(second, layout)
    if operands[0].dtype != operands[1].dtype:
        raise TypeError(f"tensors are {operands[0].dtype} and {operands[1].dtype}; they must have one dtype")
    return operands


def _matching(what: str, actual: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    if actual != expected:
        raise ValueError(f"{what}: {actual} where {expected} are expected")


@dataclass(frozen=True)
class Convolution:
    """The operators on one engine. Results have the dtype of the inputs, or the given one."""

    engine: Engine
    result: np.dtype | None = None

    @property
    def kernels(self) -> tuple[Callable[..., Any], ...]:
        return self.conv_forward, self.conv_backward_data, self.conv_backward_weight

    def conv_forward(
        self, x: Any, w: Any, bias: Any, *, stride: Extents, padding: Padding, dilation: Extents, groups: int,
        layout: str,
    ) -> Any:  # fmt: skip
        """Return y = x cross-correlated with w, plus bias[K]."""
        x, w = _pair(x, w, layout)
        (n, c, size), (k, per_group, kernel) = (sizes(array.shape, layout) for array in (x, w))
        _matching("channels of x", (c,), (per_group * groups,))
        window = windows(size, kernel, stride, padding, dilation)
        shape = shape_of(n, k, tuple(axis.outputs for axis in window), layout)
        y = empty(shape, self.result or x.dtype, layout)
        offsets = None if bias is None else tensor(bias)
        return multiply(self.engine, forward(x, w, y, window, groups), y, w, x, offsets)

    def conv_backward_data(
        self, dy: Any, w: Any, *, input_size: Extents, stride: Extents, padding: Padding, dilation: Extents,
        groups: int, layout: str,
    ) -> Any:  # fmt: skip
        """Return dx: every input pixel gathers from the outputs whose window covers it."""
        dy, w = _pair(dy, w, layout)
        (n, *outputs), (k, per_group, kernel) = (sizes(array.shape, layout) for array in (dy, w))
        window = windows(input_size, kernel, stride, padding, dilation)
        _matching("channels and size of dy", tuple(outputs), (k, tuple(axis.outputs for axis in window)))
        dx = empty(shape_of(n, per_group * groups, input_size, layout), self.result or dy.dtype, layout)
        return multiply(self.engine, backward_data(dy, w, dx, window, groups), dx, w, dy)

    def conv_backward_weight(
        self, x: Any, dy: Any, *, kernel_size: Extents, with_bias: bool, stride: Extents, padding: Padding,
        dilation: Extents, groups: int, layout: str,
    ) -> Any:  # fmt: skip
        """Return dw, or (dw, dbias): sums over all images and output pixels."""
        x, dy = _pair(x, dy, layout)
        (n, c, size), (images, k, outputs) = (sizes(array.shape, layout) for array in (x, dy))
        window = windows(size, kernel_size, stride, padding, dilation)
        _matching("images and size of dy", (images, *outputs), (n, *(axis.outputs for axis in window)))
        dw = empty(shape_of(k, c // groups, kernel_size, layout), self.result or x.dtype, layout)
        weights = multiply(self.engine, backward_weight(x, dy, dw, window, groups), dw, dy, x)
        if not with_bias:
            return weights
        dbias, nothing = empty((k,), dy.dtype), empty((k,), np.dtype(dy.format.wide))
        channel_sums(dbias, dy, dy, nothing)
        return weights, dbias.array
