"""Batch norm as a function of its own: saves its input, and gamma, mean and variance of each channel.

Saving its input makes it expensive behind a convolution: see `conv_norm`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..layout import wide
from .once import differentiable_once
from .parameters import require_image, require_normalization

CHANNEL = (slice(None), None, None)
"""Index that lines a per-channel vector up with NCHW."""
POSITIONS = (0, 2, 3)
"""All axes of NCHW but the channels."""


@dataclass(frozen=True)
class Convention:
    """Place of eps: 1 / sqrt(var + eps), var biased; or 1 / (sqrt(var) + eps), var unbiased."""

    eps: float = 1e-5
    outside: bool = False

    def inverse(self, var):
        return 1 / (var.sqrt() + self.eps) if self.outside else torch.rsqrt(var + self.eps)

    def statistics(self, z):
        var, mean = torch.var_mean(z, POSITIONS, correction=int(self.outside))
        return mean, var

    def unbiased(self, var, count: int):
        """Return the variance that is blended into running statistics."""
        return var if self.outside else var * (count / (count - 1))

    def pull(self, var, count: int):
        """Return the share of dgamma in the gradient of each normalized element; zero where a channel is constant."""
        if not self.outside:
            return torch.full_like(var, 1 / count)
        root = var.sqrt()
        return torch.where(root > 0, (root + self.eps) / (root * (count - 1)), 0)


STANDARD = Convention()


def normalize_(z, mean, var, gamma, beta, convention: Convention):
    """Return y in the memory of z."""
    scale = convention.inverse(var)
    z.sub_(mean[CHANNEL]).mul_((scale if gamma is None else scale * gamma)[CHANNEL])
    return z if beta is None else z.add_(beta[CHANNEL])


def normalization_gradients_(dy, z, mean, var, gamma, convention: Convention):
    """Return (dz, dgamma, dbeta) of sum(dy * y), dz in the memory of z."""
    count, scale = z.numel() // z.shape[1], convention.inverse(var)
    dy = dy.to(z.dtype)
    normalized = z.sub_(mean[CHANNEL]).mul_(scale[CHANNEL])
    dbeta, dgamma = dy.sum(POSITIONS), (dy * normalized).sum(POSITIONS)
    dz = normalized.mul_(-(dgamma * convention.pull(var, count))[CHANNEL]).add_(dy).sub_((dbeta / count)[CHANNEL])
    return dz.mul_((scale if gamma is None else scale * gamma)[CHANNEL]), dgamma, dbeta


class BatchNorm(torch.autograd.Function):
    """Batch norm that saves for backward z, and the vectors gamma, mean and var. Statistics carry no gradient."""

    @staticmethod
    def forward(ctx, z, gamma, beta, convention):
        values = z.to(wide(z.dtype), copy=True)
        mean, var = convention.statistics(values)
        ctx.save_for_backward(z, gamma, mean, var)
        ctx.convention = convention
        ctx.mark_non_differentiable(mean, var)
        return normalize_(values, mean, var, gamma, beta, convention).to(z.dtype), mean, var

    @staticmethod
    def backward(ctx, dy, *_):
        convention = ctx.convention

        def gradients(dy, z, gamma, mean, var):
            values = z.to(mean.dtype, copy=True)
            dz, dgamma, dbeta = normalization_gradients_(dy, values, mean, var, gamma, convention)
            affine = (None, None) if gamma is None else (dgamma, dbeta)
            return dz.to(z.dtype), *affine

        return *differentiable_once("BatchNorm", gradients, dy, *ctx.saved_tensors), None


def batch_norm(
    z, gamma=None, beta=None, running_mean=None, running_var=None, *, convention: Convention = STANDARD,
    momentum: float = 0.1,
):  # fmt: skip
    """Return y[N,K,P,Q] by the statistics of the batch, mean, var; and new running statistics where old ones are given.

    Raises TypeError and ValueError for invalid arguments, before anything is computed.
    """
    require_image("z", z)
    vectors = {"gamma": gamma, "beta": beta, "running_mean": running_mean, "running_var": running_var}
    require_normalization(z.shape, wide(z.dtype), vectors, convention.eps, momentum)
    y, mean, var = BatchNorm.apply(z, gamma, beta, convention)
    return y, mean, var, *updated(running_mean, running_var, mean, var, z.numel() // z.shape[1], convention, momentum)


def updated(running_mean, running_var, mean, var, count: int, convention: Convention, momentum: float) -> tuple:
    if running_mean is None:
        return ()
    with torch.no_grad():
        unbiased = convention.unbiased(var, count)
        return tuple(
            running * (1 - momentum) + new * momentum
            for running, new in ((running_mean, mean), (running_var, unbiased))
        )
