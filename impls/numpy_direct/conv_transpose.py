"""Transposed convolution and its gradients: those of a convolution, with x and y exchanged."""

from __future__ import annotations

import numpy as np

from .conv import convolved, image_gradient, stored, weight_gradient
from .declared import direct, small_transposed
from .windows import accumulator, per_channel, places


def require_output_padding(output_padding, stride, dilation):
    for more, u, d in zip(output_padding, stride, dilation, strict=True):
        if not 0 <= more < max(u, d):
            raise ValueError(f"output padding {more} must be smaller than the stride, {u}, or the dilation, {d}")


def output_size(size, kernel_size, stride, padding, output_padding, dilation):
    """Return the output's size: on every axis the end of the last window, less cropping, plus output padding."""
    require_output_padding(output_padding, stride, dilation)
    axes = zip(size, kernel_size, stride, padding, output_padding, dilation, strict=True)
    found = tuple((n - 1) * u - sum(pad) + d * (taps - 1) + 1 + more for n, taps, u, pad, more, d in axes)
    if min(found) < 1:
        raise ValueError(f"padding leaves an output of {found}")
    return found


def left_to_crop(padding, output_padding):
    """Return the padding less output padding at the end, at least 0; output padding beyond is outside all windows."""
    return tuple((before, max(0, after - more)) for (before, after), more in zip(padding, output_padding, strict=True))


@direct("conv_transpose_forward", when=small_transposed)
def conv_transpose_forward(x, w, bias, *, stride, padding, output_padding, dilation, groups, into=None):
    """Return y: each pixel of x adds its share to its window; the bias is added before the rounding."""
    if x.shape[1] != len(w):
        raise ValueError(f"x has {x.shape[1]} channels, the filter {len(w)}")
    size = output_size(x.shape[2:], w.shape[2:], stride, padding, output_padding, dilation)
    y = image_gradient(x, w, size, stride, left_to_crop(padding, output_padding), dilation, groups)
    if bias is not None:
        y += per_channel(bias.astype(y.dtype), size)
    return stored(y, x.dtype, into)


@direct("conv_transpose_backward_data", when=small_transposed)
def conv_transpose_backward_data(dy, w, *, stride, padding, output_padding, dilation, groups, into=None):
    """Return dx, a convolution of dy, in as many places as x has: output padding may have room for further windows."""
    require_output_padding(output_padding, stride, dilation)
    if dy.shape[1] != w.shape[1] * groups:
        raise ValueError(f"dy has {dy.shape[1]} channels, the filter {w.shape[1]} in each of {groups} groups")
    axes = zip(dy.shape[2:], w.shape[2:], stride, padding, output_padding, dilation, strict=True)
    size = tuple((p - more + sum(pad) - d * (taps - 1) - 1) // u + 1 for p, taps, u, pad, more, d in axes)
    dx = convolved(dy, w, stride, left_to_crop(padding, output_padding), dilation, groups)
    return stored(dx[(..., *map(slice, size))], dy.dtype, into)


@direct("conv_transpose_backward_weight", when=small_transposed)
def conv_transpose_backward_weight(
    x, dy, *, kernel_size, with_bias, stride, padding, output_padding, dilation, groups,
    output_mask=(True, True), into=None,
):  # fmt: skip
    """Return dw; dbias, the sum of dy."""
    size = output_size(x.shape[2:], kernel_size, stride, padding, output_padding, dilation)
    if dy.shape[2:] != size:
        raise ValueError(f"dy is {dy.shape[2:]}, the output {size}")
    sums = []
    if output_mask[0]:
        cropped = left_to_crop(padding, output_padding)
        sums.append(weight_gradient(dy, x, kernel_size, stride, cropped, dilation, groups))
    if with_bias and output_mask[1]:
        sums.append(dy.astype(accumulator(dy)).sum(axis=places(dy)))
    held = into if isinstance(into, tuple) else (into,) * len(sums)
    found = tuple(stored(np.asarray(part), x.dtype, array) for part, array in zip(sums, held, strict=True))
    return found if len(found) > 1 else found[0]
