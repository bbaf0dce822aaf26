"""Batch normalisation of a convolution in float64, in steps that a mistake can replace.

The default steps compute the same as the operators, without their extra precision. Images are [N, K, P, Q]; statistics
are arrays that broadcast to images, so that a mistake may take statistics over other elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.operators.base import Arrays
from conformance.operators.conv.operators import ConvBackwardData, ConvBackwardWeight, ConvForward
from conformance.operators.conv_bn.geometry import ConvBnGeometry
from conformance.operators.spatial import per_channel, places

FORWARD, BACKWARD, INFERENCE = "conv_bn_forward", "conv_bn_backward", "conv_bn_inference"
Average = Callable[[np.ndarray, ConvBnGeometry], np.ndarray]
"""(image, geometry) -> mean over the elements that share a statistic, broadcasting to the image."""


def over_batch(values: np.ndarray, _: ConvBnGeometry) -> np.ndarray:
    """Return the mean of every channel, averaging distances from its first element: constant channels are exact."""
    first = values[:1, :, *[slice(1)] * (values.ndim - 2)]
    return first + (values - first).mean(places(values), keepdims=True)


def summed(values: np.ndarray) -> np.ndarray:
    """Sum every channel."""
    return values.sum(places(values))


def convolved(geometry: ConvBnGeometry, inputs: Arrays) -> np.ndarray:
    """Compute z."""
    operands = {"x": inputs["x"], "w": inputs["w"]}
    return ConvForward().reference(geometry.conv, operands)["y"]


@dataclass(frozen=True, slots=True)
class Parts:
    """Intermediate results between inputs and outputs."""

    steps: Steps
    geometry: ConvBnGeometry
    inputs: Arrays
    z: np.ndarray
    mean: np.ndarray
    var: np.ndarray

    def given(self, name: str, absent: float = 1.0) -> Any:
        """Return an input [K] so that it broadcasts to images; `absent` if the problem does not have it."""
        array = self.inputs.get(name)
        return absent if array is None else per_channel(array.astype(np.float64), self.geometry.rank)[None]

    @property
    def gamma(self) -> Any:
        """gamma; 1 if the problem is not affine."""
        return self.given("gamma")

    @property
    def beta(self) -> Any:
        """beta; 0 if the problem is not affine."""
        return self.given("beta", 0.0)

    @property
    def d(self) -> np.ndarray:
        """Distances z - mean."""
        return self.z - self.mean

    @property
    def inverse(self) -> np.ndarray:
        """The inverse deviation."""
        return self.steps.inverse(self.var, self.geometry)

    @property
    def dy(self) -> np.ndarray:
        """Gradient of y, in float64."""
        return self.inputs["dy"].astype(np.float64)

    @property
    def mean_dy(self) -> np.ndarray:
        """Mean of dy, which the gradient through the mean subtracts from dy."""
        return self.average(self.dy)

    @property
    def pull(self) -> np.ndarray:
        """Factor of d in the term that the gradient through the variance subtracts from dy."""
        return self.average(self.dy * self.d) * self.inverse * self.steps.slope(self)

    def scaled(self, inverse: np.ndarray) -> np.ndarray:
        """Compute y with this inverse deviation."""
        return self.d * inverse * self.gamma + self.beta

    def average(self, values: np.ndarray) -> np.ndarray:
        """Average values over the elements that share a statistic."""
        return self.steps.average(values, self.geometry)

    def by_channel(self, values: np.ndarray) -> np.ndarray:
        """Return a statistic as [K], averaged if a channel has more than one."""
        n, k = self.z.shape[:2]
        return np.broadcast_to(values, (n, k, *values.shape[2:])).mean(places(values))

    @property
    def bessel(self) -> float:
        """Quotient of the unbiased variance and the variance that normalises y."""
        return self.geometry.freedom / (self.geometry.count - 1)


Step = Callable[[Parts], Any]
Statistics = tuple[np.ndarray, np.ndarray]
"""Mean and variance."""


def of_batch(steps: Steps, z: np.ndarray, geometry: ConvBnGeometry, inputs: Arrays) -> Statistics:
    """Return mean and variance of the batch."""
    mean = steps.average(z, geometry)
    return mean, steps.average((z - mean) ** 2, geometry) * geometry.count / steps.freedom(geometry)


def of_running(steps: Steps, z: np.ndarray, geometry: ConvBnGeometry, inputs: Arrays) -> Statistics:
    """Return the running mean and variance."""
    mean, var = (
        per_channel(inputs[name].astype(np.float64), geometry.rank)[None] for name in ("running_mean", "running_var")
    )
    return mean, var


def slope(parts: Parts) -> np.ndarray:
    """Return the second factor of `pull`: the inverse deviation, or with `eps_outside` M / (M - 1) / sqrt(var)."""
    if not parts.geometry.eps_outside:
        return parts.inverse
    root = np.sqrt(parts.var) * parts.geometry.freedom / parts.geometry.count
    return np.divide(1, root, out=np.zeros_like(root), where=root != 0)


def moved(parts: Parts, share: float, mean: np.ndarray, var: np.ndarray) -> Arrays:
    """Move the running statistics by `share` of the way to `mean` and `var`."""
    news = {"running_mean": mean, "running_var": var}
    return {
        name: (1 - share) * parts.inputs[name].astype(np.float64) + share * parts.by_channel(new)
        for name, new in news.items()
    }


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a kernel; the defaults are correct."""

    convolution: Callable[[ConvBnGeometry, Arrays], np.ndarray] = convolved
    statistics: Callable[[Steps, np.ndarray, ConvBnGeometry, Arrays], Statistics] | None = None
    seen: Callable[[np.ndarray], np.ndarray] = lambda statistic: statistic
    average: Average = over_batch
    freedom: Callable[[ConvBnGeometry], float] = lambda geometry: geometry.freedom
    inverse: Callable[[np.ndarray, ConvBnGeometry], np.ndarray] = lambda var, geometry: geometry.inverse(var)
    y: Step = lambda parts: parts.scaled(parts.inverse)
    returned: Step = lambda parts: (parts.mean, parts.var)
    running: Step = lambda parts: moved(parts, parts.geometry.momentum, parts.mean, parts.var * parts.bessel)
    slope: Step = slope
    dz: Step = lambda parts: parts.gamma * parts.inverse * (parts.dy - parts.mean_dy - parts.d * parts.pull)
    dgamma: Step = lambda parts: summed(parts.dy * parts.d * parts.inverse)
    dbeta: Step = lambda parts: summed(parts.dy)
    dz_of_dx: Step = lambda parts: parts.steps.dz(parts)
    dz_of_dw: Step = lambda parts: parts.steps.dz(parts)
    w_of_dx: Callable[[np.ndarray], np.ndarray] = lambda w: w

    def outputs(self, operator: str, geometry: ConvBnGeometry, inputs: Arrays) -> Arrays:
        """Return the outputs of a kernel made of these steps."""
        z = self.convolution(geometry, inputs)
        statistics = self.statistics or (of_running if operator == INFERENCE else of_batch)
        mean, var = statistics(self, z, geometry, inputs)
        parts = Parts(self, geometry, inputs, z, self.seen(mean), self.seen(var))
        return _OUTPUTS[operator](self, parts)


def _forward(steps: Steps, parts: Parts) -> Arrays:
    mean, var = (parts.by_channel(values) for values in steps.returned(parts))
    outputs = {"y": steps.y(parts), "mean": mean, "var": var}
    return outputs | (steps.running(parts) if parts.geometry.running else {})


def _inference(steps: Steps, parts: Parts) -> Arrays:
    return {"y": steps.y(parts)}


def _backward(steps: Steps, parts: Parts) -> Arrays:
    conv, inputs = parts.geometry.conv, parts.inputs
    of_dx = {"dy": steps.dz_of_dx(parts), "w": steps.w_of_dx(inputs["w"])}
    of_dw = {"x": inputs["x"], "dy": steps.dz_of_dw(parts)}
    outputs = ConvBackwardData().reference(conv, of_dx)
    outputs |= ConvBackwardWeight().reference(conv, of_dw)
    if parts.geometry.affine:
        outputs |= {"dgamma": steps.dgamma(parts), "dbeta": steps.dbeta(parts)}
    return outputs


_OUTPUTS: dict[str, Callable[[Steps, Parts], Arrays]] = {
    FORWARD: _forward,
    BACKWARD: _backward,
    INFERENCE: _inference,
}
