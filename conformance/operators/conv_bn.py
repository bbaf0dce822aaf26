"""Convolution fused with batch normalisation: training forward and backward, and inference.

With z = conv(x, w) without bias, over the M = N*P*Q elements of a channel (Ioffe and Szegedy 2015):

    mean = sum z / M,   var = sum (z - mean)^2 / M,   y = (z - mean) * inv * gamma + beta,   inv = 1 / sqrt(var + eps)

`eps_outside` is the other convention in use, of a tutorial on custom functions in PyTorch: the unbiased variance
sum (z - mean)^2 / (M - 1), and inv = 1 / (sqrt(var) + eps). Running statistics move by `momentum` toward the mean and
the unbiased variance in both. gamma and beta are absent where the problem is not affine.

The references carry statistics in twice the precision of float64 (`conformance.operators.extended`); z is exact on the
data of `conformance.inputs`, and so are the slices of dz that gradients are made from, so every bit is reproducible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from conformance.operators import descriptor, extended
from conformance.operators.base import Arrays, Tensor
from conformance.operators.conv import LETTERS, ConvForward, ConvGeometry
from conformance.operators.extended import Double
from conformance.operators.spatial import GeometryError

PREFIX = "bn"
"""First word of a descriptor."""
_LETTERS = {name: meaning for name, meaning in LETTERS.items() if name != "b"} | {
    "affine": "gamma and beta (0 or 1)",
    "run": "running statistics (0 or 1)",
    "eps": "epsilon, 10 to minus this",
    "outside": "epsilon added to the root of the unbiased variance (0 or 1)",
    "mom": "momentum in percent",
}
CONV = ConvForward()


@dataclass(frozen=True, slots=True)
class ConvBnGeometry(ConvGeometry):
    """A convolution without bias and the normalisation of its output. `eps` is 10**-eps_digits."""

    affine: bool = True
    running: bool = True
    eps_digits: int = 5
    eps_outside: bool = False
    momentum_percent: int = 10

    family: ClassVar[str] = "conv_bn"

    def __post_init__(self) -> None:
        ConvGeometry.__post_init__(self)
        if self.bias:
            raise GeometryError("a convolution before batch normalisation has no bias: the mean takes it away again")
        if self.count < 2:
            raise GeometryError("the variance of one element a channel is undefined; enlarge n, h or w")
        if not 1 <= self.eps_digits <= 9:
            raise GeometryError(f"eps{self.eps_digits} stands for 1e-{self.eps_digits}; it must be eps1 to eps9")
        if not 0 <= self.momentum_percent <= 100:
            raise GeometryError(f"mom{self.momentum_percent} is in percent; it must be mom0 to mom100")

    @classmethod
    def parse(cls, text: str) -> ConvBnGeometry:
        """Read a descriptor such as `bn n2 c8 h9 w9 k16 r3 s3 p1 affine0 eps3`; raises GeometryError."""
        found = descriptor.fields(text.removeprefix(PREFIX), _LETTERS)
        conv = {letter: value for letter, value in found.items() if letter in LETTERS}
        plain = ConvGeometry.parse(" ".join(letter + value for letter, value in conv.items()))
        return cls(
            **{name: getattr(plain, name) for name in ConvGeometry.__slots__},
            affine=descriptor.flag(found, "affine", 1),
            running=descriptor.flag(found, "run", 1),
            eps_digits=descriptor.integer(found, "eps", 5),
            eps_outside=descriptor.flag(found, "outside"),
            momentum_percent=descriptor.integer(found, "mom", 10),
        )

    @property
    def descriptor(self) -> str:
        """Canonical text of the problem; `parse` reads it back."""
        parts = [PREFIX, self.conv.descriptor]
        parts.append("" if self.affine else "affine0")
        parts.append("" if self.running else "run0")
        parts.append("" if self.eps_digits == 5 else f"eps{self.eps_digits}")
        parts.append("outside1" if self.eps_outside else "")
        parts.append("" if self.momentum_percent == 10 else f"mom{self.momentum_percent}")
        return " ".join(filter(None, parts))

    @property
    def conv(self) -> ConvGeometry:
        """The convolution alone."""
        return ConvGeometry(**{name: getattr(self, name) for name in ConvGeometry.__slots__})

    @property
    def eps(self) -> float:
        """What keeps the root away from zero."""
        return float(f"1e-{self.eps_digits}")

    @property
    def momentum(self) -> float:
        """Share of the new statistics in the running ones."""
        return self.momentum_percent / 100

    @property
    def count(self) -> int:
        """M, the elements of a channel."""
        return self.y.size // self.k

    @property
    def freedom(self) -> int:
        """What the variance is divided by where y is computed."""
        return self.count - self.eps_outside

    def statistic(self, *, positive: bool = False) -> Tensor:
        """One wide number a channel."""
        return Tensor("K", (self.k,), wide=True, positive=positive)

    def inverse(self, var: np.ndarray) -> np.ndarray:
        """1 / sqrt(var + eps), or 1 / (sqrt(var) + eps)."""
        deviation: np.ndarray = np.sqrt(var) + self.eps if self.eps_outside else np.sqrt(var + self.eps)
        return 1 / deviation


def by_channel(image: np.ndarray) -> np.ndarray:
    """[N, K, P, Q] as [K, M]."""
    return np.ascontiguousarray(image.swapaxes(0, 1)).reshape(image.shape[1], -1)


def as_image(channels: np.ndarray, geometry: ConvGeometry) -> np.ndarray:
    """[K, M] as [N, K, P, Q]."""
    n, k, p, q = geometry.y.shape
    return np.ascontiguousarray(channels.reshape(k, n, p, q).swapaxes(0, 1))


@dataclass(frozen=True, slots=True)
class Statistics:
    """A channel's elements z [K, M], their distances d from the mean, the mean [K] and the sum of d^2 [K]."""

    z: np.ndarray
    d: np.ndarray
    mean: np.ndarray
    squares: Double

    @classmethod
    def of(cls, geometry: ConvBnGeometry, inputs: Mapping[str, np.ndarray], dtype: Any) -> Statistics:
        """From x and w; the convolution in `dtype`, everything after it in extended precision."""
        z = by_channel(CONV.reference(geometry.conv, _pair(inputs), dtype)["y"].astype(np.float64))
        mean, rest = extended.divided(extended.summed(z), float(geometry.count))
        d = (z - mean[:, None]) - rest[:, None]
        return cls(z, d, mean, extended.dot(d, d))

    def variance(self, freedom: int) -> np.ndarray:
        """The sum of squares over M or M - 1."""
        return extended.divided(self.squares, float(freedom))[0]


def _pair(inputs: Mapping[str, np.ndarray]) -> Arrays:
    return {"x": inputs["x"], "w": inputs["w"]}


def column(values: np.ndarray | None) -> np.ndarray | float:
    """A parameter [K] as [K, 1] in float64; one where there is none."""
    return 1.0 if values is None else values.astype(np.float64)[:, None]


class ConvBn:
    """What the three operators share."""

    name: str
    family = "conv_bn"
    infinities = False
    data = "x"
    operand = "w"
    free_axis = 0
    factors = 2
    keywords: tuple[str, ...] = ("stride", "padding", "dilation", "groups", "eps", "eps_outside", "layout")

    def inputs(self, geometry: ConvBnGeometry) -> dict[str, Tensor]:
        """Arguments in call order."""
        raise NotImplementedError

    def outputs(self, geometry: ConvBnGeometry) -> dict[str, Tensor]:
        """Results in return order."""
        raise NotImplementedError

    def parameters(self, geometry: ConvBnGeometry) -> dict[str, Any]:
        """Keyword arguments that all three take."""
        return {**CONV.parameters(geometry), "eps": geometry.eps, "eps_outside": geometry.eps_outside}

    def span(self, geometry: ConvBnGeometry) -> int:
        """z must be exact; what follows is not."""
        return geometry.filter.size // geometry.k

    def constants(self, geometry: ConvBnGeometry) -> int:
        """None."""
        return 0

    def alike(self, geometry: ConvBnGeometry) -> bool:
        """There is none."""
        return True

    def sharing(self, geometry: ConvBnGeometry) -> int:
        """Every element has a sum of its own."""
        return 1

    def nan_place(self, geometry: ConvBnGeometry) -> tuple[int, ...] | None:
        """None: statistics spread it over its channel."""
        return None

    def exact_on_integers(self, geometry: ConvBnGeometry) -> bool:
        """There is a root in it."""
        return False

    def flops(self, geometry: ConvBnGeometry) -> int:
        """The convolution's; normalisation is bound by memory."""
        return CONV.flops(geometry)

    def bytes(self, geometry: ConvBnGeometry, itemsize: int) -> int:
        """Every input read once, every output written once; statistics are counted like the other tensors."""
        tensors = [*self.inputs(geometry).values(), *self.outputs(geometry).values()]
        return itemsize * sum(tensor.size for tensor in tensors)


def _affine(geometry: ConvBnGeometry) -> dict[str, Tensor]:
    return {"gamma": geometry.statistic(), "beta": geometry.statistic()} if geometry.affine else {}


def _running(geometry: ConvBnGeometry) -> dict[str, Tensor]:
    return {"running_mean": geometry.statistic(), "running_var": geometry.statistic(positive=True)}


_ARGUMENTS = ("x", "w", "gamma", "beta", "running_mean", "running_var")


class ConvBnForward(ConvBn):
    """x, w, gamma?, beta?, running_mean?, running_var? -> y, mean[K], var[K], running_mean[K]?, running_var[K]?."""

    name = "conv_bn_forward"
    keywords: tuple[str, ...] = (*ConvBn.keywords, "momentum")

    def inputs(self, geometry: ConvBnGeometry) -> dict[str, Tensor]:
        """x, w and what the problem has of the others."""
        running = _running(geometry) if geometry.running else {}
        return {"x": geometry.x, "w": geometry.filter} | _affine(geometry) | running

    def arguments(self, geometry: ConvBnGeometry) -> tuple[str, ...]:
        """All six are always passed, None where absent."""
        return _ARGUMENTS

    def outputs(self, geometry: ConvBnGeometry) -> dict[str, Tensor]:
        """var is the variance that y was divided by: biased, or unbiased where eps is outside of the root."""
        found = {"y": geometry.y, "mean": geometry.statistic(), "var": geometry.statistic(positive=True)}
        return found | (_running(geometry) if geometry.running else {})

    def parameters(self, geometry: ConvBnGeometry) -> dict[str, Any]:
        """The common ones and momentum."""
        return {**super().parameters(geometry), "momentum": geometry.momentum}

    def terms(self, geometry: ConvBnGeometry) -> dict[str, int]:
        """C/g*R*S products in an element of y, M elements in a statistic."""
        statistics = dict.fromkeys(self.outputs(geometry), geometry.count)
        return statistics | {"y": geometry.filter.size // geometry.k}

    def reference(self, geometry: ConvBnGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """y and the statistics, old and new."""
        found = Statistics.of(geometry, inputs, dtype)
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
    moved: np.ndarray = (1 - geometry.momentum) * old.astype(np.float64) + geometry.momentum * new
    return moved


def intermediate(geometry: ConvBnGeometry, inputs: Mapping[str, np.ndarray], dtype: Any) -> Arrays:
    """z, s2 of z and d as [K, M]; mean and var as [K]. s2 is computed in `dtype`."""
    found = Statistics.of(geometry, inputs, np.float64)
    s2 = by_channel(CONV.magnitude(geometry.conv, _pair(inputs), dtype)["y"].astype(np.float64))
    var = found.variance(geometry.freedom)
    return {"z": found.z, "s2": s2, "d": found.d, "mean": found.mean, "var": var}


class ConvBnInference(ConvBn):
    """x, w, gamma?, beta?, running_mean, running_var -> y."""

    name = "conv_bn_inference"

    def inputs(self, geometry: ConvBnGeometry) -> dict[str, Tensor]:
        """Running statistics are always there."""
        return {"x": geometry.x, "w": geometry.filter} | _affine(geometry) | _running(geometry)

    def arguments(self, geometry: ConvBnGeometry) -> tuple[str, ...]:
        """All six are always passed, None where absent."""
        return _ARGUMENTS

    def outputs(self, geometry: ConvBnGeometry) -> dict[str, Tensor]:
        """y."""
        return {"y": geometry.y}

    def terms(self, geometry: ConvBnGeometry) -> dict[str, int]:
        """C/g*R*S products."""
        return {"y": geometry.filter.size // geometry.k}

    def reference(self, geometry: ConvBnGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """z normalised by what was learned before."""
        z = by_channel(CONV.reference(geometry.conv, _pair(inputs), dtype)["y"].astype(np.float64))
        inverse = geometry.inverse(inputs["running_var"].astype(np.float64))
        return {"y": normalised(geometry, z - column(inputs["running_mean"]), inverse, inputs)}

    def magnitude(self, geometry: ConvBnGeometry, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """z and s2 of z as [K, M]."""
        found = (
            CONV.reference(geometry.conv, _pair(inputs))["y"],
            CONV.magnitude(geometry.conv, _pair(inputs), dtype)["y"],
        )
        return {"z": by_channel(found[0]), "s2": by_channel(found[1].astype(np.float64))}
