"""Kernels with results of 8 bits, right and wrong: how they add, scale, round and store, whatever they multiply."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import BF16, FORMATS, FP16, FP32, STORAGE, Format, ends
from conformance.operators.requantized import LARGEST, TIES, stored
from conformance.operators.requantized_geometry import HIGHEST, LOWEST
from conformance.operators.requantized_steps import (
    Change,
    Store,
    Storing,
    added,
    as_defined,
    exactly,
    in_fp32,
    kept,
    not_saturated,
    saturated,
    wrapped,
)
from tests.calibration.kernels import sums
from tests.calibration.kernels.arithmetic import folded
from tests.calibration.kernels.kernel import BYTES, DEFAULT, FP8, INT8, UINT8, KnownGood, Mutant
from tests.calibration.kernels.rounding import bits, overflowing
from tests.calibration.kernels.sums import Sum

Total = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
"""(a [G, M, KS], b [G, KS, T], taps) -> their product."""
Summing = Callable[[Total], Any]
"""The total of a product -> the step of a family's kernels that adds up so."""

BOTH = (*BYTES, *FP8)
E5M2 = FP8[1:]
_EMULATED = partial(Sum, work=np.float64)
_WHOLE = partial(Sum, work=np.int32, held=np.int32)


def known_good(
    family: str, name: str, run: Any, dtypes: tuple[str, ...], contract: Contract = DEFAULT, **settings: Any
) -> KnownGood:
    return KnownGood(name, family, run, contract, (family,), dtypes=dtypes, stricter=None, **settings)


def _scaled_in_two_steps(g: Any, sums: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Scale by a significand in fp32 first, then by a power of two."""
    significand, power = np.frexp(scale)
    return np.ldexp((sums.astype(np.float32) * significand.astype(np.float32)).astype(np.float64), power)


def _by_magic_number(g: Any, values: np.ndarray, dtype: str) -> np.ndarray:
    """Round by adding and subtracting a number in fp32 that leaves no bit behind the point, as XNNPACK does."""
    magic = np.float32(1.5 * 2**23)
    low, high = ends(dtype)
    limited = np.clip(values, low - g.y_zero_point, high - g.y_zero_point).astype(np.float32)
    return ((limited + magic) - magic).astype(np.float64) + g.y_zero_point


def _through_fp32(g: Any, values: np.ndarray, dtype: str) -> np.ndarray:
    return as_defined(g, values.astype(np.float32).astype(np.float64), dtype)


def good(
    family: str, word: str, steps: type[Storing], summed: Summing, below_24_bits: Callable[[Any], bool]
) -> tuple[KnownGood, ...]:
    """Return the correct kernels of a family, whose names begin with `word`: orders of the sum, ways to scale and to
    round."""

    def kernel(name: str, dtypes: tuple[str, ...], contract: Contract = DEFAULT, **changed: Any) -> KnownGood:
        return known_good(family, f"{word} {name}", steps(**changed), dtypes, contract)

    short = steps(sums=summed(Sum()))  # type: ignore[call-arg]  # a step of every family's kernels
    return (
        kernel("exact sums", BOTH),
        kernel("scaled in fp64", BOTH, scaled=exactly, stored=_through_fp32),
        kernel("scaled in two steps", BOTH, scaled=_scaled_in_two_steps),
        kernel("int32 sequential", BYTES, sums=summed(_WHOLE())),
        kernel("int32 blocked", BYTES, sums=summed(_WHOLE(lanes=sums.blocks(32)))),
        kernel("int32 reversed", BYTES, sums=summed(_WHOLE(order=sums.backwards))),
        known_good(
            family, f"{word} fp32 sums below 2^24", short, BYTES, when=below_24_bits,
            exempted={"cancelled": "sums are larger there"},
        ),
        kernel("rounded by a magic number", BYTES, stored=_by_magic_number),
        kernel("ties away", BYTES, Contract(ties="away"), stored=saturated(TIES["away"])),
        kernel("ties up", BYTES, Contract(ties="up"), stored=saturated(TIES["up"])),
        kernel("fp32 sequential", FP8, sums=summed(Sum())),
        kernel("fp32 pairwise", FP8, sums=summed(Sum(lanes=sums.blocks(1), combine=sums.pairwise))),
        kernel("fp32 shuffled", FP8, sums=summed(Sum(order=sums.shuffled))),
        kernel(
            "fp32 toward zero", FP8, Contract(rounding="zero"),
            sums=summed(_EMULATED(step=sums.rounding_to(FP32, np.trunc))),
        ),
        kernel("not saturating", FP8, Contract(overflow="nonfinite"), stored=not_saturated),
    )  # fmt: skip


# rounding and saturation


def _to(format: Format, way: Change = np.rint) -> Change:
    return lambda values: overflowing(values, format, way)


_ROUNDINGS: dict[str, Change] = {
    "rounded stochastically": lambda v: np.floor(v + np.random.default_rng(v.size).random(v.shape)),
    "rounded twice, to halves first": lambda values: np.rint(np.rint(2 * values) / 2),
    "rounded twice, to fp16 first": lambda values: np.rint(_to(FP16)(values)),
    "rounded twice, to bf16 first": lambda values: np.rint(_to(BF16)(values)),
}


def _by_magic_bits(g: Any, values: np.ndarray, dtype: str) -> np.ndarray:
    """Return the last bits of the sum with a large number in fp32: right until the sum is negative, which no check
    excludes."""
    magic = np.float32(1.5 * 2**23)
    whole = (values.astype(np.float32) + magic).view(np.int32).astype(np.float64) - float(magic.view(np.int32))
    return np.clip(wrapped(whole, 32) + g.y_zero_point, *ends(dtype))


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


def _biased(change: Change) -> dict[str, Any]:
    return {"with_bias": lambda sums, bias, scale: added(sums, change(bias), scale)}


# sums


def _step_by_step(change: Change) -> Total:
    """Add products one by one to a sum that `change` keeps in its format."""
    return lambda a, b, taps: folded(a, b, 1, lambda total, product: change(total + product))


def pairs(a: np.ndarray, b: np.ndarray, taps: int) -> np.ndarray:
    """Add two products in 16 bits, as vpmaddubsw of x86 does."""
    return folded(a, b, 2, lambda total, pair: total + np.clip(pair, -(2**15), 2**15 - 1))


def _before_scale(change: Change) -> dict[str, Any]:
    return {"scaled": lambda g, sums, scale: in_fp32(g, change(sums), scale)}


_SUMS: dict[str, Total] = {
    "sums saturate at 16 bits": _step_by_step(lambda total: np.clip(total, -(2**15), 2**15 - 1)),
    "two products are added in 16 bits": pairs,
    "sums in bf16": _step_by_step(_to(BF16)),
    "sums in fp16": _step_by_step(_to(FP16)),
}
_AFTER_SUMS: dict[str, Change] = {
    "sums lose 8 bits before the scale": lambda sums: np.floor(sums / 256) * 256,
    "sums are rounded to 8 bits before the scale": lambda sums: np.clip(sums, LOWEST, HIGHEST),
}


# results without a sign

_UNSIGNED: dict[str, Store] = {
    "stored in int8": lambda g, v, dtype: kept(np.clip(np.rint(v) + g.y_zero_point, LOWEST, HIGHEST), dtype),
    "saturates at 0 and 127": saturated(np.rint, low=0, high=HIGHEST),
    "saturates at the upper end alone": saturated(np.rint, low=-np.inf),
    "the zero point of y is 128": lambda g, v, dtype: np.clip(np.rint(v) + 128, *ends(dtype)),
}


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


class Bad:
    """The wrong kernels of a family, whose names begin with `word`."""

    def __init__(
        self,
        family: str,
        word: str,
        steps: type[Storing],
        summed: Summing,
        short: Callable[[Any], bool],
        long: Callable[[Any], bool],
    ) -> None:
        self._family, self._word, self._steps, self._summed = family, word, steps, summed
        self._short, self._long, self._good = short, long, steps()

    def mutant(self, name: str, run: Any, dtypes: tuple[str, ...], base: Any = None, **more: Any) -> Mutant:
        """Return a wrong kernel of the family."""
        full = f"{self._word} {'fp8' if dtypes[0] in FP8 else dtypes[0]}: {name}"
        base = base or self._good
        return Mutant(full, "formats", run, operators=(self._family,), dtypes=dtypes, base=base, **more)

    def stepping(self, name: str, dtypes: tuple[str, ...], when: Any = lambda g: True, **changed: Any) -> Mutant:
        """Return a kernel with these steps replaced."""
        return self.mutant(name, self._steps(**changed), dtypes, when=when)

    def _declaring(self, ties: str, rounding: str) -> Mutant:
        """Return a rounding that is right under another contract."""
        good, run = (self._steps(stored=saturated(TIES[name])) for name in (ties, rounding))
        return self.mutant(f"ties {rounding}, declared {ties}", run, INT8, good, contract=Contract(ties=ties))

    def rounded(self) -> tuple[Mutant, ...]:
        """Return the kernels that round wrongly to whole numbers."""
        return (
            *(self.stepping(name, INT8, stored=saturated(rounding)) for name, rounding in _ROUNDINGS.items()),
            self.stepping("rounded by a magic number without limits", INT8, stored=_by_magic_bits),
            *(self._declaring(ties, other) for ties in TIES for other in TIES if ties != other and ties != "even"),
        )

    def scaled(self) -> tuple[Mutant, ...]:
        """Return the kernels with wrong scales and biases."""
        return (
            *(self.stepping(name, dtypes, scale=scale) for dtypes in (INT8, FP8) for name, scale in _SCALES.items()),
            *(self.stepping(name, INT8, **_biased(change)) for name, change in _WHOLE_BIASES.items()),
        )

    def summed(self) -> tuple[Mutant, ...]:
        """Return the kernels whose sums have too few bits."""
        return (
            *(self.stepping(name, INT8, self._short, sums=self._summed(total)) for name, total in _SUMS.items()),
            *(
                self.stepping(name, INT8, self._short, **_before_scale(change))
                for name, change in _AFTER_SUMS.items()
            ),
            self.stepping("sums in fp32", INT8, self._long, sums=self._summed(_step_by_step(_to(FP32)))),
            self.stepping("sums rounded to fp16 before the scale", FP8, **_before_scale(_to(FP16))),
            self.stepping("sums in bf16", FP8, sums=self._summed(_SUMS["sums in bf16"])),
            self.stepping("sums rounded to bf16 before the scale", FP8, **_before_scale(_to(BF16))),
        )  # fmt: skip

    def unsigned(self) -> tuple[Mutant, ...]:
        """Return the kernels that are wrong about bytes without a sign."""
        short = {name: self._summed(total) for name, total in _SUMS.items() if "16 bits" in name}
        return (
            *(self.stepping(name, UINT8, self._short, sums=total) for name, total in short.items()),
            *(self.stepping(name, UINT8, stored=store) for name, store in _UNSIGNED.items()),
            self.stepping("rounded by a magic number without limits", UINT8, stored=_by_magic_bits),
        )

    def in_fp8(self) -> tuple[Mutant, ...]:
        """Return the kernels whose results in fp8 are wrong."""
        return (
            *(self.stepping(name, dtypes, stored=store) for name, (store, dtypes) in _FP8.items()),
            self.mutant(
                "saturates, declared not finite", self._good, FP8, self._steps(stored=not_saturated),
                contract=Contract(overflow="nonfinite"),
            ),
        )  # fmt: skip
