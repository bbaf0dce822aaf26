"""Kernels that are wrong about results of 8 bits: zero points, bias, scale, rounding, and results out of range."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import BF16, FORMATS, FP16, FP32, STORAGE, Format
from conformance.operators.conv_requantized.geometry import HIGHEST, LOWEST
from conformance.operators.conv_requantized.geometry import RequantizedGeometry as Geometry
from conformance.operators.conv_requantized.operators import LARGEST, TIES, stored
from conformance.operators.conv_requantized.steps import (
    Change,
    Steps,
    Store,
    Sums,
    added,
    around,
    in_fp32,
    not_saturated,
    saturated,
    wrapped,
)
from tests.calibration.conv_requantized.known_good import compensated, summed
from tests.calibration.kernels.arithmetic import folded, short
from tests.calibration.kernels.kernel import FP8, INT8, Mutant
from tests.calibration.kernels.rounding import bits, overflowing

OPERATOR = ("conv_requantized",)
E4M3, E5M2 = FP8[:1], FP8[1:]
GOOD = Steps()


def _mutant(name: str, run: Callable[..., Any], dtypes: tuple[str, ...], base: Steps = GOOD, **more: Any) -> Mutant:
    of = "int8" if dtypes == INT8 else "fp8"
    return Mutant(f"requantized {of}: {name}", "formats", run, operators=OPERATOR, dtypes=dtypes, base=base, **more)


# rounding and saturation


def _to(format: Format, way: Change = np.rint) -> Change:
    return lambda values: overflowing(values, format, way)


_ROUNDINGS: dict[str, Change] = {
    "rounded stochastically": lambda v: np.floor(v + np.random.default_rng(v.size).random(v.shape)),
    "rounded twice, to halves first": lambda values: np.rint(np.rint(2 * values) / 2),
    "rounded twice, to fp16 first": lambda values: np.rint(_to(FP16)(values)),
    "rounded twice, to bf16 first": lambda values: np.rint(_to(BF16)(values)),
}


def _by_magic_bits(g: Geometry, values: np.ndarray, dtype: str) -> np.ndarray:
    """Return the last bits of the sum with a large number in fp32: right until the sum is negative, which no check
    excludes."""
    magic = np.float32(1.5 * 2**23)
    whole = (values.astype(np.float32) + magic).view(np.int32).astype(np.float64) - float(magic.view(np.int32))
    return np.clip(wrapped(whole, 32) + g.y_zero_point, LOWEST, HIGHEST)


def _declaring(ties: str, rounding: str) -> Mutant:
    """Return a rounding that is right under another contract."""
    good, run = (Steps(stored=saturated(TIES[name])) for name in (ties, rounding))
    name = f"ties {rounding}, declared {ties}"
    return _mutant(name, run, INT8, good, contract=Contract(ties=ties))


_ROUNDED = (
    *(_mutant(name, Steps(stored=saturated(rounding)), INT8) for name, rounding in _ROUNDINGS.items()),
    _mutant("rounded by a magic number without limits", Steps(stored=_by_magic_bits), INT8),
    *(_declaring(ties, rounding) for ties in TIES for rounding in TIES if ties != rounding and ties != "even"),
)


# sign of x and of filters

_READ = (
    _mutant("padding holds -128", Steps(image=lambda g, x: around(g, x, LOWEST) - g.x_zero_point), INT8),
    _mutant("filters are taken off of 128", Steps(filters=lambda w: w - 128), INT8),
)


# scale and bias

_SCALES: dict[str, Change] = {
    "largest scale for all": lambda scale: np.full_like(scale, scale.max()),
    "scale in 8 bits": _to(bits(8), np.trunc),
    "scale a power of two": lambda scale: np.exp2(np.rint(np.log2(scale))),
    "scale in e4m3": lambda scale: scale.astype(np.float32).astype(STORAGE["fp8_e4m3"]).astype(np.float64),
}
_WHOLE_BIASES: dict[str, Change] = {
    "bias wraps around at 16 bits": partial(wrapped, width=16),
    "bias wraps around at 8 bits": wrapped,
    "bias in bf16": _to(BF16),
}


def _biased(change: Change) -> Steps:
    return Steps(with_bias=lambda sums, bias, scale: added(sums, change(bias), scale))


_SCALED = (
    *(_mutant(name, Steps(scale=scale), dtypes) for dtypes in (INT8, FP8) for name, scale in _SCALES.items()),
    *(_mutant(name, _biased(change), INT8) for name, change in _WHOLE_BIASES.items()),
)


# sums


def _step_by_step(change: Change) -> Sums:
    """Add products one by one to a sum that `change` keeps in its format."""
    return summed(lambda a, b, taps: folded(a, b, 1, lambda total, product: change(total + product)))


def _pairs(a: np.ndarray, b: np.ndarray, taps: int) -> np.ndarray:
    """Add two products in 16 bits, as vpmaddubsw of x86 does."""
    return folded(a, b, 2, lambda total, pair: total + np.clip(pair, -(2**15), 2**15 - 1))


def _before_scale(change: Change) -> Steps:
    return Steps(scaled=lambda g, sums, scale: in_fp32(g, change(sums), scale))


_SUMS: dict[str, Steps] = {
    "sums saturate at 16 bits": Steps(sums=_step_by_step(lambda total: np.clip(total, -(2**15), 2**15 - 1))),
    "two products are added in 16 bits": Steps(sums=summed(_pairs)),
    "sums in bf16": Steps(sums=_step_by_step(_to(BF16))),
    "sums in fp16": Steps(sums=_step_by_step(_to(FP16))),
    "sums lose 8 bits before the scale": _before_scale(lambda sums: np.floor(sums / 256) * 256),
    "sums are rounded to 8 bits before the scale": _before_scale(lambda sums: np.clip(sums, LOWEST, HIGHEST)),
}
_SUMMED = (
    *(_mutant(name, steps, INT8, when=short) for name, steps in _SUMS.items()),
    _mutant(
        "two products of x as it is saturate at 16 bits",
        compensated(summed(_pairs)),  # only a sum of two products of -128 then exceeds 16 bits
        INT8,
        when=short,
    ),
    _mutant(
        "sums in fp32", Steps(sums=_step_by_step(_to(FP32))), INT8, when=lambda g: 2000 < g.filter.size // g.k < 9000
    ),
    _mutant("sums rounded to fp16 before the scale", _before_scale(_to(FP16)), FP8),
    _mutant("sums in bf16", _SUMS["sums in bf16"], FP8),
    _mutant("sums rounded to bf16 before the scale", _before_scale(_to(BF16)), FP8),
)


# results in fp8


def _limited(largest: dict[str, float]) -> Store:
    return lambda g, values, dtype: stored(np.clip(values, -largest[dtype], largest[dtype]), dtype)


def _rounded(way: Change) -> Store:
    """Round to the format another way, and saturate."""
    return lambda g, values, dtype: np.clip(overflowing(values, FORMATS[dtype], way), -LARGEST[dtype], LARGEST[dtype])


def _through(format: Format) -> Store:
    return lambda g, values, dtype: stored(overflowing(values, format), dtype)


def _replaced(which: Change, by: Callable[[np.ndarray, str], Any]) -> Store:
    return lambda g, values, dtype: np.where(which(values), by(values, dtype), stored(values, dtype))


_FP8: dict[str, tuple[Store, tuple[str, ...]]] = {
    "does not saturate": (not_saturated, FP8),
    "saturates at 448": (_limited({"fp8_e5m2": 448.0}), E5M2),
    "saturates one number too low": (_limited({"fp8_e4m3": 416.0, "fp8_e5m2": 49152.0}), FP8),
    "ties away from zero": (_rounded(TIES["away"]), FP8),
    "rounded twice, to bf16 first": (_through(BF16), FP8),
    "rounded twice, to fp16 first": (_through(FP16), FP8),
    "rounded twice, to one bit more first": (
        lambda g, v, dtype: stored(overflowing(v, bits(FORMATS[dtype].precision + 1)), dtype), FP8,
    ),
    "NaN becomes the largest": (_replaced(np.isnan, lambda values, dtype: LARGEST[dtype]), FP8),
    "infinity is kept": (_replaced(np.isinf, lambda values, dtype: values), E5M2),
}  # fmt: skip
_IN_FP8 = (
    *(_mutant(name, Steps(stored=store), dtypes) for name, (store, dtypes) in _FP8.items()),
    _mutant("saturates, declared not finite", Steps(), FP8, Steps(stored=not_saturated),
            contract=Contract(overflow="nonfinite")),
)  # fmt: skip

KNOWN_BAD: tuple[Mutant, ...] = (*_ROUNDED, *_READ, *_SCALED, *_SUMMED, *_IN_FP8)
