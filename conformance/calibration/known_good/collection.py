"""The collection: algorithm, honest contract, a contract that is one class too good, distributions that do not apply
and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np

from conformance.calibration.known_good import sums
from conformance.calibration.known_good.sums import Sum, Total, direct
from conformance.calibration.known_good.transforms import fft, three_by_three, unit_steps, winograd
from conformance.calibration.subject import DEFAULT, Run, Subject
from conformance.dtypes import BF16, FP16, FP32, STORAGE, TF32
from conformance.judge import Contract
from conformance.operators import FAMILIES, OPERATORS, ConvGeometry

SPREADS_NAN = {"special": "a transform spreads NaN and Inf over its whole tile, beyond the receptive field"}
OVERFLOWS = {"wide": "transformed data are larger, and leave the range before the way back makes them small again"}
INF_MINUS_INF = {"special": "the low part of Inf, Inf - Inf, is NaN"}
ALL_DISTRIBUTIONS: Mapping[str, str] = MappingProxyType({})
STORED = ("fp32", "bf16", "fp16")
FP32_STORAGE = ("fp32",)
"""Of kernels whose tensors are wider than what they multiply; 16-bit tensors would lose nothing on the way in."""

BETTER = Contract(accumulate="fp64")


@dataclass(frozen=True, slots=True)
class KnownGood:
    """A kernel that is right.

    too_good   a contract that it does not keep; None where no contract is stricter than the honest one
    exempted     distribution -> why it is not run
    """

    subject: Subject
    too_good: Contract | None
    exempted: Mapping[str, str]

    @property
    def family(self) -> str:
        """Of the geometries that it computes."""
        return OPERATORS[self.subject.operators[0]].family

    @property
    def distributions(self) -> tuple[str, ...]:
        """The distributions that apply."""
        return tuple(
            distribution for distribution in FAMILIES[self.family].distributions if distribution not in self.exempted
        )


def _summed(
    name: str,
    total: Total,
    honest: Contract = DEFAULT,
    too_good: Contract | None = BETTER,
    exempted: Mapping[str, str] = ALL_DISTRIBUTIONS,
    dtypes: tuple[str, ...] = STORED,
) -> KnownGood:
    """A direct algorithm, in every direction."""
    return KnownGood(Subject(name, "sum", partial(direct, total), honest, dtypes=dtypes), too_good, exempted)


def _transformed(
    name: str, run: Run, too_good: Contract, when: Callable[[ConvGeometry], bool], exempted: Mapping[str, str]
) -> KnownGood:
    """An algorithm of other products: forward, and backward-data as a forward with the flipped filter."""
    operators = ("conv_forward", "conv_backward_data")
    subject = Subject(name, "transform", run, Contract(algorithm=name), operators=operators, when=when)
    return KnownGood(subject, too_good, exempted)


_EMULATED = partial(Sum, work=np.float64)
_BF16 = STORAGE["bf16"].type

_ORDERS = (
    _summed("sequential", Sum()),
    _summed("reversed", Sum(order=sums.backwards)),
    _summed("pairwise", Sum(lanes=sums.blocks(1), combine=sums.pairwise)),
    _summed("blocked-32", Sum(lanes=sums.blocks(32))),
    _summed("simd-8", Sum(lanes=sums.always(8), strided=True, combine=sums.pairwise)),
    _summed("implicit-gemm", Sum(order=sums.tap_by_tap, lanes=sums.blocks(16))),
    _summed("im2col-blas", sums.blas),
    _summed("atomics-shuffled", Sum(order=sums.shuffled)),
    _summed("split-k4", Sum(lanes=sums.always(4))),
    _summed("split-k16", Sum(lanes=sums.always(16)), Contract(splits=16)),
)
"""Fp32 accumulation to nearest, inputs as given."""

_STEPS = (
    _summed("fma", _EMULATED(step=sums.fused_fp32)),
    _summed("kahan", Sum(step=sums.kahan), exempted={"special": "the compensation of Inf, Inf - Inf, is NaN"}),
    _summed("mma-16", _EMULATED(step=sums.exact_dot, lanes=sums.always(16), strided=True)),
    _summed("fp64", _EMULATED(held=np.float64), Contract(accumulate="fp64"), None),
    _summed(
        "toward-zero",
        _EMULATED(step=sums.rounding_to(FP32, np.trunc)),
        Contract(rounding="zero"),
        DEFAULT,
    ),
    _summed(
        "fp16-accumulator",
        _EMULATED(step=sums.rounding_to(FP16)),
        Contract(accumulate="fp16"),
        DEFAULT,
        dtypes=("fp16",),
    ),
    _summed(
        "bf16-accumulator",
        Sum(work=_BF16, held=_BF16),
        Contract(accumulate="bf16"),
        Contract(accumulate="fp16"),
        dtypes=("bf16",),
    ),
)
"""Other accumulators, and other ways of adding to one."""

_INPUTS = (
    _summed(
        "tf32x3",
        Sum(prepare=partial(sums.split, TF32)),
        Contract(inputs="tf32x3"),
        BETTER,
        exempted=INF_MINUS_INF,
        dtypes=FP32_STORAGE,
    ),
    _summed(
        "bf16x3",
        Sum(prepare=partial(sums.split, BF16)),
        Contract(inputs="bf16x3"),
        Contract(inputs="tf32x3"),
        exempted=INF_MINUS_INF,
        dtypes=FP32_STORAGE,
    ),
    _summed(
        "tf32",
        Sum(prepare=partial(sums.narrowed, TF32)),
        Contract(inputs="tf32"),
        Contract(inputs="bf16x3"),
        dtypes=FP32_STORAGE,
    ),
    _summed(
        "tf32-toward-zero",
        _EMULATED(prepare=partial(sums.narrowed, TF32), step=sums.rounding_to(FP32, np.trunc)),
        Contract(inputs="tf32", rounding="zero"),
        Contract(inputs="bf16x3", rounding="zero"),
        dtypes=FP32_STORAGE,
    ),
    _summed(
        "fp16-inputs",
        Sum(prepare=partial(sums.narrowed, FP16)),
        Contract(inputs="fp16"),
        Contract(inputs="bf16x3"),
        exempted={"wide": "fp16 has not the range of fp32 data"},
        dtypes=FP32_STORAGE,
    ),
    _summed(
        "bf16-inputs",
        Sum(prepare=partial(sums.narrowed, BF16)),
        Contract(inputs="bf16"),
        Contract(inputs="tf32"),
        dtypes=FP32_STORAGE,
    ),
)
"""Inputs rounded, or split in two parts, before they are multiplied."""

_PARTIALS = (
    _summed(
        "split-k4-bf16",
        Sum(lanes=sums.always(4), kept=BF16),
        Contract(splits=4, partials="bf16"),
        Contract(splits=4, partials="fp16"),
        exempted=dict.fromkeys(("integer", "impulse"), "bf16 partial sums do not hold the integers of fp32 data"),
        dtypes=FP32_STORAGE,
    ),
    _summed(
        "split-k8-bf16-atomics",
        Sum(lanes=sums.always(8), order=sums.shuffled, kept=BF16, combine=partial(sums.in_turn_stored, BF16)),
        Contract(splits=8, partials="bf16"),
        Contract(splits=8, partials="fp32"),
        dtypes=("bf16",),
    ),
    _summed(
        "split-k4-fp16",
        Sum(lanes=sums.always(4), kept=FP16),
        Contract(splits=4, partials="fp16"),
        Contract(splits=4, partials="fp32"),
        dtypes=("fp16",),
    ),
)
"""Split-K with partial sums stored in 16 bits."""

_TRANSFORMS = (
    _transformed("winograd-f2", partial(winograd, "winograd-f2"), BETTER, three_by_three, SPREADS_NAN),
    _transformed("winograd-f4", partial(winograd, "winograd-f4"), DEFAULT, three_by_three, SPREADS_NAN | OVERFLOWS),
    _transformed("fft", fft, DEFAULT, unit_steps, SPREADS_NAN | OVERFLOWS),
)

KNOWN_GOOD: tuple[KnownGood, ...] = (*_ORDERS, *_STEPS, *_INPUTS, *_PARTIALS, *_TRANSFORMS)
