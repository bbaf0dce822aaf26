"""The gradients of convolution and batch normalisation together, through the batch's own statistics.

With total = sum dy and product = sum dy*d over a channel, d = z - mean (Ioffe and Szegedy 2015, section 3):

    dz = gamma * inv * (dy - total/M - d * pull),   pull = product * inv^2 / M,   dgamma = product * inv

dbeta = total, and dx, dw are the gradients of the convolution at dz. Where eps is outside of the root, the derivative
of inv = 1 / (s + eps), s = sqrt(sum d^2 / (M - 1)), makes pull = product * inv / (s * (M - 1)).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.operators import double_double
from conformance.operators.base import Arrays, ErrorModel, Homogeneous, Operator
from conformance.operators.conv.operators import ConvBackwardData, ConvBackwardWeight
from conformance.operators.conv_bn import propagation
from conformance.operators.conv_bn.geometry import ConvBnGeometry
from conformance.operators.conv_bn.operators import CONV, BatchStatistics, ConvBn, intermediate
from conformance.operators.conv_bn.propagation import pull
from conformance.operators.double_double import Double
from conformance.operators.spatial import as_image, by_channel, column, per_channel, places

MAX_APART = 14
"""Binades between the gradients of groups beyond which slices must reach further down for the smaller one."""
HALF = 27
"""Bits of a factor that leave enough of float64's 53 for the other one and the sum."""
_GRADIENT, _WEIGHT = ConvBackwardData(), ConvBackwardWeight()


class ConvBnBackward(ConvBn):
    """dy, x, w, gamma? -> dx, dw, dgamma[K]?, dbeta[K]?: gradients through the batch's own statistics."""

    name = "conv_bn_backward"
    arguments = ("dy", "x", "w", "gamma")
    returns = ("dx", "dw", "dgamma", "dbeta")
    capabilities = ("output_mask",)
    takes_empty_batch = False
    homogeneous = Homogeneous(("dy",), ("dx", "dw", "dgamma", "dbeta"))

    def errors(self, geometry: ConvBnGeometry) -> ErrorModel:
        """As in the gradients of a convolution; M in those of the parameters."""
        terms = dict.fromkeys(self.outputs(geometry), geometry.count) | dict(_GRADIENT.errors(geometry).terms)
        return self.error_model(geometry, terms, propagation.backward)

    def flops(self, geometry: ConvBnGeometry) -> int:
        """z again, and both gradients."""
        return 3 * CONV.flops(geometry)

    def reference(self, geometry: ConvBnGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """dz by the chain rule through mean and variance, then the gradients of the convolution."""
        found = Gradient.of(geometry, inputs, dtype)
        dz = as_image(found.dz, geometry)
        outputs = {"dx": _dx(geometry, dz, inputs["w"], dtype), "dw": _dw(geometry, inputs["x"], dz, dtype)}
        if geometry.affine:
            outputs |= {"dgamma": found.product[0] * found.inverse, "dbeta": found.total[0]}
        return outputs

    def magnitude(self, geometry: ConvBnGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """What forward has; dz as [K, M]; sums of dy and dy*d as [K]; dx, dw and their s2; dw for dz = 1 and dz = d."""
        found = Gradient.of(geometry, inputs, np.float64)
        dz = as_image(found.dz, geometry)
        conv, x, w = geometry.conv, inputs["x"], inputs["w"]
        patterns = {"ones": np.ones(geometry.y.shape, np.float32), "distances": as_image(found.statistics.d, geometry)}
        return intermediate(geometry, inputs, dtype) | {
            "dz": found.dz,
            "total": found.total[0],
            "product": found.product[0],
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
    def of(cls, geometry: ConvBnGeometry, inputs: Mapping[str, np.ndarray], dtype: Any) -> Gradient:
        """From dy, x, w and gamma: dz = gamma * inv * (dy - sum(dy)/M - d * pull)."""
        found = BatchStatistics.of(geometry, inputs, dtype)
        dy = by_channel(inputs["dy"].astype(np.float64))
        sums = double_double.summed(dy), double_double.dot(dy, found.d)
        var = found.variance(geometry.freedom)
        mean, rest = double_double.divided(sums[0], float(geometry.count))
        centred = (dy - mean[:, None]) - rest[:, None]
        inner = centred - found.d * pull(geometry, var, sums[1][0])[:, None]
        inverse = geometry.inverse(var)
        return cls(found, inner * inverse[:, None] * column(inputs.get("gamma")), *sums, inverse)


def _dx(geometry: ConvBnGeometry, dz: np.ndarray, w: np.ndarray, dtype: Any) -> np.ndarray:
    """backward-data of dz; filters are brought to one scale, so that slices need not span their range."""
    level, scale = double_double.levelled(w)
    raised = np.ldexp(dz, per_channel(scale, geometry.rank))
    # what meets filters of zeros alone reaches no dx, and would leave the others few bits of the slices
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
    """backward-weight of dz."""
    return _in_slices(_WEIGHT, geometry, ("dy", dz, places(dz)), ("x", x.astype(np.float64)), dtype)


def _in_slices(
    operator: Operator,
    geometry: ConvBnGeometry,
    sliced: tuple[str, np.ndarray, tuple[int, ...]],
    other: tuple[str, np.ndarray],
    dtype: Any,
    further: int = 0,
) -> np.ndarray:
    """The operator's main output, added up from the smallest of exact parts: one input in slices along the axes given,
    the other in two where it has more than half of the bits of float64."""
    (name, array, axes), (factor, values) = sliced, other
    main, terms = next(iter(operator.errors(geometry.conv).terms.items()))
    halves = double_double.cut(values, HALF) if double_double.width(values) > HALF else [values]
    parts = [
        operator.reference(geometry.conv, {name: part, factor: half}, dtype)[main]
        for part in double_double.sliced(array, min(double_double.room(half, terms) for half in halves), axes, further)
        for half in halves
    ]
    found: np.ndarray = parts[-1]
    for part in reversed(parts[:-1]):
        found = found + part
    return found
