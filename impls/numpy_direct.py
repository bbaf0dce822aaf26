"""The definition, written down: one fp32 multiply-add per tap, in a fixed order, no BLAS.

Slow and plain on purpose; the other implementations are compared with the exact reference, not with this one.
16-bit inputs are widened, accumulated in fp32 and rounded once.
"""

from __future__ import annotations

import itertools

import numpy as np

from conformance import Implementation

numpy_direct = Implementation("numpy-direct")

EVERY_DTYPE = ("fp32", "bf16", "fp16", "fp64")


def small(geometry):
    """Up to half a GFLOP: beyond that a definition in Python takes minutes to say what it says on small problems."""
    return geometry.y.size * geometry.filter.size // geometry.k < 2**28


def _accumulator(array: np.ndarray) -> type:
    return np.float64 if array.dtype == np.float64 else np.float32


def _grouped(array: np.ndarray, groups: int, axis: int) -> np.ndarray:
    """Split channel axis `axis` into (groups, channels of a group), in accumulator precision."""
    shape = (*array.shape[:axis], groups, array.shape[axis] // groups, *array.shape[axis + 1 :])
    return array.astype(_accumulator(array)).reshape(shape)


def _output_size(x, kernel_size, stride, padding, dilation):
    return tuple(
        (size + sum(pad) - d * (window - 1) - 1) // u + 1
        for size, window, u, pad, d in zip(x.shape[-2:], kernel_size, stride, padding, dilation, strict=True)
    )


def _taps(kernel_size, stride, dilation, output_size):
    """For every tap (r, s): the slice of the padded image that it reads over all output positions."""
    for r, s in itertools.product(*map(range, kernel_size)):
        first = (r * dilation[0], s * dilation[1])
        rows, columns = (
            slice(start, start + (count - 1) * u + 1, u)
            for start, count, u in zip(first, output_size, stride, strict=True)
        )
        yield r, s, (..., rows, columns)


@numpy_direct.implements("conv_forward", dtypes=EVERY_DTYPE, when=small)
def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
    """y[n,k,p,q] accumulated tap by tap, channel by channel."""
    kernel_size = w.shape[2:]
    output_size = _output_size(x, kernel_size, stride, padding, dilation)
    image = np.pad(_grouped(x, groups, 1), ((0, 0), (0, 0), (0, 0), *padding))
    weights = _grouped(w, groups, 0)
    y = np.zeros((len(x), groups, weights.shape[1], *output_size), image.dtype)
    for r, s, seen in _taps(kernel_size, stride, dilation, output_size):
        for c in range(w.shape[1]):
            y += weights[:, :, c, r, s, None, None] * image[:, :, c][seen][:, :, None]
    y = y.reshape(len(x), len(w), *output_size)
    if bias is not None:
        y += bias.astype(y.dtype)[:, None, None]
    return y.astype(x.dtype)


@numpy_direct.implements("conv_backward_data", dtypes=EVERY_DTYPE, when=small)
def conv_backward_data(dy, w, *, input_size, stride, padding, dilation, groups):
    """dx, each output position adding its share to the inputs that it saw."""
    gradient, weights = _grouped(dy, groups, 1), _grouped(w, groups, 0)
    (top, bottom), (left, right) = padding
    height, width = input_size
    image = np.zeros((len(dy), groups, w.shape[1], top + height + bottom, left + width + right), gradient.dtype)
    for r, s, seen in _taps(w.shape[2:], stride, dilation, dy.shape[2:]):
        for k in range(weights.shape[1]):
            image[seen] += weights[:, k, :, r, s, None, None] * gradient[:, :, k, None]
    dx = image[..., top : top + height, left : left + width]
    return dx.reshape(len(dy), -1, height, width).astype(dy.dtype)


@numpy_direct.implements("conv_backward_weight", dtypes=EVERY_DTYPE, when=small)
def conv_backward_weight(x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups):
    """dw, one sum over batch and output positions per weight; dbias, the sum of dy."""
    image = np.pad(_grouped(x, groups, 1), ((0, 0), (0, 0), (0, 0), *padding))
    gradient = _grouped(dy, groups, 1)
    dw = np.empty((groups, gradient.shape[2], image.shape[2], *kernel_size), image.dtype)
    for r, s, seen in _taps(kernel_size, stride, dilation, dy.shape[2:]):
        for c in range(image.shape[2]):
            products = image[:, :, c][seen][:, :, None] * gradient
            dw[:, :, c, r, s] = products.sum(axis=(0, 3, 4))
    dw = dw.reshape(dy.shape[1], -1, *kernel_size).astype(x.dtype)
    if not with_bias:
        return dw
    return dw, dy.astype(gradient.dtype).sum(axis=(0, 2, 3)).astype(dy.dtype)
