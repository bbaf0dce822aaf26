"""Convolution with batch normalisation over its outputs: training forward and backward, inference.

z = conv(x, w) stays in fp32 (fp64 for fp64) until the result is rounded.  Statistics take two passes over z, the second
about the mean of the first: E[z^2] - E[z]^2 would lose the digits by which the mean exceeds the deviation.
With D = sqrt(var + eps), var biased, or D = sqrt(var) + eps, var unbiased, and d = z - mean,

    y = d / D * gamma + beta
    dz = gamma / D * (dy - mean(dy) - d * pull), pull = sum(dy * d) / (M * D^2) or / ((M - 1) * D * sqrt(var))

`window` is stride, padding, dilation and groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.implementations.windows import sizes

from . import statistics
from .conv import conv_backward_data, conv_backward_weight, conv_forward
from .geometry import Array
from .storage import converted, widened


@dataclass(frozen=True)
class _Moments:
    """Statistics of the channels of z, fp64; `squares` is the sum of squared deviations of `count` elements."""

    mean: Array
    squares: Array
    count: int

    def variance(self, unbiased: bool) -> Array:
        return self.squares / (self.count - unbiased)


def _moments(z: Array, layout: str) -> _Moments:
    _, channels, _ = sizes(z.shape, layout)
    count, zero = z.size // channels, np.zeros(channels)
    if count < 2:
        raise ValueError(f"a channel has {count} elements; a variance needs at least 2")
    mean = statistics.sums(z, zero, z, zero, layout)[0] / count
    rest, squares = statistics.sums(z, mean, z, mean, layout)
    # Correct the rounding error of the mean; without this the second pass would be about a point beside the mean.
    return _Moments(mean + rest / count, np.maximum(squares - rest * rest / count, 0), count)


def _deviation(variance: Array, eps: float, eps_outside: bool) -> Array:
    """Return D, the divisor of deviations from the mean."""
    return np.sqrt(variance) + eps if eps_outside else np.sqrt(variance + eps)


def _factors(gamma: Array | None, beta: Array | None, channels: int) -> tuple[Array, Array]:
    scale = np.ones(channels) if gamma is None else gamma.astype(np.float64)
    return scale, np.zeros(channels) if beta is None else beta.astype(np.float64)


def conv_bn_forward(
    x: Array, w: Array, gamma: Array | None, beta: Array | None, running_mean: Array | None,
    running_var: Array | None, *, eps: float, eps_outside: bool, momentum: float, layout: str, **window: Any,
) -> tuple[Array, ...]:  # fmt: skip
    """Return (y, mean, var), and the new running statistics where old ones are given."""
    z = conv_forward(widened(x), widened(w), None, layout=layout, **window)
    moments = _moments(z, layout)
    variance = moments.variance(eps_outside)
    scale, offset = _factors(gamma, beta, variance.size)
    scale /= _deviation(variance, eps, eps_outside)
    wide = z.dtype
    y = statistics.normalised(z, offset, moments.mean, scale, x.dtype, layout)
    results = y, moments.mean.astype(wide), variance.astype(wide)
    if running_mean is None or running_var is None:
        return results
    new = (running_mean, moments.mean), (running_var, moments.variance(unbiased=True))
    return *results, *(((1 - momentum) * old.astype(np.float64) + momentum * now).astype(wide) for old, now in new)


def conv_bn_backward(
    dy: Array, x: Array, w: Array, gamma: Array | None, *, eps: float, eps_outside: bool, layout: str, **window: Any
) -> tuple[Array, ...]:
    """Return (dx, dw), and (dgamma, dbeta) where gamma is given; z is computed again."""
    image, weights = widened(x), widened(w)
    z = conv_forward(image, weights, None, layout=layout, **window)
    if dy.shape != z.shape:
        raise ValueError(f"dy is {dy.shape}; it must have the shape of y, {z.shape}")
    moments = _moments(z, layout)
    variance, wide = moments.variance(eps_outside), z.dtype
    deviation = _deviation(variance, eps, eps_outside)
    total, product = statistics.sums(dy, np.zeros(variance.size), z, moments.mean, layout)
    slope = (moments.count - 1) * np.sqrt(variance) if eps_outside else moments.count * deviation
    # A constant channel has no deviations to spread the gradient over.
    pull = np.divide(product, deviation * slope, out=np.zeros_like(product), where=slope != 0)
    factor = _factors(gamma, None, variance.size)[0] / deviation
    dz = statistics.gradient(dy, z, -factor * total / moments.count, moments.mean, -factor * pull, factor, layout)
    input_size, kernel_size = (sizes(tensor.shape, layout)[2] for tensor in (x, w))
    dx = conv_backward_data(dz, weights, input_size=input_size, layout=layout, **window)
    dw = conv_backward_weight(image, dz, kernel_size=kernel_size, with_bias=False, layout=layout, **window)
    results = converted(dx, x.dtype), converted(dw, w.dtype)
    return results if gamma is None else (*results, (product / deviation).astype(wide), total.astype(wide))


def conv_bn_inference(
    x: Array, w: Array, gamma: Array | None, beta: Array | None, running_mean: Array, running_var: Array, *,
    eps: float, eps_outside: bool, layout: str, **window: Any,
) -> Array:  # fmt: skip
    """Return y by the running statistics; weights are not scaled, so that none of them is rounded again."""
    z = conv_forward(widened(x), widened(w), None, layout=layout, **window)
    scale, offset = _factors(gamma, beta, running_var.size)
    scale /= _deviation(running_var.astype(np.float64), eps, eps_outside)
    return statistics.normalised(z, offset, running_mean.astype(np.float64), scale, x.dtype, layout)
