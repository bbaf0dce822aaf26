"""Average pooling: jax.lax.reduce_window and its transpose, summed in fp32 (fp64 for fp64)."""

from __future__ import annotations

from functools import partial, reduce
from itertools import starmap

import jax
import numpy as np
from jax import lax

from . import checks
from . import layout as axes

STATIC = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override", "layout")


def _output_extent(size, window, stride, padding, ceil_mode):
    """Count windows of an axis. In ceil mode one may overhang, unless it starts behind image and padding before."""
    rest = size + sum(padding) - window
    if not ceil_mode:
        return rest // stride + 1
    extent = -(-rest // stride) + 1
    return extent - ((extent - 1) * stride >= size + padding[0])


def _overhang(size, window, stride, padding, ceil_mode):
    """Return how far the last window reaches beyond the padded image."""
    last = (_output_extent(size, window, stride, padding, ceil_mode) - 1) * stride
    return max(0, last + window - size - sum(padding))


def _counts(size, window, stride, padding, ceil_mode, count_include_pad):
    """Count the positions of each window of one axis inside the image, or inside the padded image."""
    first = np.arange(_output_extent(size, window, stride, padding, ceil_mode)) * stride - padding[0]
    low, high = (-padding[0], size + padding[1]) if count_include_pad else (0, size)
    return np.minimum(first + window, high) - np.maximum(first, low)


def _divisor(by_axis, count_include_pad, layout):
    """Count the positions of each window that are averaged, in a shape that broadcasts against y."""
    counts = reduce(np.multiply.outer, (_counts(*axis, count_include_pad) for axis in by_axis))
    return counts[..., None] if layout.endswith("c") else counts


def _pooled(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, layout):
    """Return y, linear in x: widened before the sum, because reduce_window adds in the format it is given."""
    by_axis = [(*axis, ceil_mode) for axis in zip(axes.size(x, layout), kernel_size, stride, padding, strict=True)]
    reach = [(before, after + over) for (before, after), over in zip(padding, starmap(_overhang, by_axis), strict=True)]
    border = axes.shape(layout, (0, 0), (0, 0), reach)
    window, steps = (axes.on_spatial(given, layout) for given in (kernel_size, stride))
    wide = axes.wide(x.dtype)
    sums = lax.reduce_window(x.astype(wide), np.zeros((), wide), lax.add, window, steps, border)
    divisor = divisor_override or _divisor(by_axis, count_include_pad, layout)
    return (sums / np.asarray(divisor, wide)).astype(x.dtype)


@partial(jax.jit, static_argnames=STATIC)
def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, layout):
    """Return y. Raises ValueError for a window that does not fit, TypeError for integers."""
    checks.floating(x=x)
    checks.images(layout, x=x)
    checks.pooling(axes.size(x, layout), kernel_size, stride, padding, divisor_override)
    return _pooled(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, layout)


@partial(jax.jit, static_argnames=(*STATIC, "input_size"))
def avg_pool_backward(
    dy, *, input_size, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, layout
):
    """Return dx, the transpose of pooling. Raises as avg_pool_forward does, and ValueError for a dy not of y's
    shape."""
    checks.floating(dy=dy)
    checks.images(layout, dy=dy)
    checks.pooling(input_size, kernel_size, stride, padding, divisor_override)
    x = jax.ShapeDtypeStruct(axes.shape(layout, dy.shape[0], axes.channels(dy, layout), input_size), dy.dtype)

    def forward(x):
        return _pooled(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, layout)

    checks.shape("dy", dy, jax.eval_shape(forward, x).shape)
    return jax.linear_transpose(forward, x)(dy)[0]
