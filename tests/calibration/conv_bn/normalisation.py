"""Convolution with batch normalisation as fused kernels compute it, every step in the accumulator's own dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np

from conformance.dtypes import STORAGE
from conformance.operators import OPERATORS, Arrays, ConvBnGeometry, ConvGeometry, Operator
from conformance.operators.spatial import as_image, by_channel, per_channel
from tests.calibration.kernels.kernel import Run
from tests.calibration.kernels.rounding import stored
from tests.calibration.kernels.sums import Sum, direct
from tests.calibration.kernels.sums import pairwise as tree

Moments = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Elements [K, M] -> mean [K] and sum of squared distances from it [K], in the dtype of the elements."""
Reduce = Callable[[np.ndarray], np.ndarray]
"""[K, M] -> sums over the last axis, in the dtype of the elements."""

Group = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Count, mean, sum of squares."""


def in_turn(values: np.ndarray) -> np.ndarray:
    """Sum one after the other."""
    return np.cumsum(values, axis=-1, dtype=values.dtype)[..., -1]


def in_pairs(values: np.ndarray) -> np.ndarray:
    """Sum by a tree."""
    return tree(np.moveaxis(values, -1, 0))


def in_float64(values: np.ndarray) -> np.ndarray:
    """Sum in a wider accumulator, rounded at the end."""
    return values.sum(axis=-1, dtype=np.float64).astype(values.dtype)


def shuffled(values: np.ndarray) -> np.ndarray:
    """Sum in a random order, as atomics arrive."""
    return in_turn(values[..., np.random.default_rng(values.shape[-1]).permutation(values.shape[-1])])


def two_passes(total: Reduce = in_turn) -> Moments:
    """Return moments by two passes: the mean, then distances from it."""

    def moments(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean = total(z) / z.dtype.type(z.shape[-1])
        d = z - mean[:, None]
        return mean, total(d * d)

    return moments


CENTRED = two_passes()
"""Moments by adding one element after the other, in two passes."""


def corrected(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Make two passes, less the share of the mean's own error in the squares (Chan, Golub and LeVeque 1983, equation
    1.7)."""
    count = z.dtype.type(z.shape[-1])
    mean = in_turn(z) / count
    d = z - mean[:, None]
    rest = in_turn(d)
    return mean, in_turn(d * d) - rest * rest / count


def corrected_mean(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Make two passes; the second one also corrects the mean."""
    count = z.dtype.type(z.shape[-1])
    mean = in_turn(z) / count
    d = z - mean[:, None]
    rest = in_turn(d)
    return mean + rest / count, in_turn(d * d) - rest * rest / count


def welford(z: np.ndarray, first: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Update by one element after the other, counted from `first` (Welford 1962)."""
    mean, squares = np.zeros_like(z[:, 0]), np.zeros_like(z[:, 0])
    for place, element in enumerate(z.T):
        before = element - mean
        mean = mean + before / z.dtype.type(place + first)
        squares = squares + before * (element - mean)
    return mean, squares


def chan(size: int, total: Reduce = in_turn) -> Moments:
    """Return moments by blocks of `size` in two passes each, combined in turn (Chan, Golub, LeVeque 1983, equation
    2.1)."""

    def moments(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        blocks = np.array_split(z, -(-z.shape[-1] // size), axis=-1)
        groups = [(np.asarray(block.shape[-1], z.dtype), *two_passes(total)(block)) for block in blocks]
        _, mean, squares = reduce(combined, groups)
        return mean, squares

    return moments


def combined(a: Group, b: Group) -> Group:
    """Combine two groups to one."""
    count, apart = a[0] + b[0], b[1] - a[1]
    return count, a[1] + apart * (b[0] / count), a[2] + b[2] + apart * apart * (a[0] * (b[0] / count))


def shifted(total: Reduce = in_turn) -> Moments:
    """Return moments by raw moments of the distances from the first element."""

    def moments(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, squares = raw(total)(z - z[:, :1])
        return z[:, 0] + mean, squares

    return moments


def raw(total: Reduce = in_turn) -> Moments:
    """Return moments by the mean of squares less the square of the mean, which rounding may bring below zero."""

    def moments(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count = z.dtype.type(z.shape[-1])
        mean = total(z) / count
        return mean, np.maximum(total(z * z) / count - mean * mean, 0) * count

    return moments


Inverse = Callable[[np.ndarray, np.ndarray, bool], np.ndarray]
"""(variance, epsilon, whether it is outside of the root) -> inverse deviation."""


def divided(var: np.ndarray, eps: np.ndarray, outside: bool) -> np.ndarray:
    """Compute a root and a division, each rounded."""
    one = var.dtype.type(1)
    return one / (np.sqrt(var) + eps) if outside else one / np.sqrt(var + eps)


def rsqrt(var: np.ndarray, eps: np.ndarray, outside: bool) -> np.ndarray:
    """Compute a correctly rounded inverse root, where the convention has one."""
    if outside:
        return divided(var, eps, outside)
    return (1 / np.sqrt((var + eps).astype(np.float64))).astype(var.dtype)


Convolve = Callable[[str, ConvGeometry, Arrays, str], np.ndarray]
"""(operator of a convolution, geometry, inputs, format to keep the result in) -> its main output."""


def computed(run: Run) -> Convolve:
    """Return a convolution by any algorithm."""
    return lambda operator, geometry, inputs, held: next(
        iter(run(OPERATORS[operator], geometry, inputs, held).values())
    )


def summed(total: Callable[..., np.ndarray]) -> Convolve:
    """Return a direct convolution."""
    return computed(partial(direct, total))


SEQUENTIAL = summed(Sum())


@dataclass(frozen=True, slots=True)
class Channels:
    """One training step by channel: z [K, M], and [K] for the rest, all in the accumulator's dtype."""

    z: np.ndarray
    mean: np.ndarray
    var: np.ndarray
    inverse: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray

    @property
    def d(self) -> np.ndarray:
        """Distances from the mean."""
        return self.z - self.mean[:, None]

    @property
    def factor(self) -> np.ndarray:
        return self.inverse * self.gamma


Scale = Callable[[Channels], np.ndarray]
"""Channels -> y [K, M]."""


def distances(c: Channels) -> np.ndarray:
    """Compute the definition, from left to right."""
    return c.d * c.inverse[:, None] * c.gamma[:, None] + c.beta[:, None]


def weighed_distances(c: Channels) -> np.ndarray:
    """Normalise with gamma and the inverse deviation in one factor."""
    return c.d * c.factor[:, None] + c.beta[:, None]


def folded(c: Channels) -> np.ndarray:
    """Normalise with one scale and one shift."""
    return c.z * c.factor[:, None] + (c.beta - c.mean * c.factor)[:, None]


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of backward, [K]: of dy and of dy*d; and the slope of the inverse deviation, see `conv_bn_backward`."""

    dy: np.ndarray
    """[K, M]"""
    total: np.ndarray
    product: np.ndarray
    slope: np.ndarray
    count: Any

    @property
    def mean(self) -> np.ndarray:
        return self.total / self.count

    @property
    def pull(self) -> np.ndarray:
        """Share of each unit of d that the variance's gradient subtracts."""
        return self.product * self.slope


Gradient = Callable[[Channels, Sums], np.ndarray]
"""Channels and sums -> dz [K, M]."""


def centred(c: Channels, s: Sums) -> np.ndarray:
    """Compute the gradient in the form of its derivation."""
    return (s.dy - s.mean[:, None] - c.d * s.pull[:, None]) * c.factor[:, None]


def normalised(c: Channels, s: Sums) -> np.ndarray:
    """Compute the gradient by z's normalised value, everything times M and divided by it at the end."""
    pulled = (c.d * c.inverse[:, None]) * (s.product * s.slope / c.inverse * s.count)[:, None]
    inner = s.count * s.dy - s.total[:, None] - pulled
    return inner * (c.factor / s.count)[:, None]


def coefficients_of_d(c: Channels, s: Sums) -> np.ndarray:
    """Compute the gradient by three rounded coefficients of a channel: a*dy + b*d + c."""
    a = c.factor
    return a[:, None] * s.dy - (a * s.pull)[:, None] * c.d - (a * s.mean)[:, None]


def coefficients_of_z(c: Channels, s: Sums) -> np.ndarray:
    """Compute the gradient by three rounded coefficients of a channel: a*dy + b*z + c, where c cancels the excess of
    b*z."""
    a, b = c.factor, c.factor * s.pull
    return a[:, None] * s.dy - b[:, None] * c.z + (b * c.mean - a * s.mean)[:, None]


@dataclass(frozen=True, slots=True)
class ConvBnKernel:
    """A kernel of all three operators.

    held     format of the accumulator and of everything between inputs and outputs
    between  whether z and dz are rounded to the tensors' own format in between
    weights  whether inference multiplies the filters by the scale, instead of z
    """

    convolve: Convolve = SEQUENTIAL
    moments: Moments = CENTRED
    inverse: Inverse = divided
    scale: Scale = distances
    gradient: Gradient = centred
    total: Reduce = in_turn
    between: bool = False
    weights: bool = False
    held: str = "fp32"

    def __call__(self, operator: Operator, geometry: ConvBnGeometry, inputs: Arrays, dtype: str) -> Arrays:
        """Return outputs in storage dtype; wide outputs keep fp32."""
        outputs = _COMPUTED[operator.name](self, geometry, inputs, dtype)
        tensors = operator.outputs(geometry)
        return {name: stored(array, tensors[name].stored_as(dtype)) for name, array in outputs.items()}

    def wide(self, array: np.ndarray) -> np.ndarray:
        return array.astype(STORAGE[self.held])

    def kept(self, image: np.ndarray, dtype: str) -> np.ndarray:
        """Return an intermediate image as the next part reads it."""
        return self.wide(stored(image, dtype)) if self.between else image

    def z(self, geometry: ConvBnGeometry, inputs: Arrays, dtype: str) -> np.ndarray:
        """Return z as [K, M]."""
        image = self.convolve("conv_forward", geometry.conv, {name: inputs[name] for name in ("x", "w")}, self.held)
        return by_channel(self.kept(image, dtype))

    def channels(self, geometry: ConvBnGeometry, inputs: Arrays, dtype: str) -> Channels:
        """Return channels with the statistics of their own batch."""
        z = self.z(geometry, inputs, dtype)
        mean, squares = self.moments(z)
        return self.with_statistics(geometry, inputs, z, mean, squares / z.dtype.type(geometry.freedom))

    def with_statistics(
        self, geometry: ConvBnGeometry, inputs: Arrays, z: np.ndarray, mean: np.ndarray, var: np.ndarray
    ) -> Channels:
        """Return channels with the given statistics."""
        inverse = self.inverse(var, z.dtype.type(geometry.eps), geometry.eps_outside)
        gamma, beta = (
            self.wide(inputs.get(n, np.full(geometry.k, absent))) for n, absent in (("gamma", 1), ("beta", 0))
        )
        return Channels(z, mean, var, inverse, gamma, beta)


def per_filter(values: np.ndarray, rank: int) -> np.ndarray:
    """Return [K] in a shape that multiplies filters."""
    return per_channel(values, rank + 1)


def _forward(kernel: ConvBnKernel, geometry: ConvBnGeometry, inputs: Arrays, dtype: str) -> Arrays:
    c = kernel.channels(geometry, inputs, dtype)
    outputs = {"y": as_image(kernel.scale(c), geometry), "mean": c.mean, "var": c.var}
    if geometry.running:
        one = c.z.dtype.type
        unbiased = c.var * one(geometry.freedom / (geometry.count - 1))
        for name, new in (("running_mean", c.mean), ("running_var", unbiased)):
            old = kernel.wide(inputs[name])
            outputs[name] = one(1 - geometry.momentum) * old + one(geometry.momentum) * new
    return outputs


def _inference(kernel: ConvBnKernel, geometry: ConvBnGeometry, inputs: Arrays, dtype: str) -> Arrays:
    mean, var = (kernel.wide(inputs[name]) for name in ("running_mean", "running_var"))
    if not kernel.weights:
        z = kernel.z(geometry, inputs, dtype)
        return {"y": as_image(kernel.scale(kernel.with_statistics(geometry, inputs, z, mean, var)), geometry)}
    c = kernel.with_statistics(geometry, inputs, mean[:, None], mean, var)
    w = kernel.wide(inputs["w"]) * per_filter(c.factor, geometry.rank)
    z = replace(kernel, between=False).z(geometry, {"x": inputs["x"], "w": w}, dtype)
    return {"y": as_image(z + (c.beta - c.mean * c.factor)[:, None], geometry)}


def _backward(kernel: ConvBnKernel, geometry: ConvBnGeometry, inputs: Arrays, dtype: str) -> Arrays:
    c = kernel.channels(geometry, inputs, dtype)
    dy = kernel.wide(by_channel(inputs["dy"]))
    count, freedom = (c.z.dtype.type(number) for number in (geometry.count, geometry.freedom))
    other = c.inverse
    if geometry.eps_outside:
        root = np.sqrt(c.var)
        other = np.divide(1, root, out=np.zeros_like(root), where=root != 0)
    sums = Sums(dy, kernel.total(dy), kernel.total(dy * c.d), c.inverse * other / freedom, count)
    dz = kernel.kept(as_image(kernel.gradient(c, sums), geometry), dtype)
    outputs = {
        "dx": kernel.convolve("conv_backward_data", geometry.conv, {"dy": dz, "w": inputs["w"]}, kernel.held),
        "dw": kernel.convolve("conv_backward_weight", geometry.conv, {"x": inputs["x"], "dy": dz}, kernel.held),
    }
    return outputs | ({"dgamma": sums.product * c.inverse, "dbeta": sums.total} if geometry.affine else {})


_COMPUTED: dict[str, Callable[[ConvBnKernel, ConvBnGeometry, Arrays, str], Arrays]] = {
    "conv_bn_forward": _forward,
    "conv_bn_inference": _inference,
    "conv_bn_backward": _backward,
}
