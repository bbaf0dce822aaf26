"""Mistakes of every operator with results of 8 bits: rounding, overflow of 8 bits, scales and biases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.dtypes import FORMATS, STORAGE, ends, name_of
from conformance.operators.base import Arrays, Operator
from conformance.operators.mistakes import Compute, InapplicableError
from conformance.operators.requantized import LARGEST, TIES, stored
from conformance.operators.requantized_geometry import HIGHEST, LOWEST
from conformance.operators.requantized_steps import Change, Store, Storing, exactly, saturated, wrapped

SIGNED, UNSIGNED, FP8 = frozenset({"int8"}), frozenset({"uint8"}), frozenset(LARGEST)
WHOLE_NUMBERS = SIGNED | UNSIGNED


def with_steps(steps: type[Storing], dtypes: frozenset[str] = WHOLE_NUMBERS | FP8, **changed: Any) -> Compute:
    """Return the mistake of a kernel with these steps replaced and products computed exactly, for these dtypes."""
    kernel = steps(**{"scaled": exactly} | changed)

    def compute(operator: Operator, g: Any, inputs: Arrays, dtype: Any) -> Arrays:
        name = name_of(inputs[operator.data].dtype)
        if name not in dtypes:
            raise InapplicableError
        return {"y": kernel(operator, g, inputs, name)["y"].astype(dtype)}

    return compute


def as_signed(code: Any) -> Any:
    """Read numbers of 8 bits without a sign as if they had one."""
    return code - 256 * (code > HIGHEST)


def negated(point: int) -> int:
    """Return the negative of a zero point. Raises InapplicableError for -128, which stays as it is in int8."""
    if point == LOWEST:
        raise InapplicableError
    return -point


def moved(by: Callable[[Any], int]) -> Store:
    return lambda g, values, dtype: stored(values, dtype, by(g))


def _saturated_first(g: Any, values: np.ndarray, dtype: str) -> np.ndarray:
    whole: np.ndarray = np.clip(np.rint(values), *ends(dtype))
    return whole + g.y_zero_point


def _in_32_bits(g: Any, values: np.ndarray, dtype: str) -> np.ndarray:
    """Convert to 32 bits as x86 does: every number that is too large becomes -2^31."""
    whole = np.where(np.abs(values) < 2.0**31, np.rint(values), -(2.0**31))
    return np.clip(whole + g.y_zero_point, *ends(dtype))


def _offset_late(g: Any, values: np.ndarray, dtype: str) -> np.ndarray:
    """Saturate in int8 what has the zero point of uint8 already, and then move it to uint8."""
    return np.clip(np.rint(values) + g.y_zero_point, LOWEST, HIGHEST) - LOWEST


OF_WHOLE: dict[str, Store] = {
    "truncated instead of rounded": saturated(np.trunc),
    "rounded down instead of to nearest": saturated(np.floor),
    "rounded up instead of to nearest": saturated(np.ceil),
    "one half added and truncated": saturated(lambda values: np.trunc(values + 0.5)),
    "ties rounded away from zero": saturated(TIES["away"]),
    "ties rounded up": saturated(TIES["up"]),
    "ties rounded down": saturated(lambda values: -TIES["up"](-values)),
    "ties rounded toward zero": saturated(lambda values: np.copysign(-TIES["up"](-np.abs(values)), values)),
    "rounded after the zero point of y is added": lambda g, values, dtype: np.clip(
        np.rint(values + g.y_zero_point), *ends(dtype)
    ),
    "wraps around at 8 bits instead of saturating": lambda g, values, dtype: np.rint(values) + g.y_zero_point,
    "wraps around at the upper end instead of saturating": saturated(np.rint, high=np.inf),
    "wraps around at the lower end instead of saturating": saturated(np.rint, low=-np.inf),
    "wraps around at 32 bits before it saturates": _in_32_bits,
    "saturates at -127": saturated(np.rint, low=-HIGHEST),
    "saturates at 126": saturated(np.rint, high=HIGHEST - 1),
    "saturates at 0 and 127": saturated(np.rint, low=0, high=HIGHEST),
    "saturates at 0 and 255": saturated(np.rint, low=0, high=255),
    "saturates before the zero point of y is added": lambda g, values, dtype: np.clip(
        _saturated_first(g, values, dtype), *ends(dtype)
    ),
    "saturates before the zero point of y is added, which wraps around": _saturated_first,
    "zero point of y added twice": moved(lambda g: 2 * g.y_zero_point),
    "zero point of y read as unsigned": moved(lambda g: g.y_zero_point % 256),
    "saturates at 1": saturated(np.rint, low=1),
    "saturates at 254": saturated(np.rint, high=254),
    "saturates at -128 and 127, stored as unsigned": saturated(np.rint, low=LOWEST, high=HIGHEST),
    "saturates at -128 and 127, then 128 is added": _offset_late,
    "zero point of y read as signed": moved(lambda g: as_signed(g.y_zero_point)),
}
_SIGNED_ALONE = {"saturates at -127", "saturates at 126", "saturates at 0 and 255", "zero point of y read as unsigned"}
_UNSIGNED_ALONE = {
    "saturates at 1",
    "saturates at 254",
    "saturates at -128 and 127, stored as unsigned",
    "saturates at -128 and 127, then 128 is added",
    "zero point of y read as signed",
}


def formats_of(name: str) -> frozenset[str]:
    """Return the formats of whole numbers in which a step of `OF_WHOLE` is a mistake of this name."""
    return SIGNED if name in _SIGNED_ALONE else UNSIGNED if name in _UNSIGNED_ALONE else WHOLE_NUMBERS


def _flushed(g: Any, values: np.ndarray, dtype: str) -> np.ndarray:
    result = stored(values, dtype)
    return np.where(np.abs(result) < FORMATS[dtype].smallest_normal, 0, result)


def _toward_zero(g: Any, values: np.ndarray, dtype: str) -> np.ndarray:
    nearest = stored(values, dtype)
    return np.where(np.abs(nearest) > np.abs(values), stored(values - (nearest - values), dtype), nearest)


OF_FP8: dict[str, Store] = {
    "rounded toward zero instead of to nearest": _toward_zero,
    "saturates at 240": lambda g, values, dtype: stored(np.clip(values, -240, 240), dtype),
    "overflow loses its sign": lambda g, v, dtype: stored(np.where(v < -LARGEST[dtype], -v, v), dtype),
    "overflow becomes zero": lambda g, v, dtype: np.where(np.abs(v) > LARGEST[dtype], 0, stored(v, dtype)),
    "subnormal results flushed": _flushed,
    "stored as the other format of 8 bits": lambda g, values, dtype: stored(values, next(iter(FP8 - {dtype}))),
}


def _rounded_to(dtype: str) -> Change:
    return lambda values: values.astype(np.float32).astype(STORAGE[dtype]).astype(np.float64)


def scales(channel: str) -> dict[str, Change]:
    """Return the mistakes of scales; `channel` is what has a scale of its own."""
    return {
        f"scale of the next {channel}": lambda scale: np.roll(scale, -1),
        f"scale of the first {channel} for all": lambda scale: np.full_like(scale, scale[0]),
        f"scale of the last {channel} for all": lambda scale: np.full_like(scale, scale[-1]),
        "mean scale for all": lambda scale: np.full_like(scale, scale.mean()),
        "scale inverted": lambda scale: 1 / scale,
        "scale squared": np.square,
        "scale ignored": np.ones_like,
        "scale rounded to bf16": _rounded_to("bf16"),
        "scale rounded to fp16": _rounded_to("fp16"),
    }


def biases(channel: str) -> dict[str, dict[str, Any]]:
    """Return the mistakes of biases, as steps; `channel` is what has a bias of its own."""
    return {
        "bias left out": {"with_bias": lambda sums, bias, scale: sums},
        f"bias of the next {channel}": {"with_bias": lambda sums, bias, scale: sums + np.roll(bias, -1, 0)},
        "bias taken off": {"with_bias": lambda sums, bias, scale: sums - bias},
        "bias added twice": {"with_bias": lambda sums, bias, scale: sums + 2 * bias},
        "bias scaled twice": {"with_bias": lambda sums, bias, scale: sums + bias * scale},
        "bias added after the scale": {
            "with_bias": lambda sums, bias, scale: sums,
            "late": lambda product, bias: product + bias,
        },
    }


OF_SUMS: dict[str, dict[str, Any]] = {
    "sums rounded to bf16 before the scale": {"scaled": lambda g, sums, scale: _rounded_to("bf16")(sums) * scale},
    "sums rounded to fp16 before the scale": {"scaled": lambda g, sums, scale: _rounded_to("fp16")(sums) * scale},
    "sums wrap around at 16 bits": {"scaled": lambda g, sums, scale: wrapped(sums, 16) * scale},
    "zero point of y added before the scale": {
        "scaled": lambda g, sums, scale: (sums + g.y_zero_point) * scale,
        "stored": moved(lambda g: 0),
    },
}
"""Steps of the mistakes between sums and their storing."""
