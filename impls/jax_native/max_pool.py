"""Max pooling: jax.lax.reduce_window and its transpose, select_and_scatter, which adds up in fp32 (fp64 for fp64)."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from . import checks
from . import layout as axes
from .pool import _output_extent

STATIC = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "layout")


def _reduced(x, least, larger, kernel_size, stride, padding, dilation, ceil_mode, layout):
    """Reduce every window by `larger`. A dilation of 1 is left out, because XLA has no gradient of dilated ones."""
    border = axes.shape(layout, (0, 0), (0, 0), _reach(x, kernel_size, stride, padding, dilation, ceil_mode, layout))
    window, steps = (axes.on_spatial(given, layout) for given in (kernel_size, stride))
    spread = {} if set(dilation) == {1} else {"window_dilation": axes.on_spatial(dilation, layout)}
    return lax.reduce_window(x, np.array(least, x.dtype), larger, window, steps, border, **spread)


def _spans(kernel_size, dilation):
    return tuple(d * (taps - 1) + 1 for taps, d in zip(kernel_size, dilation, strict=True))


def _reach(x, kernel_size, stride, padding, dilation, ceil_mode, layout):
    """Return the padding up to the end of the last window. Padding behind it is never read, however wide, and in ceil
    mode would make a window more: one that begins beyond the image does not count."""
    reach = []
    sized = zip(axes.size(x, layout), _spans(kernel_size, dilation), stride, padding, strict=True)
    for size, span, step, (before, after) in sized:
        last = (_output_extent(size, span, step, (before, after), ceil_mode) - 1) * step
        reach.append((before, max(0, last + span - before - size)))
    return reach


def _check(x, kernel_size, stride, padding, dilation, ceil_mode, layout):
    checks.floating(x=x)
    checks.images(layout, x=x)
    reach = _reach(x, kernel_size, stride, padding, dilation, ceil_mode, layout)
    inside = [(before, min(after, end)) for (before, after), (_, end) in zip(padding, reach, strict=True)]
    checks.pooling(axes.size(x, layout), _spans(kernel_size, dilation), stride, inside, None)


@partial(jax.jit, static_argnames=STATIC)
def max_pool_forward(x, *, kernel_size, stride, padding, dilation, ceil_mode, layout):
    """Return y. Raises ValueError for a window that does not fit or holds padding only, TypeError for integers."""
    _check(x, kernel_size, stride, padding, dilation, ceil_mode, layout)
    parameters = (kernel_size, stride, padding, dilation, ceil_mode, layout)
    y = _reduced(x, -np.inf, lax.max, *parameters)
    # XLA on the CPU loses NaN in maxima of large images whose windows lie side by side (openxla/xla issue 21461)
    missing = _reduced(jnp.isnan(x), False, lax.bitwise_or, *parameters)
    return jnp.where(missing, np.array(np.nan, x.dtype), y)


@partial(jax.jit, static_argnames=STATIC)
def max_pool_backward(dy, x, *, kernel_size, stride, padding, dilation, ceil_mode, layout):
    """Return dx, widened before the sum. Raises as max_pool_forward does, and ValueError for a dy not of y's shape."""
    _check(x, kernel_size, stride, padding, dilation, ceil_mode, layout)
    wide = axes.wide(x.dtype)
    y, transposed = jax.vjp(
        lambda image: _reduced(image, -np.inf, lax.max, kernel_size, stride, padding, dilation, ceil_mode, layout),
        x.astype(wide),
    )
    checks.shape("dy", dy, y.shape)
    return transposed(dy.astype(wide))[0].astype(dy.dtype)
