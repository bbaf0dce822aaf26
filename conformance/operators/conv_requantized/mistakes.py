"""Mistakes of requantized convolution: zero points, scales, rounding, overflow of 8 bits, and the mistakes of a plain
convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.dtypes import FORMATS, STORAGE, name_of
from conformance.operators.base import Arrays, Operator
from conformance.operators.conv.mistakes import CONVOLVING
from conformance.operators.conv_requantized.geometry import HIGHEST, LOWEST
from conformance.operators.conv_requantized.geometry import RequantizedGeometry as Geometry
from conformance.operators.conv_requantized.operators import LARGEST, TIES, stored
from conformance.operators.conv_requantized.steps import Change, Steps, Store, around, exactly, saturated, wrapped
from conformance.operators.mistakes import Compute, InapplicableError, Mistake, misread

Image = Callable[[Geometry, np.ndarray], np.ndarray]
WHOLE_NUMBERS, FP8 = frozenset({"int8"}), frozenset(LARGEST)


def _made(dtypes: frozenset[str] = WHOLE_NUMBERS | FP8, **steps: Any) -> Compute:
    """Return the mistake of a kernel with these steps replaced and products computed exactly, for these dtypes."""
    kernel = Steps(**{"scaled": exactly} | steps)

    def compute(operator: Operator, g: Geometry, inputs: Arrays, dtype: Any) -> Arrays:
        name = name_of(inputs["x"].dtype)
        if name not in dtypes:
            raise InapplicableError
        return {"y": kernel(operator, g, inputs, name)["y"].astype(dtype)}

    return compute


_EXCHANGED: dict[str, Compute] = {
    "zero point of x not taken off": misread(lambda g: replace(g, x_zero_point=0)),
    "zero point of x added": misread(lambda g: replace(g, x_zero_point=-g.x_zero_point)),
    "zero point of y left out": misread(lambda g: replace(g, y_zero_point=0)),
    "zero point of y taken off": misread(lambda g: replace(g, y_zero_point=-g.y_zero_point)),
    "zero points of x and y exchanged": misread(
        lambda g: replace(g, x_zero_point=g.y_zero_point, y_zero_point=g.x_zero_point)
    ),
}


def _in_padding(side: int, axes: Sequence[int] = ()) -> Image:
    """Return the mistake that also subtracts the zero point from padding before (0) or after (1) the image, along
    `axes` or all axes."""

    def image(g: Geometry, x: np.ndarray) -> np.ndarray:
        found = around(g, x - g.x_zero_point)
        for axis in axes or range(-g.rank, 0):
            size, (before, after) = g.size[axis], g.padding[axis]
            beyond = [slice(None)] * found.ndim
            beyond[axis] = slice(0, before) if side == 0 else slice(before + size, before + size + after)
            found[tuple(beyond)] = -g.x_zero_point
        return found

    return image


_IMAGES: dict[str, Image] = {
    "zero point of x taken off of padding before the image": _in_padding(0),
    "zero point of x taken off of padding after the image": _in_padding(1),
    "zero point of x taken off of padding before the rows": _in_padding(0, (-1,)),
    "zero point of x taken off of padding after the rows": _in_padding(1, (-1,)),
    "zero point of x taken off of padding": lambda g, x: around(g, x) - g.x_zero_point,
    "zero point of x not taken off, padding holds it": lambda g, x: around(g, x, g.x_zero_point),
    "padding holds the zero point after it is taken off": lambda g, x: around(g, x - g.x_zero_point, g.x_zero_point),
    "zero point of x taken off twice": lambda g, x: around(g, x - 2 * g.x_zero_point),
    "zero point of y taken off of x": lambda g, x: around(g, x - g.y_zero_point),
    "x read as unsigned": lambda g, x: around(g, x % 256 - g.x_zero_point),
    "x less its zero point wraps around at 8 bits": lambda g, x: around(g, wrapped(x - g.x_zero_point)),
    "x less its zero point saturates at 8 bits": lambda g, x: around(g, np.clip(x - g.x_zero_point, LOWEST, HIGHEST)),
}


def _moved(by: Callable[[Geometry], int]) -> Store:
    return lambda g, values, dtype: stored(values, dtype, by(g))


def _saturated_first(g: Geometry, values: np.ndarray, dtype: str) -> np.ndarray:
    whole: np.ndarray = np.clip(np.rint(values), LOWEST, HIGHEST)
    return whole + g.y_zero_point


def _in_32_bits(g: Geometry, values: np.ndarray, dtype: str) -> np.ndarray:
    """Convert to 32 bits as x86 does: every number that is too large becomes -2^31."""
    whole = np.where(np.abs(values) < 2.0**31, np.rint(values), -(2.0**31))
    return np.clip(whole + g.y_zero_point, LOWEST, HIGHEST)


_WHOLE: dict[str, Store] = {
    "truncated instead of rounded": saturated(np.trunc),
    "rounded down instead of to nearest": saturated(np.floor),
    "rounded up instead of to nearest": saturated(np.ceil),
    "one half added and truncated": saturated(lambda values: np.trunc(values + 0.5)),
    "ties rounded away from zero": saturated(TIES["away"]),
    "ties rounded up": saturated(TIES["up"]),
    "ties rounded down": saturated(lambda values: -TIES["up"](-values)),
    "ties rounded toward zero": saturated(lambda values: np.copysign(-TIES["up"](-np.abs(values)), values)),
    "rounded after the zero point of y is added": lambda g, values, dtype: np.clip(
        np.rint(values + g.y_zero_point), LOWEST, HIGHEST
    ),
    "wraps around at 8 bits instead of saturating": lambda g, values, dtype: np.rint(values) + g.y_zero_point,
    "wraps around at the upper end instead of saturating": saturated(np.rint, high=np.inf),
    "wraps around at the lower end instead of saturating": saturated(np.rint, low=-np.inf),
    "wraps around at 32 bits before it saturates": _in_32_bits,
    "saturates at -127": saturated(np.rint, low=-HIGHEST),
    "saturates at 126": saturated(np.rint, high=HIGHEST - 1),
    "saturates at 0 and 127": saturated(np.rint, low=0),
    "saturates at 0 and 255": saturated(np.rint, low=0, high=255),
    "saturates before the zero point of y is added": lambda g, values, dtype: np.clip(
        _saturated_first(g, values, dtype), LOWEST, HIGHEST
    ),
    "saturates before the zero point of y is added, which wraps around": _saturated_first,
    "zero point of y added twice": _moved(lambda g: 2 * g.y_zero_point),
    "zero point of y read as unsigned": _moved(lambda g: g.y_zero_point % 256),
    "zero point of x added to y": _moved(lambda g: g.x_zero_point),
}


def _flushed(g: Geometry, values: np.ndarray, dtype: str) -> np.ndarray:
    result = stored(values, dtype)
    return np.where(np.abs(result) < FORMATS[dtype].smallest_normal, 0, result)


def _toward_zero(g: Geometry, values: np.ndarray, dtype: str) -> np.ndarray:
    nearest = stored(values, dtype)
    return np.where(np.abs(nearest) > np.abs(values), stored(values - (nearest - values), dtype), nearest)


_IN_FP8: dict[str, Store] = {
    "rounded toward zero instead of to nearest": _toward_zero,
    "saturates at 240": lambda g, values, dtype: stored(np.clip(values, -240, 240), dtype),
    "overflow loses its sign": lambda g, v, dtype: stored(np.where(v < -LARGEST[dtype], -v, v), dtype),
    "overflow becomes zero": lambda g, v, dtype: np.where(np.abs(v) > LARGEST[dtype], 0, stored(v, dtype)),
    "subnormal results flushed": _flushed,
    "stored as the other format of 8 bits": lambda g, values, dtype: stored(values, next(iter(FP8 - {dtype}))),
}


def _rounded_to(dtype: str) -> Change:
    return lambda values: values.astype(np.float32).astype(STORAGE[dtype]).astype(np.float64)


_SCALES: dict[str, Change] = {
    "scale of the next filter": lambda scale: np.roll(scale, -1),
    "scale of the first filter for all": lambda scale: np.full_like(scale, scale[0]),
    "scale of the last filter for all": lambda scale: np.full_like(scale, scale[-1]),
    "mean scale for all": lambda scale: np.full_like(scale, scale.mean()),
    "scale inverted": lambda scale: 1 / scale,
    "scale squared": np.square,
    "scale ignored": np.ones_like,
    "scale rounded to bf16": _rounded_to("bf16"),
    "scale rounded to fp16": _rounded_to("fp16"),
}

_BIASES: dict[str, dict[str, Any]] = {
    "bias left out": {"with_bias": lambda sums, bias, scale: sums},
    "bias of the next filter": {"with_bias": lambda sums, bias, scale: sums + np.roll(bias, -1, 0)},
    "bias taken off": {"with_bias": lambda sums, bias, scale: sums - bias},
    "bias added twice": {"with_bias": lambda sums, bias, scale: sums + 2 * bias},
    "bias scaled twice": {"with_bias": lambda sums, bias, scale: sums + bias * scale},
    "bias added after the scale": {
        "with_bias": lambda sums, bias, scale: sums,
        "late": lambda product, bias: product + bias,
    },
}

_SUMS: dict[str, dict[str, Any]] = {
    "filters read as unsigned": {"filters": lambda w: w % 256},
    "sums rounded to bf16 before the scale": {"scaled": lambda g, sums, scale: _rounded_to("bf16")(sums) * scale},
    "sums rounded to fp16 before the scale": {"scaled": lambda g, sums, scale: _rounded_to("fp16")(sums) * scale},
    "sums wrap around at 16 bits": {"scaled": lambda g, sums, scale: wrapped(sums, 16) * scale},
    "zero point of y added before the scale": {
        "scaled": lambda g, sums, scale: (sums + g.y_zero_point) * scale,
        "stored": _moved(lambda g: 0),
    },
}


def _corrected_by_first_group(operator: Operator, g: Geometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Correct sums of an uncentred x with zero point * sum(w), but use the first group's filters for every group."""
    if g.groups == 1 or not g.x_zero_point:
        raise InapplicableError
    own = inputs["w"].astype(np.float64).reshape(g.k, -1).sum(1)
    left = g.x_zero_point * (own - own[np.arange(g.k) % (g.k // g.groups)]).reshape(-1, *(1,) * g.rank)
    return _made(WHOLE_NUMBERS, scaled=lambda g, sums, scale: (sums + left) * scale)(operator, g, inputs, dtype)


_CORRECTED: dict[str, Compute] = {
    "zero point of x taken off with the sums of the first group's filters": _corrected_by_first_group,
}

MISTAKES: tuple[Mistake, ...] = (
    *(Mistake(name, "formats", compute) for name, compute in (_EXCHANGED | _CORRECTED).items()),
    *(Mistake(name, "formats", _made(WHOLE_NUMBERS, image=image)) for name, image in _IMAGES.items()),
    *(Mistake(name, "formats", _made(WHOLE_NUMBERS, stored=store)) for name, store in _WHOLE.items()),
    *(Mistake(name, "formats", _made(FP8, stored=store)) for name, store in _IN_FP8.items()),
    *(Mistake(name, "formats", _made(scale=scale)) for name, scale in _SCALES.items()),
    *(Mistake(name, "formats", _made(**steps), when=lambda g: g.bias) for name, steps in _BIASES.items()),
    *(Mistake(name, "formats", _made(WHOLE_NUMBERS, **steps)) for name, steps in _SUMS.items()),
    *CONVOLVING,
)
