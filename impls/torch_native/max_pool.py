"""max_pool2d, max_pool3d and their gradients; for padding that torch cannot do, over an image padded before."""

from __future__ import annotations

import torch
from torch.nn.functional import max_pool2d, max_pool3d, pad

from .layout import nchw, restored
from .pool import _axes, _border, _own, rows_as_images

MAXIMUM = {2: max_pool2d, 3: max_pool3d}


def _prepared(x, kernel_size, stride, padding, dilation, ceil_mode):
    """Return image and parameters for torch, and the padding that was added before (left, right, top, bottom)."""
    if symmetric := _own(padding, kernel_size):
        return x, (kernel_size, stride, symmetric, dilation, ceil_mode), None
    spans = [d * (taps - 1) + 1 for taps, d in zip(kernel_size, dilation, strict=True)]
    axes = _axes(x.shape[2:], spans, stride, padding)
    # padding that no window begins in, or reaches, may be as wide as a window
    starts = [(-axis.before, (axis.outputs(ceil_mode) - 1) * axis.step - axis.before) for axis in axes]
    if any(first + a.window <= 0 or last >= a.size for (first, last), a in zip(starts, axes, strict=True)):
        raise ValueError(f"padding {padding}: a window of {tuple(kernel_size)} holds nothing else")
    if any(axis.size + axis.before + axis.after < axis.window for axis in axes):
        raise ValueError(f"a window of {tuple(kernel_size)} is larger than the padded image")
    border = _border(axes, [axis.outputs(ceil_mode) for axis in axes])
    return pad(x, border, value=float("-inf")), (kernel_size, stride, (0,) * len(stride), dilation, False), border


@rows_as_images
def max_pool_forward(x, *, kernel_size, stride, padding, dilation, ceil_mode, layout):
    """Compute y through max_pool2d or max_pool3d."""
    image, parameters, _ = _prepared(nchw(x, layout), kernel_size, stride, padding, dilation, ceil_mode)
    return restored(MAXIMUM[len(stride)](image, *parameters), layout)


@rows_as_images
def max_pool_backward(dy, x, *, kernel_size, stride, padding, dilation, ceil_mode, layout):
    """Compute dx by aten's max_pool2d_with_indices_backward (or max_pool3d's), which adds up in the storage format."""
    image, parameters, border = _prepared(nchw(x, layout), kernel_size, stride, padding, dilation, ceil_mode)
    aten = torch.ops.aten
    forward, backward = {
        2: (aten.max_pool2d_with_indices, aten.max_pool2d_with_indices_backward),
        3: (aten.max_pool3d_with_indices, aten.max_pool3d_with_indices_backward),
    }[len(stride)]
    _, indices = forward(image, *parameters)
    dx = backward(nchw(dy, layout), image, *parameters, indices)
    return restored(dx if border is None else pad(dx, tuple(-side for side in border)), layout)
