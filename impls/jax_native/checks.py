"""Refuses invalid arguments by name: jax clamps extents at 0 and broadcasts, and results would be NaN."""

from __future__ import annotations

import jax.numpy as jnp

from . import layout as axes


def floating(**arrays):
    for name, array in arrays.items():
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(f"{name} is {array.dtype}: must be of a floating-point dtype")
    dtypes = [str(array.dtype) for array in arrays.values()]
    if len(set(dtypes)) > 1:
        raise TypeError(f"{' and '.join(arrays)} are {' and '.join(dtypes)}: must have one dtype")


def images(layout, **arrays):
    for name, array in arrays.items():
        if array.ndim != len(layout) or 0 in array.shape[1:]:
            raise ValueError(
                f"{name} has shape {array.shape}: must have {len(layout)} axes ({layout}), and none empty but the first"
            )


def shape(name, array, expected):
    if array.shape != tuple(expected):
        raise ValueError(f"{name} has shape {array.shape}: must be {tuple(expected)}")


def given(**arrays):
    for name, array in arrays.items():
        if array is None:
            raise TypeError(f"{name} is None: must be an array")


def _least(name, values, lowest):
    if min(values) < lowest:
        raise ValueError(f"{name}={values}: must be at least {lowest}")


def _window_fits(size, window, padding, dilation):
    _least("padding", [side for sides in padding for side in sides], 0)
    names = ("depth", "height", "width")[-len(size) :]
    for name, extent, taps, pad, d in zip(names, size, window, padding, dilation, strict=True):
        span, room = d * (taps - 1) + 1, extent + sum(pad)
        if span > room:
            raise ValueError(f"the window spans {span} on the {name}, more than the padded image's {room}")


def pooling(size, kernel_size, stride, padding, divisor_override):
    """Raise ValueError for a window larger than the padded image, padding that fills a window, or a divisor below 1."""
    _least("kernel_size", kernel_size, 1)
    _least("stride", stride, 1)
    _window_fits(size, kernel_size, padding, (1,) * len(size))
    for taps, pad in zip(kernel_size, padding, strict=True):
        if max(pad) >= taps:
            raise ValueError(f"padding {pad} fills a window of {taps}: must be smaller")
    if divisor_override is not None:
        _least("divisor_override", (divisor_override,), 1)


def convolution(x, w, stride, padding, dilation, groups, layout):
    """Raise ValueError where channels do not match the groups, or the window is larger than the padded image."""
    images(layout, x=x, w=w)
    _least("stride", stride, 1)
    _least("dilation", dilation, 1)
    _least("groups", (groups,), 1)
    c, per_group, k = axes.channels(x, layout), axes.channels(w, layout), w.shape[0]
    if c != per_group * groups:
        raise ValueError(
            f"x has {c} channels: must be {per_group * groups}, w's {per_group} in each of {groups} groups"
        )
    if k % groups:
        raise ValueError(f"w has {k} output channels, which {groups} groups do not divide")
    _window_fits(axes.size(x, layout), axes.size(w, layout), padding, dilation)


def per_channel(k, dtype, **vectors):
    """Require all or none of the per-channel `vectors`, each of shape (k,) and of the accumulator's dtype."""
    present = {name: vector for name, vector in vectors.items() if vector is not None}
    if len(present) not in (0, len(vectors)):
        raise ValueError(f"{' and '.join(vectors)} are given together: only {' and '.join(present)} is")
    for name, vector in present.items():
        shape(name, vector, (k,))
        if vector.dtype != dtype:
            raise TypeError(f"{name} is {vector.dtype}: must be {dtype}")


def normalisation(eps, momentum=0.0):
    """Raise ValueError for an eps below 0 or a momentum outside of 0 to 1; NaN is refused for both."""
    if not eps >= 0:
        raise ValueError(f"eps={eps}: must be a number that is not negative")
    if not 0 <= momentum <= 1:
        raise ValueError(f"momentum={momentum}: must be from 0 to 1")


def variance_defined(z, layout):
    if z.size // axes.channels(z, layout) < 2:
        raise ValueError(f"z has shape {z.shape}, one element a channel: its variance is undefined")
