"""Convolution and batch norm as one: z is never rounded to storage, its variance is that of centred values."""

from __future__ import annotations

import numpy as np

from .conv import convolved, image_gradient, weight_gradient
from .declared import direct, small_conv
from .windows import per_channel, places


def _deviation(var, eps, eps_outside):
    return np.sqrt(var) + var.dtype.type(eps) if eps_outside else np.sqrt(var + var.dtype.type(eps))


def _statistics(z):
    """Return mean[K], z - mean, and the sum of its squares. Raises ValueError where the variance is undefined."""
    elements = z.size // z.shape[1]
    if elements < 2:
        raise ValueError(f"z has shape {z.shape}, one element a channel: its variance is undefined")
    mean = z.sum(axis=places(z)) / z.dtype.type(elements)
    centred = z - per_channel(mean, z.shape[2:])
    return mean, centred, (centred * centred).sum(axis=places(z))


def _variance(squares, centred, unbiased):
    elements = centred.size // len(squares)
    return squares / squares.dtype.type(elements - 1 if unbiased else elements)


def _scaled(normal, gamma, beta):
    size = normal.shape[2:]
    return normal if gamma is None else normal * per_channel(gamma, size) + per_channel(beta, size)


def _blended(running, batch, momentum):
    momentum = batch.dtype.type(momentum)
    return (1 - momentum) * running + momentum * batch


@direct("conv_bn_forward", when=small_conv)
def conv_bn_forward(
    x, w, gamma, beta, running_mean, running_var, *, stride, padding, dilation, groups, eps, eps_outside, momentum
):
    """Return y, mean, var and, where old ones are given, new running statistics, whose variance is unbiased."""
    z = convolved(x, w, stride, padding, dilation, groups)
    mean, centred, squares = _statistics(z)
    var = _variance(squares, centred, unbiased=eps_outside)
    deviation = per_channel(_deviation(var, eps, eps_outside), z.shape[2:])
    y = _scaled(centred / deviation, gamma, beta).astype(x.dtype)
    if running_mean is None:
        return y, mean, var
    unbiased = _variance(squares, centred, unbiased=True)
    return y, mean, var, _blended(running_mean, mean, momentum), _blended(running_var, unbiased, momentum)


@direct("conv_bn_inference", when=small_conv)
def conv_bn_inference(
    x, w, gamma, beta, running_mean, running_var, *, stride, padding, dilation, groups, eps, eps_outside
):
    z = convolved(x, w, stride, padding, dilation, groups)
    size = z.shape[2:]
    centred = z - per_channel(running_mean, size)
    normal = centred / per_channel(_deviation(running_var, eps, eps_outside), size)
    return _scaled(normal, gamma, beta).astype(x.dtype)


def _z_gradient(dy, centred, var, gamma, eps, eps_outside):
    """Return dz: t = dy*gamma/deviation less its mean and less its share along z - mean.

    d(deviation)/dz is (z - mean) / (freedom * root), where the root is that of the variance: the deviation itself, or
    sqrt(var) where eps is added outside. The slope of a constant channel is taken as 0.
    """
    elements = centred.size // len(var)
    freedom = var.dtype.type(elements - 1 if eps_outside else elements)
    deviation = _deviation(var, eps, eps_outside)
    root = np.sqrt(var) if eps_outside else deviation
    over, size = places(dy), dy.shape[2:]
    t = dy / per_channel(deviation, size) * (1 if gamma is None else per_channel(gamma, size))
    along = (t * centred).sum(axis=over) / freedom
    slope = np.divide(along, root * deviation, out=np.zeros_like(along), where=root != 0)
    return t - per_channel(t.sum(axis=over) / var.dtype.type(elements), size) - centred * per_channel(slope, size)


@direct("conv_bn_backward", when=small_conv)
def conv_bn_backward(dy, x, w, gamma, *, stride, padding, dilation, groups, eps, eps_outside, output_mask=(True,) * 4):
    """Return those of dx, dw and, with gamma, dgamma, dbeta that `output_mask` asks for. z is computed again; dz stays
    in accumulator precision."""
    geometry = (stride, padding, dilation, groups)
    _, centred, squares = _statistics(convolved(x, w, *geometry))
    var = _variance(squares, centred, unbiased=eps_outside)
    dy = dy.astype(centred.dtype)
    dz = _z_gradient(dy, centred, var, gamma, eps, eps_outside)
    gradients = (
        lambda: image_gradient(dz, w, x.shape[2:], *geometry).astype(x.dtype),
        lambda: weight_gradient(x, dz, w.shape[2:], *geometry).astype(w.dtype),
        lambda: (dy * centred).sum(axis=places(dy)) / _deviation(var, eps, eps_outside),
        lambda: dy.sum(axis=places(dy)),
    )
    present = gradients if gamma is not None else gradients[:2]
    return tuple(gradient() for gradient, asked in zip(present, output_mask, strict=False) if asked)
