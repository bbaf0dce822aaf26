"""Convolution where groups are an axis: the same kernels on arrays that are reshaped before and after."""

from __future__ import annotations

import numpy as np

from . import conv
from .declared import direct, small_conv

LAYOUTS = ("gnhwc", "nhwgc", "gnwc", "nwgc", "gndhwc", "ndhwgc")


def _channels(layout):
    """Return the axes of an image's groups and of their channels."""
    return (0 if layout[0] == "g" else -2), -1


def image(array, layout):
    """Return an image as [N, C, ...]."""
    n, groups, channels, *size = (moved := np.moveaxis(array, _channels(layout), (1, 2))).shape
    return moved.reshape(n, groups * channels, *size)


def weights(array):
    """Reshape [G, K of a group, ..., C of a group] to [K, C of a group, ...]."""
    groups, filters, channels, *window = (moved := np.moveaxis(array, -1, 2)).shape
    return moved.reshape(groups * filters, channels, *window)


def stored_image(array, layout, groups):
    n, channels, *size = array.shape
    return np.moveaxis(array.reshape(n, groups, channels // groups, *size), (1, 2), _channels(layout))


def stored_weights(array, groups):
    return np.moveaxis(array.reshape(groups, -1, *array.shape[1:]), 2, -1)


@direct("conv_forward", layouts=LAYOUTS, when=small_conv)
def conv_forward(x, w, bias, *, layout, groups, stride, padding, dilation):
    how = {"groups": groups, "stride": stride, "padding": padding, "dilation": dilation}
    return stored_image(conv.conv_forward(image(x, layout), weights(w), bias, **how), layout, groups)


@direct("conv_backward_data", layouts=LAYOUTS, when=small_conv)
def conv_backward_data(dy, w, *, layout, groups, input_size, stride, padding, dilation):
    how = {"input_size": input_size, "groups": groups, "stride": stride, "padding": padding, "dilation": dilation}
    return stored_image(conv.conv_backward_data(image(dy, layout), weights(w), **how), layout, groups)


@direct("conv_backward_weight", layouts=LAYOUTS, when=small_conv)
def conv_backward_weight(x, dy, *, layout, groups, kernel_size, with_bias, stride, padding, dilation):
    how = {"kernel_size": kernel_size, "groups": groups, "stride": stride, "padding": padding, "dilation": dilation}
    found = conv.conv_backward_weight(image(x, layout), image(dy, layout), with_bias=with_bias, **how)
    dw, *dbias = found if with_bias else (found,)
    return (stored_weights(dw, groups), *dbias) if with_bias else stored_weights(dw, groups)
