"""Gradients that raise an error when they are differentiated again."""

from __future__ import annotations

from collections.abc import Callable

import torch


class _Once(torch.autograd.Function):
    """Computes a gradient. In the graph of a second derivative it takes the place of the missing one, and raises."""

    @staticmethod
    def forward(ctx, name: str, compute: Callable[..., tuple], *tensors):
        ctx.name = name
        return compute(*tensors)

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(
            f"{ctx.name} has no second derivative: what it would take is not kept. Use torch.nn.functional.conv2d and "
            "batch_norm where a gradient is differentiated again"
        )


def differentiable_once(name: str, compute: Callable[..., tuple], *tensors) -> tuple:
    """Return compute(*tensors), gradients of the function `name`; differentiating them raises NotImplementedError."""
    if not torch.is_grad_enabled():
        return compute(*tensors)
    return _Once.apply(name, compute, *tensors)
