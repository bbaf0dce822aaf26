"""Convolution fused with batch normalisation: training forward and backward, and inference.

With z = conv(x, w) without bias, over the M = N*P*Q elements of a channel (Ioffe and Szegedy 2015):

    mean = sum z / M,   var = sum (z - mean)^2 / M,   y = (z - mean) * inv * gamma + beta,   inv = 1 / sqrt(var + eps)

`eps_outside` is another convention, used in a PyTorch tutorial on custom functions: the unbiased variance
sum (z - mean)^2 / (M - 1), and inv = 1 / (sqrt(var) + eps). Running statistics move by `momentum` toward the mean and
the unbiased variance in both. gamma and beta are absent where the problem is not affine.

The references carry statistics in twice the precision of float64 (`conformance.operators.double_double`); z is exact on
the data of `conformance.inputs`, and so are the slices of dz that gradients are made from, so every bit is
reproducible.

Gradients go through the batch's own statistics. With total = sum dy and product = sum dy*d over a channel, d = z - mean
(Ioffe and Szegedy, section 3):

    dz = gamma * inv * (dy - total/M - d * pull),   pull = product * inv^2 / M,   dgamma = product * inv

dbeta = total, and dx, dw are the gradients of the convolution at dz. Where eps is outside of the root, the derivative
of inv = 1 / (s + eps), s = sqrt(sum d^2 / (M - 1)), makes pull = product * inv / (s * (M - 1)).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.operators import double_double, special_values
from conformance.operators.base import (
    CHANNELS_MISMATCH,
    INTEGER_TENSORS,
    WINDOW_BEYOND_IMAGE,
    Arrays,
    ErrorModel,
    Given,
    Homogeneous,
    Operator,
    Propagation,
    Request,
    Special,
    Spoil,
    Tensor,
    invalid_filters,
    invalid_parameters,
)
from conformance.operators.conv.operators import ConvBackwardData, ConvBackwardWeight, ConvForward
from conformance.operators.conv_bn import propagation
from conformance.operators.conv_bn.geometry import ConvBnGeometry
from conformance.operators.conv_bn.propagation import pull
from conformance.operators.double_double import Double
from conformance.operators.family import Brought, Family, Storages
from conformance.operators.spatial import as_image, by_channel, column, per_channel, places, taps_of_padding, unpadded
from conformance.operators.special_values import NONFINITE

CONV, _GRADIENT, _WEIGHT = ConvForward(), ConvBackwardData(), ConvBackwardWeight()


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """A channel's elements z [K, M], their distances d from the mean, the mean [K] and the sum of d^2 [K]."""

    z: np.ndarray
    d: np.ndarray
    mean: np.ndarray
    squares: Double

    @classmethod
    def of(cls, geometry: ConvBnGeometry, inputs: Given, dtype: Any) -> BatchStatistics:
        """Compute statistics from x and w: the convolution in `dtype`, everything after it in extended precision."""
        z, low = convolved(geometry, inputs, dtype)
        mean, rest = double_double.divided(double_double.total((z, low)), float(geometry.count))
        d = (z - mean[:, None]) - rest[:, None] + low
        return cls(z, d, mean, double_double.dot(d, d))

    def variance(self, freedom: int) -> np.ndarray:
        """Return the sum of squares divided by `freedom`, M or M - 1."""
        return double_double.divided(self.squares, float(freedom))[0]


def convolved(geometry: ConvBnGeometry, inputs: Given, dtype: Any) -> Double:
    """Compute z [K, M] in `dtype`, as float64 with a low part. If float64 is too narrow for these sums of products,
    they are computed in slices, and the low part holds the rest; otherwise it is zero."""
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


def _pair(inputs: Given) -> Arrays:
    return {"x": inputs["x"], "w": inputs["w"]}


def _one_element(geometry: ConvBnGeometry, request: Request) -> Request:
    """Cut the request to one pixel of one image, so that a channel has no variance."""
    first = (slice(1),) * geometry.rank
    pixel = {name: request.inputs[name][:1, :, *first] for name in ("x", "dy") if name in request.inputs}
    filters = {"w": request.inputs["w"][:, :, *first]}
    plain = {"padding": unpadded(geometry.rank), "stride": (1,) * geometry.rank}
    return Request(request.inputs | pixel | filters, {**request.parameters, **plain})


KEYWORDS = ("stride", "padding", "dilation", "groups", "eps", "eps_outside", "layout")
INVALID = WINDOW_BEYOND_IMAGE | CHANNELS_MISMATCH | INTEGER_TENSORS | invalid_parameters(KEYWORDS) | invalid_filters(1)
VARIANCE: dict[str, Spoil] = {"a variance of one element": _one_element}


class ConvBn(Operator):
    """Base of the operators with batch normalisation."""

    family = "conv_bn"
    arguments: tuple[str, ...] = ("x", "w", "gamma", "beta", "running_mean", "running_var")
    keywords: tuple[str, ...] = KEYWORDS
    data, operand, free_axis = "x", "w", 0
    factors = 2
    invalid = INVALID | VARIANCE
    needs_running = False
    """Whether every problem has running statistics."""

    def tensor(self, geometry: ConvBnGeometry, name: str) -> Tensor | None:
        """Return an argument or a result. Parameters and statistics have one wide number per channel. `var` is the
        variance that normalises y: biased, or unbiased where eps is outside the root."""
        if name in ("x", "w", "y", "dy", "dx", "dw"):
            return super().tensor(geometry, name)
        if name.endswith(("gamma", "beta")):
            present = geometry.affine
        else:
            present = not name.startswith("running") or geometry.running or self.needs_running
        return Tensor("K", (geometry.k,), wide=True, positive=name.endswith("var")) if present else None

    def special(self, geometry: ConvBnGeometry) -> tuple[Special, ...]:
        """Return NaN alone: whether infinity becomes Inf or NaN in a statistic depends on the order."""
        return super().special(geometry)[1:]

    def error_model(self, geometry: ConvBnGeometry, terms: dict[str, int], propagate: Propagation) -> ErrorModel:
        """Return the error model: its span is that of z, which must be exact; later steps have a root and are not."""
        span = geometry.filter.size // geometry.k
        return ErrorModel(terms, span, exact_on_integers=False, propagate=propagate)

    def flops(self, geometry: ConvBnGeometry) -> int:
        """Count the operations of the convolution; normalisation is limited by memory traffic."""
        return CONV.flops(geometry)


def _nonfinite(g: ConvBnGeometry) -> list[Special]:
    """Return NaN in a filter and gamma, without channels; infinities would depend on the order of operations."""
    tap = special_values.inner_tap(g)
    values: list[Special] = [("w", (0, *tap), math.nan)] if tap else []
    return [*values, ("gamma", (), math.nan)] if g.affine else values


class ConvBnForward(ConvBn):
    """x, w, gamma?, beta?, running_mean?, running_var? -> y, mean[K], var[K], running_mean[K]?, running_var[K]?."""

    name = "conv_bn_forward"
    returns = ("y", "mean", "var", "running_mean", "running_var")
    keywords = (*ConvBn.keywords, "momentum")
    capabilities = ("output_mask",)
    gradients = ("conv_bn_backward",)
    takes_empty_batch = False
    # epsilon does not scale with the inputs, but negating them leaves it in place
    homogeneous = Homogeneous(("x", "beta", "running_mean"), ("y", "mean", "running_mean"), powers=False)

    def nonfinite(self, geometry: ConvBnGeometry) -> Iterator[Special]:
        """Yield values in the parameters, and NaN in running statistics unless momentum is 0 or 1: products with 0 may
        be skipped."""
        g, values = geometry, _nonfinite(geometry)
        if g.running and 0 < g.momentum < 1:
            values += [("running_mean", (), math.nan), ("running_var", (), math.nan)]
        if g.affine:
            values += [("beta", (), value) for value in NONFINITE]
        return special_values.apart(g.k, values)

    def errors(self, geometry: ConvBnGeometry) -> ErrorModel:
        """Count C/g*R*S products in an element of y, M elements in a statistic."""
        terms = dict.fromkeys(self.outputs(geometry), geometry.count) | {"y": geometry.filter.size // geometry.k}
        return self.error_model(geometry, terms, propagation.forward)

    def reference(self, geometry: ConvBnGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute y, the batch's statistics and the updated running statistics."""
        statistics = BatchStatistics.of(geometry, inputs, dtype)
        var = statistics.variance(geometry.freedom)
        outputs = {
            "y": normalised(geometry, statistics.d, geometry.inverse(var), inputs),
            "mean": statistics.mean,
            "var": var,
        }
        if geometry.running:
            outputs["running_mean"] = _moved(geometry, inputs["running_mean"], statistics.mean)
            outputs["running_var"] = _moved(geometry, inputs["running_var"], statistics.variance(geometry.count - 1))
        return outputs

    def magnitude(self, geometry: ConvBnGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Return z, s2 of z and d as [K, M]; mean and var as [K]."""
        return intermediate(geometry, inputs, dtype)


def normalised(geometry: ConvBnGeometry, d: np.ndarray, inverse: np.ndarray, inputs: Given) -> np.ndarray:
    """Compute y[N,K,P,Q] = d * inverse * gamma + beta from d [K, M]."""
    y = d * inverse[:, None] * column(inputs.get("gamma"))
    if geometry.affine:
        y += inputs["beta"].astype(np.float64)[:, None]
    return as_image(y, geometry)


def _moved(geometry: ConvBnGeometry, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    return (1 - geometry.momentum) * old.astype(np.float64) + geometry.momentum * new


def intermediate(geometry: ConvBnGeometry, inputs: Given, dtype: Any) -> Arrays:
    """Return z, s2 of z (in `dtype`) and d as [K, M]; mean and var as [K]; the `bits` that any sum in z needs."""
    statistics = BatchStatistics.of(geometry, inputs, np.float64)
    s2 = by_channel(CONV.magnitude(geometry.conv, _pair(inputs), dtype)["y"].astype(np.float64))
    var = statistics.variance(geometry.freedom)
    return {
        "z": statistics.z,
        "s2": s2,
        "d": statistics.d,
        "mean": statistics.mean,
        "var": var,
        "bits": _bits(geometry, inputs),
    }


def _bits(geometry: ConvBnGeometry, inputs: Given) -> np.ndarray:
    terms = geometry.filter.size // geometry.k
    widths = (double_double.width(inputs[name].astype(np.float64)) for name in ("x", "w"))
    return np.array(sum(widths) + math.ceil(math.log2(max(1, terms))))


class FrozenBackward(ConvBn):
    """dy, x, w, gamma?, running_mean, running_var -> dx, dw, dgamma[K]?, dbeta[K]?: gradients of `ConvBnInference`,
    where the running statistics are constants. Only autograd variants implement this operator, kernels do not."""

    name = "conv_bn_inference gradients"
    arguments = ("dy", "x", "w", "gamma", "running_mean", "running_var")
    returns = ("dx", "dw", "dgamma", "dbeta")
    needs_running = True

    def errors(self, geometry: ConvBnGeometry) -> ErrorModel:
        """Count the terms of dx as in a convolution's gradient, and M for the other gradients."""
        terms = dict.fromkeys(self.outputs(geometry), geometry.count) | dict(_GRADIENT.errors(geometry).terms)
        return self.error_model(geometry, terms, propagation.frozen)

    def reference(self, geometry: ConvBnGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute dz = gamma * inv * dy, the convolution's gradients, and dgamma = inv * sum(dy*(z - running_mean))."""
        z, low = convolved(geometry, inputs, dtype)
        dy = by_channel(inputs["dy"].astype(np.float64))
        inverse = geometry.inverse(inputs["running_var"].astype(np.float64))
        dz = as_image(dy * inverse[:, None] * column(inputs.get("gamma")), geometry)
        outputs = {"dx": _dx(geometry, dz, inputs["w"], dtype), "dw": _dw(geometry, inputs["x"], dz, dtype)}
        if geometry.affine:
            product = double_double.dot(dy, z - column(inputs["running_mean"]) + low)[0]
            outputs |= {"dgamma": product * inverse, "dbeta": double_double.summed(dy)[0]}
        return outputs

    def magnitude(self, geometry: ConvBnGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Return z, s2 of z, d = z - running_mean and dz as [K, M]; sums of dy and dy*d as [K]; dx, dw and their s2."""
        z, _ = convolved(geometry, inputs, np.float64)
        d = z - column(inputs["running_mean"])
        dy = by_channel(inputs["dy"].astype(np.float64))
        inverse = geometry.inverse(inputs["running_var"].astype(np.float64))
        dz = dy * inverse[:, None] * column(inputs.get("gamma"))
        s2 = CONV.magnitude(geometry.conv, _pair(inputs), dtype)["y"]
        of_dx, of_dw = ({"dy": as_image(dz, geometry), name: inputs[name]} for name in ("w", "x"))
        return {
            **{"z": z, "s2": by_channel(s2.astype(np.float64)), "d": d, "dz": dz},
            **{"total": dy.sum(axis=1), "product": (dy * d).sum(axis=1)},
            **_GRADIENT.reference(geometry.conv, of_dx, dtype),
            **_WEIGHT.reference(geometry.conv, of_dw, dtype),
            "s2_dx": _GRADIENT.magnitude(geometry.conv, of_dx, dtype)["dx"].astype(np.float64),
            "s2_dw": _WEIGHT.magnitude(geometry.conv, of_dw, dtype)["dw"].astype(np.float64),
        }


class ConvBnInference(ConvBn):
    """x, w, gamma?, beta?, running_mean, running_var -> y."""

    name = "conv_bn_inference"
    returns = ("y",)
    needs_running = True
    homogeneous = Homogeneous(("x", "beta", "running_mean"), ("y",))
    invalid = INVALID
    gradients = (FrozenBackward(),)

    def nonfinite(self, geometry: ConvBnGeometry) -> Iterator[Special]:
        """Yield places in every input: given statistics do not spread infinities. An infinite variance leaves beta."""
        yield from super().nonfinite(geometry)
        values = _nonfinite(geometry)
        for value in NONFINITE:
            values.append(("running_mean", (), value))
            if value >= 0 or math.isnan(value):
                values.append(("running_var", (), value))
            if geometry.affine:
                values.append(("beta", (), value))
        yield from special_values.apart(geometry.k, values)

    def errors(self, geometry: ConvBnGeometry) -> ErrorModel:
        """Count C/g*R*S products."""
        return self.error_model(geometry, {"y": geometry.filter.size // geometry.k}, propagation.inference)

    def reference(self, geometry: ConvBnGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Normalise z by the running statistics."""
        z, low = convolved(geometry, inputs, dtype)
        inverse = geometry.inverse(inputs["running_var"].astype(np.float64))
        return {"y": normalised(geometry, z - column(inputs["running_mean"]) + low, inverse, inputs)}

    def magnitude(self, geometry: ConvBnGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Return z and s2 of z as [K, M]."""
        sums = (
            CONV.reference(geometry.conv, _pair(inputs))["y"],
            CONV.magnitude(geometry.conv, _pair(inputs), dtype)["y"],
        )
        return {"z": by_channel(sums[0]), "s2": by_channel(sums[1].astype(np.float64))}


MAX_APART = 14
"""Binades between the gradients of two groups beyond which slices must reach further down for the smaller one."""
HALF = 27
"""Largest number of bits of a factor that leaves enough of float64's 53 bits for the other factor and the sum."""


class ConvBnBackward(ConvBn):
    """dy, x, w, gamma? -> dx, dw, dgamma[K]?, dbeta[K]?: gradients through the batch's own statistics."""

    name = "conv_bn_backward"
    arguments = ("dy", "x", "w", "gamma")
    returns = ("dx", "dw", "dgamma", "dbeta")
    capabilities = ("output_mask",)
    takes_empty_batch = False
    homogeneous = Homogeneous(("dy",), ("dx", "dw", "dgamma", "dbeta"))

    def determines(self, geometry: ConvBnGeometry, distribution: str) -> bool:
        """Tell whether results are unique: not if whole channels of dz are NaN and meet the padding, which algorithms
        multiply by zero or skip."""
        return distribution not in ("special", "nonfinite") or not taps_of_padding(geometry)

    def nonfinite(self, geometry: ConvBnGeometry) -> Iterator[Special]:
        """Yield NaN in a filter, in gamma and in dy, each in its own channel."""
        values: list[Special] = [*_nonfinite(geometry), ("dy", (0,) * geometry.rank, math.nan)]
        for name, (k, *place), value in special_values.apart(geometry.k, values):
            yield name, (0, k, *place) if name == "dy" else (k, *place), value

    def errors(self, geometry: ConvBnGeometry) -> ErrorModel:
        """Count the terms of dx as in a convolution's gradient, and M for the other gradients."""
        terms = dict.fromkeys(self.outputs(geometry), geometry.count) | dict(_GRADIENT.errors(geometry).terms)
        return self.error_model(geometry, terms, propagation.backward)

    def flops(self, geometry: ConvBnGeometry) -> int:
        """Count the recomputation of z and both gradients of the convolution."""
        return 3 * CONV.flops(geometry)

    def reference(self, geometry: ConvBnGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute dz by the chain rule through mean and variance, then the gradients of the convolution."""
        gradient = Gradient.of(geometry, inputs, dtype)
        dz = as_image(gradient.dz, geometry)
        outputs = {"dx": _dx(geometry, dz, inputs["w"], dtype), "dw": _dw(geometry, inputs["x"], dz, dtype)}
        if geometry.affine:
            outputs |= {"dgamma": gradient.product[0] * gradient.inverse, "dbeta": gradient.total[0]}
        return outputs

    def magnitude(self, geometry: ConvBnGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Return forward's scales; dz [K, M]; sums of dy and dy*d [K]; dx, dw, their s2; dw for dz = 1 and for d."""
        gradient = Gradient.of(geometry, inputs, np.float64)
        dz = as_image(gradient.dz, geometry)
        conv, x, w = geometry.conv, inputs["x"], inputs["w"]
        patterns = {
            "ones": np.ones(geometry.y.shape, np.float32),
            "distances": as_image(gradient.statistics.d, geometry),
        }
        return intermediate(geometry, inputs, dtype) | {
            "dz": gradient.dz,
            "total": gradient.total[0],
            "product": gradient.product[0],
            **_GRADIENT.reference(conv, {"dy": dz, "w": w}, dtype),
            **_WEIGHT.reference(conv, {"x": x, "dy": dz}, dtype),
            "s2_dx": _GRADIENT.magnitude(conv, {"dy": dz, "w": w}, dtype)["dx"].astype(np.float64),
            "s2_dw": _WEIGHT.magnitude(conv, {"x": x, "dy": dz}, dtype)["dw"].astype(np.float64),
            **{name: _WEIGHT.reference(conv, {"x": x, "dy": dy})["dw"] for name, dy in patterns.items()},
        }


@dataclass(frozen=True, slots=True)
class Gradient:
    """dz [K, M], and per channel the sums of dy and of dy*d, and the inverse deviation."""

    statistics: BatchStatistics
    dz: np.ndarray
    total: Double
    product: Double
    inverse: np.ndarray

    @classmethod
    def of(cls, geometry: ConvBnGeometry, inputs: Given, dtype: Any) -> Gradient:
        """Compute dz = gamma * inv * (dy - sum(dy)/M - d * pull) from dy, x, w and gamma."""
        statistics = BatchStatistics.of(geometry, inputs, dtype)
        dy = by_channel(inputs["dy"].astype(np.float64))
        sums = double_double.summed(dy), double_double.dot(dy, statistics.d)
        var = statistics.variance(geometry.freedom)
        mean, rest = double_double.divided(sums[0], float(geometry.count))
        centred = (dy - mean[:, None]) - rest[:, None]
        inner = centred - statistics.d * pull(geometry, var, sums[1][0])[:, None]
        inverse = geometry.inverse(var)
        return cls(statistics, inner * inverse[:, None] * column(inputs.get("gamma")), *sums, inverse)


def _dx(geometry: ConvBnGeometry, dz: np.ndarray, w: np.ndarray, dtype: Any) -> np.ndarray:
    """Compute backward-data of dz; filters are brought to one scale, so that slices need not span their range."""
    level, scale = double_double.levelled(w)
    raised = np.ldexp(dz, per_channel(scale, geometry.rank))
    # elements of dz that meet only filters of zeros reach no dx, and would take bits of the slices from other elements
    raised[np.isfinite(raised) & ~per_channel((level != 0).reshape(geometry.k, -1).any(1), geometry.rank)] = 0
    largest = np.max(
        np.abs(raised).swapaxes(0, 1).reshape(geometry.groups, -1),
        axis=1, where=np.isfinite(raised).swapaxes(0, 1).reshape(geometry.groups, -1), initial=0.0,
    )  # fmt: skip
    exponents = np.frexp(largest[largest > 0])[1]
    apart = int(np.ptp(exponents)) if exponents.size else 0
    return _in_slices(
        _GRADIENT,
        geometry,
        ("dy", raised, tuple(range(raised.ndim))),
        ("w", level),
        dtype,
        apart if apart > MAX_APART else 0,
    )


def _dw(geometry: ConvBnGeometry, x: np.ndarray, dz: np.ndarray, dtype: Any) -> np.ndarray:
    """Compute backward-weight of dz."""
    return _in_slices(_WEIGHT, geometry, ("dy", dz, places(dz)), ("x", x.astype(np.float64)), dtype)


def _in_slices(
    operator: Operator,
    geometry: ConvBnGeometry,
    sliced: tuple[str, np.ndarray, tuple[int, ...]],
    other: tuple[str, np.ndarray],
    dtype: Any,
    further: int = 0,
) -> np.ndarray:
    """Compute the operator's main output as a sum of exact parts, smallest first. One input is cut into slices that
    share a grid along the given axes; the other is cut into slices of HALF bits if it has more bits than that."""
    (name, array, axes), (factor, values) = sliced, other
    main, terms = next(iter(operator.errors(geometry.conv).terms.items()))
    halves = double_double.cut(values, HALF) if double_double.width(values) > HALF else [values]
    parts = [
        operator.reference(geometry.conv, {name: part, factor: half}, dtype)[main]
        for part in double_double.sliced(array, min(double_double.room(half, terms) for half in halves), axes, further)
        for half in halves
    ]
    total: np.ndarray = parts[-1]
    for part in reversed(parts[:-1]):
        total = total + part
    return total


FAMILY = Family(
    geometry=ConvBnGeometry,
    operators=(ConvBnForward(), ConvBnBackward(), ConvBnInference()),
    distributions=("fixed", "natural", "scaled", "shifted", "special", "nonfinite", "range"),
    place=1,
    storages=Storages(
        everywhere=("bn.plain", "bn.pointwise", "bn.depthwise", "bn.unpadded", "bn.asymmetric-all"),
        large=("unet.bn.64x64", "resnet50.bn.conv3.downsample", "mobilenetv2.bn.dw96s2"),
        one_channel="bn.channel1",
        mixed=(("bn.sums-beyond-fp16", "fp16", "scaled"),),
        one_image=("bn.one-image",),
        once={
            1: ("bn.rank1", "bn.rank1-groups", "bn.rank1-pointwise"),
            3: ("bn.rank3", "bn.rank3-stride", "bn.rank3-pointwise"),
        },
    ),
    equal_shapes=("bn n3 c4 h4 w5 k4 r2 s2 u2 p1:0x0:1", "bn n2 c3 h3 w3 k3 r3 s3 p1", "bn n2 c4 h6 w7 k4 r3 s3 p1 g2"),
    partial=("bn n3 c5 h7 w9 k7 r3 s3 p1", "bn n3 c11 h5 w5 k7 r1 s1 affine0 run0"),
    # statistics of shifted data beyond the blocks that sums are made of
    at_smoke=(Brought(lambda geometry: geometry.count > 1000, lambda variant: variant.distribution == "shifted"),),
    goldens=(
        "conv_bn_forward bn.plain fp32 scaled",
        "conv_bn_forward bn.tutorial fp32 shifted",
        "conv_bn_backward bn.groups-stride fp32 fixed",
        "conv_bn_inference bn.plain bf16 fixed",
    ),
    timed=("networks.reduced", "networks"),
    lacks=("odd", "sparse"),
)
