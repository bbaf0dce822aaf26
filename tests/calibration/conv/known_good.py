"""Correct convolutions, each with its contract, a stricter one, and the distributions that do not apply, with
reasons."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from conformance.contract import NONFINITE, Contract
from conformance.dtypes import BF16, FP16, FP32, STORAGE, TF32
from conformance.operators import CONVOLUTIONS, ConvGeometry
from tests.calibration.conv.transforms import fft, fft_with_steps, three_by_three, unit_steps, winograd
from tests.calibration.kernels import sums
from tests.calibration.kernels.kernel import (
    BYTES,
    DEFAULT,
    FP8,
    FP32_ONLY,
    STORED,
    CampaignRow,
    KnownGood,
    Run,
)
from tests.calibration.kernels.rounding import overflowing
from tests.calibration.kernels.sums import Sum, Total, direct

SPREADS_NAN = dict.fromkeys(
    NONFINITE, "a transform spreads NaN and Inf over its whole tile, beyond the receptive field"
)
OVERFLOWS = {"wide": "transformed data are larger, and leave the range before the way back makes them small again"}
COMPENSATED = dict.fromkeys((*NONFINITE, "range"), "the compensation of Inf, Inf - Inf, is NaN")
INF_MINUS_INF = dict.fromkeys(NONFINITE, "the low part of Inf, Inf - Inf, is NaN")


def _summed(name: str, total: Total, contract: Contract = DEFAULT, **given: Any) -> KnownGood:
    """Return a direct algorithm, in every direction, of fp8 too unless its dtypes are given."""
    return KnownGood(name, "conv", partial(direct, total), contract, **{"dtypes": (*STORED, *FP8), **given})


def _transformed(name: str, run: Run, when: Callable[[ConvGeometry], bool], **given: Any) -> KnownGood:
    """Return an algorithm of other products: forward, and backward-data as a forward with the flipped filter."""
    return KnownGood(name, "conv", run, Contract(algorithm=name), CONVOLUTIONS[:2], when, **given)


# dtypes=FP32_ONLY: kernels that narrow their inputs; 16-bit inputs would lose no bits
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
    _summed("kahan", Sum(step=sums.kahan), exempted=COMPENSATED),
    _summed("mma-16", _EMULATED(step=sums.exact_dot, lanes=sums.always(16), strided=True)),
    _summed("fp64", _EMULATED(held=np.float64), Contract(accumulate="fp64"), stricter=None),
    _summed("toward-zero", _EMULATED(step=sums.rounding_to(FP32, np.trunc)), Contract(rounding="zero"),
            stricter=DEFAULT),
    _summed("fp16-accumulator", _EMULATED(step=sums.rounding_to(FP16)), Contract(accumulate="fp16"),
            stricter=DEFAULT, dtypes=("fp16",)),
    _summed("fp16-accumulator-and-products", _EMULATED(step=partial(sums.rounded_twice, FP16)),
            Contract(accumulate="fp16"), stricter=DEFAULT, dtypes=("fp16",)),
    _summed("bf16-accumulator-tap-by-tap", _EMULATED(step=sums.rounding_to(BF16), order=sums.tap_by_tap),
            Contract(accumulate="bf16"), stricter=Contract(accumulate="fp16"), dtypes=("bf16",)),
    _summed("bf16-accumulator", Sum(work=_BF16, held=_BF16), Contract(accumulate="bf16"),
            stricter=Contract(accumulate="fp16"), dtypes=("bf16",)),
)  # fmt: skip
"""Other accumulators, and other ways of adding to one."""

_INPUTS = (
    _summed("tf32x3", Sum(prepare=partial(sums.split, TF32)), Contract(inputs="tf32x3"),
            exempted=INF_MINUS_INF, dtypes=FP32_ONLY),
    _summed("bf16x3", Sum(prepare=partial(sums.split, BF16)), Contract(inputs="bf16x3"),
            stricter=Contract(inputs="tf32x3"), exempted=INF_MINUS_INF, dtypes=FP32_ONLY),
    _summed("bf16x6", Sum(prepare=partial(sums.split_in_three, BF16, 6)), Contract(inputs="bf16x6"),
            exempted=INF_MINUS_INF, dtypes=FP32_ONLY),
    _summed("bf16x9", Sum(prepare=partial(sums.split_in_three, BF16, 9)), Contract(inputs="bf16x9"),
            exempted=INF_MINUS_INF, dtypes=FP32_ONLY),
    _summed("tf32", Sum(prepare=partial(sums.narrowed, TF32)), Contract(inputs="tf32"),
            stricter=Contract(inputs="bf16x3"), dtypes=FP32_ONLY),
    _summed("tf32-toward-zero",
            _EMULATED(prepare=partial(sums.narrowed, TF32), step=sums.rounding_to(FP32, np.trunc)),
            Contract(inputs="tf32", rounding="zero"),
            stricter=Contract(inputs="bf16x3", rounding="zero"), dtypes=FP32_ONLY),
    _summed("tf32-cut-off", _EMULATED(prepare=partial(sums.cut_off, TF32)), Contract(inputs="tf32", rounding="zero"),
            stricter=Contract(inputs="tf32"), dtypes=FP32_ONLY),
    _summed("fp16-inputs", Sum(prepare=partial(sums.narrowed, FP16)), Contract(inputs="fp16"),
            stricter=Contract(inputs="bf16x3"), exempted={"wide": "fp16 has not the range of fp32 data"},
            dtypes=FP32_ONLY),
    _summed("bf16-inputs", Sum(prepare=partial(sums.narrowed, BF16)), Contract(inputs="bf16"),
            stricter=Contract(inputs="tf32"), dtypes=FP32_ONLY),
)  # fmt: skip
"""Inputs rounded, or split in two parts, before they are multiplied."""

_PARTIALS = (
    _summed("split-k4-bf16", Sum(lanes=sums.always(4), kept=BF16), Contract(splits=4, partials="bf16"),
            stricter=Contract(splits=4, partials="fp16"), dtypes=FP32_ONLY,
            exempted=dict.fromkeys(("integer", "impulse"), "bf16 partial sums do not hold the integers of fp32 data")),
    _summed("split-k8-bf16-atomics",
            Sum(lanes=sums.always(8), order=sums.shuffled, kept=BF16, combine=partial(sums.in_turn_stored, BF16)),
            Contract(splits=8, partials="bf16"), stricter=Contract(splits=8, partials="fp32"), dtypes=("bf16",)),
    _summed("split-k4-fp16", Sum(lanes=sums.always(4), kept=FP16), Contract(splits=4, partials="fp16"),
            stricter=Contract(splits=4, partials="fp32"), dtypes=("fp16",)),
    _summed("split-k4-fp16-of-fp32", Sum(lanes=sums.always(4), kept=FP16, keeps=overflowing),
            Contract(splits=4, partials="fp16"), stricter=Contract(splits=4, partials="fp32"), dtypes=FP32_ONLY,
            exempted=dict.fromkeys(("integer", "wide"), "beyond 65,504 there is no fp16")),
)  # fmt: skip
"""Split-K with partial sums stored in 16 bits."""

_WHOLE = tuple(
    _summed(f"int32-{name}", total, dtypes=BYTES, operators=CONVOLUTIONS[:1], stricter=None)
    for name, total in {
        "sequential": Sum(work=np.int32, held=np.int32),
        "reversed": Sum(work=np.int32, held=np.int32, order=sums.backwards),
        "simd-8": Sum(work=np.int32, held=np.int32, lanes=sums.always(8), strided=True, combine=sums.pairwise),
        "from-fp64": Sum(work=np.float64, held=np.int32),
    }.items()
)
"""Sums of whole numbers, which never wrap around where it matters."""

_TRANSFORMS = (
    _transformed("winograd-f2", partial(winograd, "winograd-f2"), three_by_three, exempted=SPREADS_NAN, ranks=(2,)),
    _transformed("winograd-f4", partial(winograd, "winograd-f4"), three_by_three, stricter=DEFAULT,
                 exempted=SPREADS_NAN | OVERFLOWS, ranks=(2,)),
    _transformed("fft", fft, unit_steps, stricter=DEFAULT, exempted=SPREADS_NAN | OVERFLOWS),
    KnownGood("fft-with-steps", "conv", fft_with_steps, Contract(algorithm="fft"), CONVOLUTIONS[::2],
              stricter=DEFAULT, exempted=SPREADS_NAN | OVERFLOWS),
)  # fmt: skip

SUMS: tuple[KnownGood, ...] = (*_ORDERS, *_STEPS, *_INPUTS, *_PARTIALS)
KNOWN_GOOD: tuple[KnownGood, ...] = (*SUMS, *_WHOLE, *_TRANSFORMS)

ROWS = (
    CampaignRow("n2 c8 h9 w9 k16 r3 s3 p1 b1", every=5, dtypes=(*FP8, *BYTES)),
    CampaignRow("n2 c6 h11 w8 k10 r3 s3 u2x1 p0:1x2:0 d1x2 g2 b1", every=5, dtypes=(*FP8, *BYTES)),
    CampaignRow("n2 c8 w19 k12 s3 p1 b1", every=5, dtypes=(*FP8, *BYTES)),
    CampaignRow("n2 c4 d5 h6 w7 k6 t3 r3 s3 p1 b1", every=5, dtypes=(*FP8, *BYTES)),
    CampaignRow("n1 c512 h4 w4 k8 r3 s3 p1 b1", ("conv_forward",), 10, dtypes=(*FP8, *BYTES)),
    CampaignRow("n3 c1 h7 w5 k1 r1 s1"),
    CampaignRow("n2 c16 h6 w6 k12 r1 s1 u2 b1"),
    CampaignRow("n1 c9 h8 w8 k9 r3 s3 p1 g9 b1"),
    CampaignRow("n2 c6 h11 w8 k10 r3 s3 u2x1 p0:1x2:0 d1x2 g2 b1", every=2),
    CampaignRow("n1 c4 h15 w15 k6 r5 s5 p2", every=5),
    CampaignRow("n1 c12 h9 w9 k8 r3 s3 p1 g4 b1", every=2),
    CampaignRow("n2 c8 h9 w9 k16 r3 s3 p1 b1", every=5),
    CampaignRow("n1 c64 h6 w6 k16 r3 s3 p1", every=10),
    CampaignRow("n1 c3 h32 w32 k16 r3 s3 p1", ("conv_forward",), 10),
    CampaignRow("n1 c512 h4 w4 k8 r3 s3 p1 b1", ("conv_forward",), 10),
    CampaignRow("n1 c8 h4 w4 k512 r3 s3 p1", ("conv_backward_data",), 10),
    CampaignRow("n1 c2 h65 w65 k4 r3 s3 p1 b1", ("conv_backward_weight",), 10),
    CampaignRow("n2 c3 h64 w64 k64 r3 s3 p1 b1", ("conv_forward",), 10, "16-accumulator"),
    CampaignRow("n1 c32 h56 w56 k32 r3 s3 p1 g32", ("conv_backward_data",), 10, "16-accumulator"),
    CampaignRow("n3 c1 w35 k1 s1"),
    CampaignRow("n2 c6 w33 k10 s3 u2 p2:1 d2 g2 b1", every=2),
    CampaignRow("n1 c9 w64 k9 s3 p1 g9 b1", every=2),
    CampaignRow("n2 c64 w36 k16 s5 p2 b1", every=5),
    CampaignRow("n1 c512 w12 k8 s9 p4", ("conv_forward",), every=10),
    CampaignRow("n1 c2 w4097 k4 s3 p1 b1", ("conv_backward_weight",), every=10),
    CampaignRow("n3 c1 d3 h4 w3 k1 t1 r1 s1"),
    CampaignRow("n2 c6 d5 h6 w7 k10 t2 r3 s2 u2x1x3 p1:0x0:2x1 dil1x2x1 g2 b1", every=2),
    CampaignRow("n1 c9 d4 h4 w4 k9 t3 r3 s3 p1 g9 b1", every=2),
    CampaignRow("n1 c24 d4 h4 w5 k8 t3 r3 s3 p1 b1", every=5),
    CampaignRow("n1 c64 d3 h3 w3 k8 t3 r3 s3 p1", ("conv_forward",), every=10),
    CampaignRow("n1 c2 d16 h16 w17 k4 t3 r3 s3 p1 b1", ("conv_backward_weight",), every=10),
    CampaignRow("n1 c1 h1 w2 k501 r1 s2 p0x1", ("conv_forward",), 5, "split-k"),
    CampaignRow("n1 c3 h1 w1 k101 r1 s60 p0x59", ("conv_forward",), 5, "split-k"),
    CampaignRow("n1 c65 h3 w4 k1 r3 s3", ("conv_backward_data",), 5, "-"),
    CampaignRow("n1 c101 h1 w60 k2 r1 s60", ("conv_backward_data",), 5, "split-k"),
    CampaignRow("n3 c301 h1 w1 k1 r1 s1", ("conv_backward_weight",), 5, "-"),
)
"""Contractions from 1 term to 4,608; the longer, the fewer outputs and the fewer seeds. One row has many outputs, since
statistics see more of a systematic error then; and two more for accumulators of 16 bits, whose errors are related. In
the last ones an operand is one to three numbers, which all errors follow."""
MEDIUM = (
    "n2 c8 h9 w9 k16 r3 s3 p1 b1",
    "n1 c64 h6 w6 k16 r3 s3 p1",
    "n1 c16 h12 w12 k32 r3 s3 p1",
)
"""Problems on one of which a contract that is too strict must show."""
