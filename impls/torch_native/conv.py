"""conv1d, conv2d, conv3d and their gradients."""

from __future__ import annotations

import torch
from torch.nn.functional import conv1d, conv2d, conv3d, pad

from conformance import Unsupported

from .layout import empty, nchw, restored, split

CONV = {1: conv1d, 2: conv2d, 3: conv3d}
AMX = torch.cpu._is_amx_tile_supported()


def conv_forward(x, w, bias, *, stride, padding, dilation, groups, layout):
    symmetric, border = split(padding)
    x, w = nchw(x, layout), nchw(w, layout)
    if AMX and x.device.type == "cpu":
        _refuse_what_amx_breaks(x, w, stride[-1], sum(padding[-1]), dilation[-1], groups)
    if border is not None:
        x = pad(x, border)
    return restored(CONV[len(stride)](x, w, bias, stride, symmetric, dilation, groups), layout)


def _refuse_what_amx_breaks(x, w, stride, padding, dilation, groups):
    """Refuse calls in which oneDNN's AMX code reads memory that was never written (verdicts vary) or does not end."""
    room, window = x.shape[-1] + padding - dilation * (w.shape[-1] - 1) - 1, w.shape[-1]
    if x.dtype == torch.bfloat16 and x.ndim == 5 and room < stride > 1 < window and w.shape[0] > groups:
        raise Unsupported("oneDNN's AMX convolution of bf16 reads beyond its buffer: one column of output and a stride")
    if x.dtype == torch.float16 and x.ndim == 3 and groups > 1 and window > 128:
        raise Unsupported("oneDNN's AMX convolution of fp16 does not end")


def conv_forward_of_int8(x, w, bias, **parameters):
    """Convolve in int32, which gives the sums; torch convolves int8 into int8, which wraps around."""
    return conv_forward(x.to(torch.int32), w.to(torch.int32), bias, **parameters)


def conv_backward_data(dy, w, *, input_size, stride, padding, dilation, groups, layout):
    symmetric, border = split(padding)
    dy, w = nchw(dy, layout), nchw(w, layout)
    sides = padding if border is not None else ((0, 0),) * len(padding)
    size = (before + extent + after for extent, (before, after) in zip(input_size, sides, strict=True))
    x = empty((dy.shape[0], w.shape[1] * groups, *size), layout, dy).zero_()
    dx = _backward(dy, x, w, None, stride, symmetric, dilation, groups, (True, False, False))[0]
    for axis, ((before, _), extent) in enumerate(zip(sides, input_size, strict=True), 2):
        dx = dx.narrow(axis, before, extent)
    return restored(dx, layout)


def conv_backward_weight(
    x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups, layout, output_mask=(True, True)
):
    symmetric, border = split(padding)
    x, dy = nchw(x, layout), nchw(dy, layout)
    shape = (dy.shape[1], x.shape[1] // groups, *kernel_size)
    w = empty(shape, layout, x).zero_()
    if border is not None:
        x = pad(x, border)
    bias_sizes = [dy.shape[1]] if with_bias else None
    mask = (False, output_mask[0], with_bias and output_mask[1])
    _, dw, dbias = _backward(dy, x, w, bias_sizes, stride, symmetric, dilation, groups, mask)
    # oneDNN's path returns dw even where it is not asked for
    gradients = [*([restored(dw, layout)] if mask[1] else []), *([dbias] if mask[2] else [])]
    return tuple(gradients) if len(gradients) > 1 else gradients[0]


def _backward(dy, x, w, bias_sizes, stride, padding, dilation, groups, mask):
    return torch.ops.aten.convolution_backward(
        dy, x, w, bias_sizes, stride, padding, dilation, False, (0,) * len(stride), groups, mask
    )
