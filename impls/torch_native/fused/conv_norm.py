"""Convolution and batch norm as one function: its backward computes the convolution again instead of keeping it.

A convolution's backward needs its input, batch norm's backward the convolution's output, which is computed again from
the saved input. The price is one more convolution in backward.
"""

from __future__ import annotations

import torch

from ..layout import wide
from .conv import convolution_gradients, convolved
from .norm import STANDARD, Convention, normalization_gradients_, normalize_, updated
from .once import differentiable_once
from .parameters import PLAIN, Parameters, require_convolution, require_normalization


class ConvBatchNorm(torch.autograd.Function):
    """The pair, which saves for backward x and w, and the vectors gamma, mean and var. Statistics carry no gradient."""

    @staticmethod
    def forward(ctx, x, w, gamma, beta, window, convention):
        z = convolved(x, w, window)
        mean, var = convention.statistics(z)
        ctx.save_for_backward(x, w, gamma, mean, var)
        ctx.window, ctx.convention = window, convention
        ctx.mark_non_differentiable(mean, var)
        return normalize_(z, mean, var, gamma, beta, convention).to(x.dtype), mean, var

    @staticmethod
    def backward(ctx, dy, *_):
        window, convention, needed = ctx.window, ctx.convention, ctx.needs_input_grad[:2]

        def gradients(dy, *saved):
            return pair_gradients(dy, *saved, window, convention, needed)

        return *differentiable_once("ConvBatchNorm", gradients, dy, *ctx.saved_tensors), None, None


def pair_gradients(dy, x, w, gamma, mean, var, window, convention, needed=(True, True)):
    """Return (dx, dw, dgamma, dbeta), the last two None without gamma. Statistics that are None are computed again."""
    z = convolved(x, w, window)
    if mean is None:
        mean, var = convention.statistics(z)
    dz, dgamma, dbeta = normalization_gradients_(dy, z, mean, var, gamma, convention)
    affine = (None, None) if gamma is None else (dgamma, dbeta)
    gradients = convolution_gradients(dz, x, w, window, needed) if any(needed) else (None, None)
    return *gradients, *affine


def require_pair(x, w, window: Parameters, convention: Convention, momentum: float = 0.0, **vectors) -> None:
    require_convolution(x, w, window)
    shape = (len(x), len(w), *window.output_size(x.shape[2:], w.shape[2:]))
    require_normalization(shape, wide(x.dtype), vectors, convention.eps, momentum)


def conv_batch_norm(
    x, w, gamma=None, beta=None, running_mean=None, running_var=None, *, window: Parameters = PLAIN,
    convention: Convention = STANDARD, momentum: float = 0.1,
):  # fmt: skip
    """Return batch norm of conv(x, w): y, mean, var, and new running statistics where old ones are given.

    x[N,C,H,W], w[K,C/groups,R,S], no bias, because subtracting the mean would cancel it; vectors [K], fp32 (fp64 for
    fp64 x). The convolution's result stays in fp32 until it is normalized. Raises TypeError and ValueError for invalid
    arguments, before anything is computed.
    """
    vectors = {"gamma": gamma, "beta": beta, "running_mean": running_mean, "running_var": running_var}
    require_pair(x, w, window, convention, momentum, **vectors)
    y, mean, var = ConvBatchNorm.apply(x, w, gamma, beta, window, convention)
    return y, mean, var, *updated(running_mean, running_var, mean, var, y.numel() // len(w), convention, momentum)
