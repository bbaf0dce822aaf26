"""Mistakes of requantized convolution: zero points, scales, roundings, what does not fit in 8 bits; and those of the
convolution that it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.dtypes import WHOLE, name_of
from conformance.operators.base import Arrays, Operator
from conformance.operators.conv.mistakes import CONVOLVING
from conformance.operators.conv_requantized.geometry import HIGHEST, LOWEST, RequantizedGeometry
from conformance.operators.conv_requantized.operators import scaled
from conformance.operators.conv_requantized.storing import TIES
from conformance.operators.mistakes import Compute, InapplicableError, Mistake, misread
from conformance.operators.spatial import is_padded, padded, unpadded


def _whole(inputs: Arrays) -> None:
    if name_of(inputs["x"].dtype) not in WHOLE:
        raise InapplicableError


def _padded_first(operator: Operator, g: RequantizedGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Padding is 0 before the zero point is taken off, so that it is -zx."""
    if not (g.x_zero_point and is_padded(g.padding)):
        raise InapplicableError
    size = tuple(extent + sum(sides) for extent, sides in zip(g.size, g.padding, strict=True))
    image = padded(inputs["x"], g.padding, inputs["x"].dtype)
    return operator.reference(replace(g, size=size, padding=unpadded(g.rank)), inputs | {"x": image}, dtype)


_ZERO_POINTS: dict[str, Compute] = {
    "zero point of x not taken off": misread(lambda g: replace(g, x_zero_point=0)),
    "zero point of x taken off of padding": _padded_first,
    "zero point of x added": misread(lambda g: replace(g, x_zero_point=-g.x_zero_point)),
    "zero point of y left out": misread(lambda g: replace(g, y_zero_point=0)),
    "zero point of y taken off": misread(lambda g: replace(g, y_zero_point=-g.y_zero_point)),
    "zero points of x and y exchanged": misread(
        lambda g: replace(g, x_zero_point=g.y_zero_point, y_zero_point=g.x_zero_point)
    ),
}


def _ended(store: Callable[[RequantizedGeometry, np.ndarray], np.ndarray]) -> Compute:
    """Whole numbers from exact products."""

    def compute(operator: Operator, g: RequantizedGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        _whole(inputs)
        return {"y": store(g, scaled(g, inputs)).astype(dtype)}

    return compute


def _rounded(rounding: Callable[[np.ndarray], np.ndarray]) -> Compute:
    return _ended(lambda g, values: np.clip(rounding(values) + g.y_zero_point, LOWEST, HIGHEST))


_STORING: dict[str, Compute] = {
    "truncated instead of rounded": _rounded(np.trunc),
    "rounded down instead of to nearest": _rounded(np.floor),
    "ties rounded away from zero": _rounded(TIES["away"]),
    "ties rounded up": _rounded(TIES["up"]),
    "wraps around at 8 bits instead of saturating": _ended(
        lambda g, values: (np.rint(values) + g.y_zero_point - LOWEST) % 256 + LOWEST
    ),
    "saturates at -127": _ended(lambda g, values: np.clip(np.rint(values) + g.y_zero_point, -HIGHEST, HIGHEST)),
    "saturates before the zero point of y is added": _ended(
        lambda g, values: np.clip(np.clip(np.rint(values), LOWEST, HIGHEST) + g.y_zero_point, LOWEST, HIGHEST)
    ),
}


def _given(change: Callable[[RequantizedGeometry, Arrays], Arrays]) -> Compute:
    """The reference of other inputs."""
    return lambda operator, g, inputs, dtype: operator.reference(g, inputs | change(g, inputs), dtype)


_SCALES: dict[str, Compute] = {
    "scale of the next filter": _given(lambda g, inputs: {"scale": np.roll(inputs["scale"], -1)}),
    "scale of the first filter for all": _given(
        lambda g, inputs: {"scale": np.full_like(inputs["scale"], inputs["scale"][0])}
    ),
    "scale inverted": _given(lambda g, inputs: {"scale": 1 / inputs["scale"]}),
}


def _bias_unscaled(operator: Operator, g: RequantizedGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Added to what is scaled already."""
    inverse = inputs["bias"] / inputs["scale"].astype(np.float64)
    return operator.reference(g, inputs | {"bias": inverse}, dtype)


_BIASES: dict[str, Compute] = {
    "bias left out": _given(lambda g, inputs: {"bias": np.zeros_like(inputs["bias"])}),
    "bias of the next filter": _given(lambda g, inputs: {"bias": np.roll(inputs["bias"], -1)}),
    "bias added after the scale": _bias_unscaled,
}

MISTAKES: tuple[Mistake, ...] = (
    *(Mistake(name, "formats", compute) for name, compute in (_ZERO_POINTS | _STORING | _SCALES).items()),
    *(Mistake(name, "formats", compute, when=lambda g: g.bias) for name, compute in _BIASES.items()),
    *CONVOLVING,
)
