"""conv_transpose1d, conv_transpose2d, conv_transpose3d and their gradients."""

from __future__ import annotations

import torch
from torch.nn.functional import conv_transpose1d, conv_transpose2d, conv_transpose3d, pad

from .layout import border_of, empty, nchw, restored

CONV_TRANSPOSE = {1: conv_transpose1d, 2: conv_transpose2d, 3: conv_transpose3d}


def split(padding, output_padding):
    """Return the padding that torch crops itself; its output padding; and, where sides differ, the border to crop after
    that, from which output padding takes back a part."""
    if all(before == after for before, after in padding):
        return tuple(before for before, _ in padding), output_padding, None
    rests = [more - after for (_, after), more in zip(padding, output_padding, strict=True)]
    border = [(before, max(0, -rest)) for (before, _), rest in zip(padding, rests, strict=True)]
    return (0,) * len(padding), tuple(max(0, rest) for rest in rests), border


def conv_transpose_forward(x, w, bias, *, stride, padding, output_padding, dilation, groups, layout):
    symmetric, more, border = split(padding, output_padding)
    x, w = nchw(x, layout), nchw(w, layout)
    y = CONV_TRANSPOSE[len(stride)](x, w, bias, stride, symmetric, more, groups, dilation)
    for axis, (before, after) in enumerate(border or (), 2):
        y = y.narrow(axis, before, y.shape[axis] - before - after)
    return restored(y, layout)


def conv_transpose_backward_data(dy, w, *, stride, padding, output_padding, dilation, groups, layout):
    symmetric, more, border = split(padding, output_padding)
    dy, w = nchw(dy, layout), nchw(w, layout)
    axes = zip(dy.shape[2:], w.shape[2:], stride, padding, output_padding, dilation, strict=True)
    size = ((p - o + sum(sides) - d * (taps - 1) - 1) // u + 1 for p, taps, u, sides, o, d in axes)
    x = empty((dy.shape[0], w.shape[0], *size), layout, dy).zero_()
    if border is not None:
        dy = pad(dy, border_of(border))
    gradients = _backward(dy, x, w, None, stride, symmetric, dilation, more, groups, (True, False, False))
    return restored(gradients[0], layout)


def conv_transpose_backward_weight(
    x, dy, *, kernel_size, with_bias, stride, padding, output_padding, dilation, groups, layout,
    output_mask=(True, True),
):  # fmt: skip
    symmetric, more, border = split(padding, output_padding)
    x, dy = nchw(x, layout), nchw(dy, layout)
    w = empty((x.shape[1], dy.shape[1] // groups, *kernel_size), layout, x).zero_()
    if border is not None:
        dy = pad(dy, border_of(border))
    mask = (False, output_mask[0], with_bias and output_mask[1])
    bias_sizes = [dy.shape[1]] if with_bias else None
    _, dw, dbias = _backward(dy, x, w, bias_sizes, stride, symmetric, dilation, more, groups, mask)
    gradients = [*([restored(dw, layout)] if mask[1] else []), *([dbias] if mask[2] else [])]
    return tuple(gradients) if len(gradients) > 1 else gradients[0]


def _backward(dy, x, w, bias_sizes, stride, padding, dilation, output_padding, groups, mask):
    return torch.ops.aten.convolution_backward(
        dy, x, w, bias_sizes, stride, padding, dilation, True, output_padding, groups, mask
    )
