"""Convolution with batch normalisation over its outputs: training forward and backward, inference.

z = conv(x, w) stays in fp32 (fp64 for fp64) until the result is rounded. Statistics are sums in fp64 about a mean that
is known before: E[z^2] - E[z]^2 would lose the digits by which the mean exceeds the deviation. Vectors of channels, a
few hundred numbers, are finished on the host. With D = sqrt(var + eps), var biased, or D = sqrt(var) + eps, var
unbiased, and d = z - mean,

    y = d / D * gamma + beta
    dz = gamma / D * (dy - mean(dy) - d * pull), pull = sum(dy * d) / (M * D^2) or / ((M - 1) * D * sqrt(var))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from conformance.implementations.windows import sizes

from .address import SPACES, Form, owner
from .conv import Convolution, Engine
from .memory import Tensor, download, empty, launch, tensor, upload
from .plan import grid_for
from .reduce import channel_sums, itself
from .storage import Format, inline
from .target import cuda

Vector = np.ndarray
"""[K], fp64, on the host."""


@inline
def _deviation(first: float, second: float, center: float) -> float:
    return first - center


@inline
def _square(first: float, second: float, center: float) -> float:
    return (first - center) * (first - center)


@inline
def _covariance(first: float, second: float, center: float) -> float:
    return (first - center) * second


@cache
def _affine_kernel(first_format: Format, second_format: Format, result: Format, both: bool, rank: int = 2) -> Any:
    """Return the kernel of out = (first - center) * scale + shift, and + second * slope if `both`; elements in fp64."""
    widen, widen_other, narrow, wide = first_format.widen, second_format.widen, result.narrow, result.wide
    digits, place = SPACES[rank]

    @cuda.jit
    def affine(
        out: Any, first: Any, second: Any, center: Any, scale: Any, shift: Any, slope: Any, counts: Form, to: Form,
        at: Form, at_other: Form, steps: tuple[int, ...],
    ) -> None:  # fmt: skip
        channels, to_channel, by_channel, by_channel_other = steps
        for element in range(cuda.grid(1), channels * counts[0], cuda.gridsize(1)):
            c, pixel = owner(element, channels, counts[0], to_channel == 1)
            index = digits(pixel, counts)
            value = np.float64(widen(first[c * by_channel + place(at, index)]))
            value = (value - center[c]) * scale[c] + shift[c]
            if both:
                value += np.float64(widen_other(second[c * by_channel_other + place(at_other, index)])) * slope[c]
            out[c * to_channel + place(to, index)] = narrow(wide(value))

    return affine


def _affine(
    first: Tensor, center: Vector, scale: Vector, shift: Vector, dtype: np.dtype, second: Tensor | None = None,
    slope: Vector | None = None,
) -> Tensor:  # fmt: skip
    out, other = empty(first.shape, dtype, first.layout), second or first
    vectors = [upload(vector) for vector in (center, scale, shift, scale if slope is None else slope)]
    kernel = _affine_kernel(first.format, other.format, out.format, second is not None, len(first.sizes) - 2)
    forms, steps = (first.counts, out.places, first.places, other.places), (out.steps, first.steps, other.steps)
    by_channel = first.sizes[1], *(step[1] for step in steps)
    launch(kernel, *grid_for(out.size), out, first, other, *vectors, *forms, by_channel)
    return out


def _widened(array: Any, layout: str) -> Any:
    """Return the tensor in the accumulator's type: itself if it has that type."""
    source = tensor(array, layout)
    if source.format.memory == np.dtype(source.format.wide):
        return array
    zero, unit = np.zeros(source.sizes[1]), np.ones(source.sizes[1])
    return _affine(source, zero, unit, zero, np.dtype(source.format.wide)).array


def _sums(term: Callable[..., float], first: Tensor, second: Tensor, centers: Vector) -> Vector:
    out = empty(centers.shape, np.dtype(np.float64))
    channel_sums(out, first, second, upload(centers), term)
    return download(out.array)


@dataclass(frozen=True)
class _Moments:
    """Statistics of the channels of z; `squares` is the sum of squared deviations of `count` elements."""

    mean: Vector
    squares: Vector
    count: int

    def variance(self, unbiased: bool) -> Vector:
        return self.squares / (self.count - unbiased)


def _moments(z: Tensor) -> _Moments:
    channels = z.sizes[1]
    count = z.size // channels
    if count < 2:
        raise ValueError(f"a channel has {count} elements; a variance needs at least 2")
    mean = _sums(itself, z, z, np.zeros(channels)) / count
    # Correct the rounding error of the mean; without this the second pass would be about a point beside the mean.
    rest, squares = (_sums(term, z, z, mean) for term in (_deviation, _square))
    return _Moments(mean + rest / count, np.maximum(squares - rest * rest / count, 0), count)


def _divisor(variance: Vector, eps: float, eps_outside: bool) -> Vector:
    return np.sqrt(variance) + eps if eps_outside else np.sqrt(variance + eps)


def _factors(gamma: Any, beta: Any, channels: int) -> tuple[Vector, Vector]:
    scale = np.ones(channels) if gamma is None else download(gamma)
    return scale, np.zeros(channels) if beta is None else download(beta)


def _finished(vector: Vector, z: Tensor) -> Any:
    """Return a vector in the accumulator's type, on the device."""
    return upload(vector.astype(z.format.wide)).array


@dataclass(frozen=True)
class Normalised:
    """The operators, with z and its gradients by one engine. `window` is stride, padding, dilation, groups and
    layout."""

    engine: Engine

    @property
    def kernels(self) -> tuple[Callable[..., Any], ...]:
        return self.conv_bn_forward, self.conv_bn_backward, self.conv_bn_inference

    def _z(self, x: Any, w: Any, window: dict[str, Any]) -> Tensor:
        wide = np.dtype(tensor(x).format.wide)
        return tensor(Convolution(self.engine, wide).conv_forward(x, w, None, **window), window["layout"])

    def conv_bn_forward(
        self, x: Any, w: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any, *, eps: float,
        eps_outside: bool, momentum: float, **window: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Return (y, mean, var), and the new running statistics where old ones are given."""
        z = self._z(x, w, window)
        moments = _moments(z)
        variance = moments.variance(eps_outside)
        scale, shift = _factors(gamma, beta, variance.size)
        scale = scale / _divisor(variance, eps, eps_outside)
        y = _affine(z, moments.mean, scale, shift, tensor(x).dtype).array
        results = [moments.mean, variance]
        if running_mean is not None and running_var is not None:
            new = (running_mean, moments.mean), (running_var, moments.variance(unbiased=True))
            results += [(1 - momentum) * download(old) + momentum * now for old, now in new]
        return y, *(_finished(vector, z) for vector in results)

    def conv_bn_backward(
        self, dy: Any, x: Any, w: Any, gamma: Any, *, eps: float, eps_outside: bool, **window: Any
    ) -> tuple[Any, ...]:
        """Return (dx, dw), and (dgamma, dbeta) where gamma is given; z is computed again."""
        layout = window["layout"]
        z, outputs = self._z(x, w, window), tensor(dy, layout)
        if outputs.shape != z.shape:
            raise ValueError(f"dy is {outputs.shape}; it must have the shape of y, {z.shape}")
        moments = _moments(z)
        variance = moments.variance(eps_outside)
        divisor = _divisor(variance, eps, eps_outside)
        total = _sums(itself, outputs, outputs, np.zeros(variance.size))
        product = _sums(_covariance, z, outputs, moments.mean)
        slope = (moments.count - 1) * np.sqrt(variance) if eps_outside else moments.count * divisor
        # A constant channel has no deviations to spread the gradient over.
        pull = np.divide(product, divisor * slope, out=np.zeros_like(product), where=slope != 0)
        factor = _factors(gamma, None, variance.size)[0] / divisor
        shift = -factor * total / moments.count
        dz = _affine(z, moments.mean, -factor * pull, shift, z.dtype, outputs, factor).array

        # dx and dw are rounded once; dz is not rounded
        convolution = Convolution(self.engine, tensor(x).dtype)
        input_size, kernel_size = (sizes(tensor(array).shape, layout)[2] for array in (x, w))
        image, weights = _widened(x, layout), _widened(w, layout)
        dx = convolution.conv_backward_data(dz, weights, input_size=input_size, **window)
        dw = convolution.conv_backward_weight(image, dz, kernel_size=kernel_size, with_bias=False, **window)
        return (dx, dw) if gamma is None else (dx, dw, _finished(product / divisor, z), _finished(total, z))

    def conv_bn_inference(
        self, x: Any, w: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any, *, eps: float,
        eps_outside: bool, **window: Any,
    ) -> Any:  # fmt: skip
        """Return y by the running statistics; weights are not scaled, so that none of them is rounded again."""
        z = self._z(x, w, window)
        mean, variance = download(running_mean), download(running_var)
        scale, shift = _factors(gamma, beta, variance.size)
        scale = scale / _divisor(variance, eps, eps_outside)
        return _affine(z, mean, scale, shift, tensor(x).dtype).array
