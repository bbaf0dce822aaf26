"""Convolution as a function of its own: saves x and w."""

from __future__ import annotations

import torch
from torch.nn.functional import conv2d, pad

from ..layout import split, wide
from .once import differentiable_once
from .parameters import PLAIN, Parameters, require_convolution


def convolved(x, w, window: Parameters):
    """Return z[N,K,P,Q] in new memory, not rounded to the storage format."""
    symmetric, border = split(window.padding)
    image, filters = x.to(wide(x.dtype)), w.to(wide(w.dtype))
    if border is not None:
        image = pad(image, border)
    return conv2d(image, filters, None, window.stride, symmetric, window.dilation, window.groups)


def convolution_gradients(dz, x, w, window: Parameters, needed: tuple[bool, bool]):
    """Return (dx, dw) in the storage format of x, None for one that is not wanted; dz has the format `wide`."""
    symmetric, border = split(window.padding)
    image, filters = x.to(dz.dtype), w.to(dz.dtype)
    if border is not None:
        image = pad(image, border)
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dz, image, filters, None, window.stride, symmetric, window.dilation, False, (0, 0), window.groups,
        (*needed, False),
    )  # fmt: skip
    if dx is not None and border is not None:
        dx = pad(dx, [-side for side in border])
    return tuple(None if gradient is None else gradient.to(x.dtype) for gradient in (dx, dw))


class Convolution(torch.autograd.Function):
    """Convolution that saves x and w for backward."""

    @staticmethod
    def forward(ctx, x, w, window):
        ctx.save_for_backward(x, w)
        ctx.window = window
        return convolved(x, w, window).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        window, needed = ctx.window, ctx.needs_input_grad[:2]

        def gradients(dy, x, w):
            return convolution_gradients(dy.to(wide(dy.dtype)), x, w, window, needed)

        return *differentiable_once("Convolution", gradients, dy, *ctx.saved_tensors), None


def convolution(x, w, window: Parameters = PLAIN):
    """Return conv(x, w), x[N,C,H,W], w[K,C/groups,R,S], accumulated in fp32 and rounded once, without a bias.

    Raises TypeError and ValueError for invalid arguments, before anything is computed.
    """
    require_convolution(x, w, window)
    return Convolution.apply(x, w, window)
