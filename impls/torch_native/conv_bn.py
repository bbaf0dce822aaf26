"""Convolution and batch norm as torch runs the pair: conv2d (or of another rank), then batch_norm, each on its own.

The convolution's result is stored, in the storage format, before batch_norm reads it.
"""

from __future__ import annotations

from functools import partial

import torch
from torch.nn import functional

from .conv import conv_forward
from .layout import along_channels, nchw, positions, restored, wide


def conv_bn_forward(
    x, w, gamma, beta, running_mean, running_var, *, eps, eps_outside, momentum, layout, **window
):  # fmt: skip
    """Return y and the statistics of the batch; running statistics as new tensors, if old ones are given."""
    z = _convolved(x, w, layout, window)
    mean, unbiased = _statistics(z.detach())
    moved = () if running_mean is None else (running_mean.clone(), running_var.clone())
    y = _trained(z, gamma, beta, moved, momentum, eps, eps_outside)
    if y.requires_grad:
        y.register_hook(partial(_in_memory_like, y.stride()))
    elements = z.numel() // z.shape[1]
    var = unbiased if eps_outside else unbiased * ((elements - 1) / elements)
    return restored(y, layout), mean, var, *moved


def conv_bn_backward(dy, x, w, gamma, *, eps, eps_outside, layout, **window):
    """Return dx, dw, dgamma, dbeta through torch's own autograd of the pair."""
    # contiguous: torch's channels-last gradient reads the weight as if it were contiguous, see docs/findings.md
    affine = () if gamma is None else (gamma.contiguous(), torch.zeros_like(gamma))
    leaves = [tensor.detach().requires_grad_() for tensor in (x, w, *affine)]
    gamma, beta = leaves[2:] or (None, None)
    with torch.enable_grad():
        z = _convolved(*leaves[:2], layout, window)
        y = _trained(z, gamma, beta, (), 0.0, eps, eps_outside)
    return torch.autograd.grad(y, leaves, _in_memory_like(y.stride(), nchw(dy, layout)))


def conv_bn_inference(x, w, gamma, beta, running_mean, running_var, *, eps, eps_outside, layout, **window):
    z = _convolved(x, w, layout, window)
    if eps_outside:
        y = _normalized(z.to(running_mean.dtype), running_mean, running_var.sqrt(), gamma, beta, eps)
        return restored(y.to(z.dtype), layout)
    y = batch_norm(z, running_mean, running_var, gamma, beta, False, 0.0, eps)
    if y.requires_grad:
        y.register_hook(partial(_in_memory_like, y.stride()))
    return restored(y, layout)


def _in_memory_like(strides, dy):
    """Give dy the strides of y: on the CPU batch_norm's gradient otherwise sums a 16-bit dy to a 16-bit dbeta."""
    return dy if dy.stride() == strides else dy.new_empty_strided(dy.shape, strides).copy_(dy)


def batch_norm(z, *arguments):
    """Call torch's batch_norm, on a row as on an image of one row: channels-last rows have no memory format, and on the
    path of strided memory a 16-bit dy is summed to a 16-bit dbeta."""
    return (
        functional.batch_norm(z.unsqueeze(2), *arguments).squeeze(2)
        if z.dim() == 3
        else functional.batch_norm(z, *arguments)
    )


def _convolved(x, w, layout, window):
    """Return z; `window` is stride, padding, dilation and groups."""
    z = nchw(conv_forward(x, w, None, layout=layout, **window), layout)
    # torch cannot tell the order of images of one pixel or channel, and then takes the path of strided memory
    if z.shape[1] == 1:
        return z.flatten().view(z.shape)
    return z.flatten(1).view(z.shape) if set(z.shape[2:]) == {1} else z


def _statistics(z):
    """Return mean and unbiased variance as batch_norm blends them into running statistics at momentum 1."""
    mean, var = (torch.zeros(z.shape[1], dtype=wide(z.dtype), device=z.device) for _ in range(2))
    batch_norm(z, mean, var, None, None, True, 1.0)
    return mean, var


def _trained(z, gamma, beta, moved, momentum, eps, eps_outside):
    """Return y by the statistics of the batch; batch_norm updates `moved`, running statistics or none, in place.

    Where eps is added outside the root, for which torch has no primitive, the steps between are in fp32.
    """
    if not eps_outside:
        if gamma is None:  # without any fp32 tensor, batch_norm keeps mean and inverse deviation in 16 bits
            gamma, beta = (f(z.shape[1], dtype=wide(z.dtype), device=z.device) for f in (torch.ones, torch.zeros))
        return batch_norm(z, *(moved or (None, None)), gamma, beta, True, momentum, eps)
    if moved:
        batch_norm(z.detach(), *moved, None, None, True, momentum)
    if z.numel() == z.shape[1]:
        raise ValueError(f"one element a channel in {tuple(z.shape)}: its variance is undefined")
    values = z.to(wide(z.dtype))
    deviation, mean = torch.std_mean(values, positions(values), correction=1)
    return _normalized(values, mean, deviation, gamma, beta, eps).to(z.dtype)


def _normalized(values, mean, deviation, gamma, beta, eps):
    y = (values - along_channels(mean, values)) / along_channels(deviation + eps, values)
    return y if gamma is None else y * along_channels(gamma, values) + along_channels(beta, values)
