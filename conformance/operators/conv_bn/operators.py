"""Convolution fused with batch normalisation: training forward and backward, and inference.

With z = conv(x, w) without bias, over the M = N*P*Q elements of a channel (Ioffe and Szegedy 2015):

    mean = sum z / M,   var = sum (z - mean)^2 / M,   y = (z - mean) * inv * gamma + beta,   inv = 1 / sqrt(var + eps)

`eps_outside` is the other convention in use, of a tutorial on custom functions in PyTorch: the unbiased variance
sum (z - mean)^2 / (M - 1), and inv = 1 / (sqrt(var) + eps). Running statistics move by `momentum` toward the mean and
the unbiased variance in both. gamma and beta are absent where the problem is not affine.

The references carry statistics in twice the precision of float64 (`conformance.operators.double_double`); z is exact on
the data of `conformance.inputs`, and so are the slices of dz that gradients are made from, so every bit is
reproducible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.operators import double_double
from conformance.operators.base import (
    Arrays,
    ErrorModel,
    Homogeneous,
    Operator,
    Propagation,
    Request,
    Spoil,
    Tensor,
)
from conformance.operators.conv.operators import ConvForward
from conformance.operators.conv_bn import propagation
from conformance.operators.conv_bn.geometry import ConvBnGeometry
from conformance.operators.double_double import Double
from conformance.operators.invalid_requests import CHANNELS, INTEGERS, WINDOW
from conformance.operators.spatial import as_image, by_channel, column, per_channel, unpadded

CONV = ConvForward()


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """A channel's elements z [K, M], their distances d from the mean, the mean [K] and the sum of d^2 [K]."""

    z: np.ndarray
    d: np.ndarray
    mean: np.ndarray
    squares: Double

    @classmethod
    def of(cls, geometry: ConvBnGeometry, inputs: Mapping[str, np.ndarray], dtype: Any) -> BatchStatistics:
        """From x and w; the convolution in `dtype`, everything after it in extended precision."""
        z, low = convolved(geometry, inputs, dtype)
        mean, rest = double_double.divided(double_double.total((z, low)), float(geometry.count))
        d = (z - mean[:, None]) - rest[:, None] + low
        return cls(z, d, mean, double_double.dot(d, d))

    def variance(self, freedom: int) -> np.ndarray:
        """The sum of squares over M or M - 1."""
        return double_double.divided(self.squares, float(freedom))[0]


def convolved(geometry: ConvBnGeometry, inputs: Mapping[str, np.ndarray], dtype: Any) -> Double:
    """z [K, M] as float64 has it, computed in `dtype`; where that is too narrow for sums of these products, in slices,
    with what is left over as the low part."""
    pair = _pair(inputs)
    if dtype == np.float64:
        level, scale = double_double.levelled(inputs["w"])
        room = double_double.room(inputs["x"].astype(dtype), geometry.filter.size // geometry.k)
        if room < double_double.width(level):
            parts = CONV.exact(geometry.conv, {"x": inputs["x"], "w": level})["y"]
            high, low = (by_channel(np.ldexp(part, per_channel(scale, geometry.rank))) for part in parts)
            return high, low
    high = by_channel(CONV.reference(geometry.conv, pair, dtype)["y"].astype(np.float64))
    return high, np.zeros_like(high)


def _pair(inputs: Mapping[str, np.ndarray]) -> Arrays:
    return {"x": inputs["x"], "w": inputs["w"]}


def _one_element(geometry: ConvBnGeometry, request: Request) -> Request:
    """One pixel of one image: a channel without a variance."""
    first = (slice(1),) * geometry.rank
    pixel = {name: request.inputs[name][:1, :, *first] for name in ("x", "dy") if name in request.inputs}
    filters = {"w": request.inputs["w"][:, :, *first]}
    plain = {"padding": unpadded(geometry.rank), "stride": (1,) * geometry.rank}
    return Request(request.inputs | pixel | filters, {**request.parameters, **plain})


VARIANCE: dict[str, Spoil] = {"a variance of one element": _one_element}


class ConvBn(Operator):
    """What the three operators share."""

    family = "conv_bn"
    arguments: tuple[str, ...] = ("x", "w", "gamma", "beta", "running_mean", "running_var")
    keywords: tuple[str, ...] = ("stride", "padding", "dilation", "groups", "eps", "eps_outside", "layout")
    data, operand, free_axis = "x", "w", 0
    factors = 2
    invalid = WINDOW | CHANNELS | INTEGERS | VARIANCE
    needs_running = False
    """Whether running statistics are there on every problem."""

    def tensor(self, geometry: ConvBnGeometry, name: str) -> Tensor | None:
        """Parameters and statistics are one wide number a channel. `var` is the variance that y was divided by: biased,
        or unbiased where eps is outside of the root."""
        if name in ("x", "w", "y", "dy", "dx", "dw"):
            return super().tensor(geometry, name)
        if name.endswith(("gamma", "beta")):
            present = geometry.affine
        else:
            present = not name.startswith("running") or geometry.running or self.needs_running
        return Tensor("K", (geometry.k,), wide=True, positive=name.endswith("var")) if present else None

    def error_model(self, geometry: ConvBnGeometry, terms: dict[str, int], propagate: Propagation) -> ErrorModel:
        """z must be exact; what follows is not, since there is a root in it."""
        span = geometry.filter.size // geometry.k
        return ErrorModel(terms, span, exact_on_integers=False, propagate=propagate)

    def flops(self, geometry: ConvBnGeometry) -> int:
        """The convolution's; normalisation is bound by memory."""
        return CONV.flops(geometry)


class ConvBnForward(ConvBn):
    """x, w, gamma?, beta?, running_mean?, running_var? -> y, mean[K], var[K], running_mean[K]?, running_var[K]?."""

    name = "conv_bn_forward"
    returns = ("y", "mean", "var", "running_mean", "running_var")
    keywords = (*ConvBn.keywords, "momentum")
    capabilities = ("output_mask",)
    gradients = ("conv_bn_backward",)
    takes_empty_batch = False
    # epsilon has a scale of its own, and no sign
    homogeneous = Homogeneous(("x", "beta", "running_mean"), ("y", "mean", "running_mean"), powers=False)

    def errors(self, geometry: ConvBnGeometry) -> ErrorModel:
        """C/g*R*S products in an element of y, M elements in a statistic."""
        terms = dict.fromkeys(self.outputs(geometry), geometry.count) | {"y": geometry.filter.size // geometry.k}
        return self.error_model(geometry, terms, propagation.forward)

    def reference(self, geometry: ConvBnGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """y and the statistics, old and new."""
        found = BatchStatistics.of(geometry, inputs, dtype)
        var = found.variance(geometry.freedom)
        outputs = {
            "y": normalised(geometry, found.d, geometry.inverse(var), inputs),
            "mean": found.mean,
            "var": var,
        }
        if geometry.running:
            outputs["running_mean"] = _moved(geometry, inputs["running_mean"], found.mean)
            outputs["running_var"] = _moved(geometry, inputs["running_var"], found.variance(geometry.count - 1))
        return outputs

    def magnitude(self, geometry: ConvBnGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """z, s2 of z and d as [K, M]; mean and var as [K]."""
        return intermediate(geometry, inputs, dtype)


def normalised(
    geometry: ConvBnGeometry, d: np.ndarray, inverse: np.ndarray, inputs: Mapping[str, np.ndarray]
) -> np.ndarray:
    """y[N,K,P,Q] = d * inverse * gamma + beta, from d [K, M]."""
    y = d * inverse[:, None] * column(inputs.get("gamma"))
    if geometry.affine:
        y += inputs["beta"].astype(np.float64)[:, None]
    return as_image(y, geometry)


def _moved(geometry: ConvBnGeometry, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    return (1 - geometry.momentum) * old.astype(np.float64) + geometry.momentum * new


def intermediate(geometry: ConvBnGeometry, inputs: Mapping[str, np.ndarray], dtype: Any) -> Arrays:
    """z, s2 of z and d as [K, M]; mean and var as [K]. s2 is computed in `dtype`."""
    found = BatchStatistics.of(geometry, inputs, np.float64)
    s2 = by_channel(CONV.magnitude(geometry.conv, _pair(inputs), dtype)["y"].astype(np.float64))
    var = found.variance(geometry.freedom)
    return {"z": found.z, "s2": s2, "d": found.d, "mean": found.mean, "var": var}


class ConvBnInference(ConvBn):
    """x, w, gamma?, beta?, running_mean, running_var -> y."""

    name = "conv_bn_inference"
    returns = ("y",)
    needs_running = True
    homogeneous = Homogeneous(("x", "beta", "running_mean"), ("y",))
    invalid = WINDOW | CHANNELS | INTEGERS

    def errors(self, geometry: ConvBnGeometry) -> ErrorModel:
        """C/g*R*S products."""
        return self.error_model(geometry, {"y": geometry.filter.size // geometry.k}, propagation.inference)

    def reference(self, geometry: ConvBnGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """z normalised by what was learned before."""
        z, low = convolved(geometry, inputs, dtype)
        inverse = geometry.inverse(inputs["running_var"].astype(np.float64))
        return {"y": normalised(geometry, z - column(inputs["running_mean"]) + low, inverse, inputs)}

    def magnitude(self, geometry: ConvBnGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """z and s2 of z as [K, M]."""
        found = (
            CONV.reference(geometry.conv, _pair(inputs))["y"],
            CONV.magnitude(geometry.conv, _pair(inputs), dtype)["y"],
        )
        return {"z": by_channel(found[0]), "s2": by_channel(found[1].astype(np.float64))}
