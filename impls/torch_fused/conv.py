"""Convolution as a function of its own: saves x and w."""

from __future__ import annotations

import torch
from torch.nn.functional import conv2d, pad

from .geometry import PLAIN, Window, require_convolution
from .once import differentiable_once


def wide(dtype: torch.dtype) -> torch.dtype:
    """What is computed in: fp32, or fp64 for fp64 tensors."""
    return torch.promote_types(dtype, torch.float32)


def convolved(x, w, window: Window):
    """z[N,K,P,Q], new memory, not rounded to the storage format."""
    own, border = _split(window.padding)
    image, filters = x.to(wide(x.dtype)), w.to(wide(w.dtype))
    return conv2d(image if border is None else pad(image, border), filters, None, window.stride, own, *_rest(window))


def convolution_gradients(dz, x, w, window: Window, wanted: tuple[bool, bool]):
    """(dx, dw) in the storage format of x, None for what is not wanted; dz is in that of `wide`."""
    own, border = _split(window.padding)
    image, filters = x.to(dz.dtype), w.to(dz.dtype)
    if border is not None:
        image = pad(image, border)
    dilation, groups = _rest(window)
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dz, image, filters, None, window.stride, own, dilation, False, (0, 0), groups, (*wanted, False)
    )
    if dx is not None and border is not None:
        dx = pad(dx, [-side for side in border])
    return tuple(None if gradient is None else gradient.to(x.dtype) for gradient in (dx, dw))


def _split(padding):
    """What conv2d pads itself, and what is asymmetric and must be padded before (left, right, top, bottom)."""
    (top, bottom), (left, right) = padding
    if top == bottom and left == right:
        return (top, left), None
    return (0, 0), (left, right, top, bottom)


def _rest(window: Window):
    return window.dilation, window.groups


class Convolution(torch.autograd.Function):
    """Saved for backward: x and w."""

    @staticmethod
    def forward(ctx, x, w, window):
        ctx.save_for_backward(x, w)
        ctx.window = window
        return convolved(x, w, window).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        window, wanted = ctx.window, ctx.needs_input_grad[:2]

        def gradients(dy, x, w):
            return convolution_gradients(dy.to(wide(dy.dtype)), x, w, window, wanted)

        return *differentiable_once("Convolution", gradients, dy, *ctx.saved_tensors), None


def convolution(x, w, window: Window = PLAIN):
    """conv(x, w), x[N,C,H,W], w[K,C/groups,R,S], accumulated in fp32 and rounded once. No bias.

    Raises TypeError and ValueError for what has no meaning, before anything is computed.
    """
    require_convolution(x, w, window)
    return Convolution.apply(x, w, window)
