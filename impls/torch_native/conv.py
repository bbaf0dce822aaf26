"""conv2d and its gradients."""

from __future__ import annotations

import torch
from torch.nn.functional import conv2d, pad

from .layout import empty, nchw, restored, split


def conv_forward(x, w, bias, *, stride, padding, dilation, groups, layout):
    own, border = split(padding)
    x, w = nchw(x, layout), nchw(w, layout)
    if border is not None:
        x = pad(x, border)
    return restored(conv2d(x, w, bias, stride, own, dilation, groups), layout)


def conv_backward_data(dy, w, *, input_size, stride, padding, dilation, groups, layout):
    own, border = split(padding)
    dy, w = nchw(dy, layout), nchw(w, layout)
    left, right, top, bottom = border or (0, 0, 0, 0)
    shape = (dy.shape[0], w.shape[1] * groups, top + input_size[0] + bottom, left + input_size[1] + right)
    x = empty(shape, layout, dy).zero_()
    dx = _backward(dy, x, w, None, stride, own, dilation, groups, (True, False, False))[0]
    dx = dx[:, :, top : top + input_size[0], left : left + input_size[1]]
    return restored(dx, layout)


def conv_backward_weight(
    x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups, layout, output_mask=(True, True)
):
    own, border = split(padding)
    x, dy = nchw(x, layout), nchw(dy, layout)
    shape = (dy.shape[1], x.shape[1] // groups, *kernel_size)
    w = empty(shape, layout, x).zero_()
    if border is not None:
        x = pad(x, border)
    bias_sizes = [dy.shape[1]] if with_bias else None
    asked = (False, output_mask[0], with_bias and output_mask[1])
    _, dw, dbias = _backward(dy, x, w, bias_sizes, stride, own, dilation, groups, asked)
    # oneDNN's path returns a dw that nobody asked for
    found = [*([restored(dw, layout)] if asked[1] else []), *([dbias] if asked[2] else [])]
    return tuple(found) if len(found) > 1 else found[0]


def _backward(dy, x, w, bias_sizes, stride, padding, dilation, groups, wanted):
    return torch.ops.aten.convolution_backward(
        dy, x, w, bias_sizes, stride, padding, dilation, False, (0, 0), groups, wanted
    )
