"""Convolution and its gradients, tap by tap, each a sum of products in accumulator precision (no BLAS)."""

from __future__ import annotations

import math

import numpy as np

from .declared import direct, small_conv
from .windows import accumulator, cropped, empty_image, output_size, padded, per_channel, places, result, taps


def _grouped(array: np.ndarray, groups: int, axis: int) -> np.ndarray:
    """Split channel axis `axis` into (groups, channels of a group), in accumulator precision."""
    shape = (*array.shape[:axis], groups, array.shape[axis] // groups, *array.shape[axis + 1 :])
    return array.astype(accumulator(array)).reshape(shape)


def _at(weights, tap):
    """Return [groups, K of a group, C of a group] of the filters at a tap."""
    return np.ascontiguousarray(weights[(..., *tap)])


def _flat(image):
    """Reshape an image to [N, groups, channels, positions]."""
    return np.ascontiguousarray(image).reshape(*image.shape[:3], math.prod(image.shape[3:]))


def convolved(x, w, stride, padding, dilation, groups):
    """Return y[n,k,p,q] in accumulator precision."""
    size = output_size(x.shape[2:], w.shape[2:], stride, padding, dilation)
    if x.shape[1] != w.shape[1] * groups:  # einsum repeats a single channel
        raise ValueError(f"x has {x.shape[1]} channels, the filter {w.shape[1]} in each of {groups} groups")
    image, weights = padded(_grouped(x, groups, 1), padding), _grouped(w, groups, 0)
    y = np.zeros((len(x), groups, weights.shape[1], math.prod(size)), image.dtype)
    for tap, seen in taps(w.shape[2:], stride, dilation, size):
        y += np.einsum("gkc,ngcp->ngkp", _at(weights, tap), _flat(image[seen]))
    return y.reshape(len(x), len(w), *size)


def image_gradient(dy, w, input_size, stride, padding, dilation, groups):
    """Return dx in accumulator precision; each output position adds its share to the inputs that it read."""
    gradient, weights = _flat(_grouped(dy, groups, 1)), _grouped(w, groups, 0)
    image = empty_image((len(dy), groups, w.shape[1]), input_size, padding, gradient.dtype)
    for tap, seen in taps(w.shape[2:], stride, dilation, dy.shape[2:]):
        shares = np.einsum("gkc,ngkp->ngcp", _at(weights, tap), gradient)
        image[seen] += shares.reshape(*shares.shape[:3], *dy.shape[2:])
    return cropped(image, padding, input_size).reshape(len(dy), groups * w.shape[1], *input_size)


def weight_gradient(x, dy, kernel_size, stride, padding, dilation, groups):
    """Return dw in accumulator precision, one sum over batch and output positions per weight."""
    image, gradient = padded(_grouped(x, groups, 1), padding), _flat(_grouped(dy, groups, 1))
    dw = np.empty((groups, gradient.shape[2], image.shape[2], *kernel_size), image.dtype)
    for tap, seen in taps(kernel_size, stride, dilation, dy.shape[2:]):
        dw[(..., *tap)] = np.einsum("ngcp,ngkp->gkc", _flat(image[seen]), gradient)
    return dw.reshape(dy.shape[1], -1, *kernel_size)


def stored(sums, dtype, into):
    """Return the sums plus the array `into`, if there is one, rounded once."""
    return (sums if into is None else sums + into.astype(sums.dtype)).astype(dtype)


@direct("conv_forward", dtypes=("int8", "uint8"), when=small_conv)
@direct("conv_forward", dtypes=("fp8_e4m3", "fp8_e5m2"), when=small_conv)
@direct("conv_forward", when=small_conv)
def conv_forward(x, w, bias, *, stride, padding, dilation, groups, into=None):
    """Return y; the bias is added before the rounding."""
    y = convolved(x, w, stride, padding, dilation, groups)
    if bias is not None:
        y += per_channel(bias.astype(y.dtype), y.shape[2:])
    return stored(y, result(x), into)


def require_outputs(dy, size, kernel_size, stride, padding, dilation):
    """Raise ValueError for a gradient of another size than the output has."""
    outputs = output_size(size, kernel_size, stride, padding, dilation)
    if dy.shape[2:] != outputs:
        raise ValueError(f"dy is {dy.shape[2:]}, the output {outputs}")


@direct("conv_backward_data", dtypes=("fp8_e4m3", "fp8_e5m2", "fp8_e5m2_e4m3"), when=small_conv)
@direct("conv_backward_data", when=small_conv)
def conv_backward_data(dy, w, *, input_size, stride, padding, dilation, groups, into=None):
    require_outputs(dy, input_size, w.shape[2:], stride, padding, dilation)
    return stored(image_gradient(dy, w, input_size, stride, padding, dilation, groups), result(dy), into)


@direct("conv_backward_weight", dtypes=("fp8_e4m3", "fp8_e5m2", "fp8_e5m2_e4m3"), when=small_conv)
@direct("conv_backward_weight", when=small_conv)
def conv_backward_weight(
    x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups, output_mask=(True, True), into=None
):
    """Return dw; dbias, the sum of dy."""
    require_outputs(dy, x.shape[2:], kernel_size, stride, padding, dilation)
    sums = []
    if output_mask[0]:
        sums.append(weight_gradient(x, dy, kernel_size, stride, padding, dilation, groups))
    if with_bias and output_mask[1]:
        sums.append(dy.astype(accumulator(dy)).sum(axis=places(dy)))
    held = into if isinstance(into, tuple) else (into,) * len(sums)
    found = tuple(stored(part, result(x), array) for part, array in zip(sums, held, strict=True))
    return found if len(found) > 1 else found[0]
