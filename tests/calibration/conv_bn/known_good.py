"""Correct kernels of convolution with batch normalisation: orders of the sums, statistics, folded factors."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import BF16, FP32, TF32
from conformance.operators import NORMALISED, Arrays, ConvBnGeometry, Operator
from tests.calibration.conv.known_good import INF_MINUS_INF, SPREADS_NAN
from tests.calibration.conv.transforms import three_by_three, winograd
from tests.calibration.conv_bn.normalisation import (
    ConvBnKernel,
    Convolve,
    chan,
    coefficients_of_d,
    coefficients_of_z,
    computed,
    corrected,
    corrected_mean,
    folded,
    in_float64,
    in_pairs,
    normalised,
    per_filter,
    raw,
    rsqrt,
    shifted,
    shuffled,
    summed,
    two_passes,
    weighed_distances,
    welford,
)
from tests.calibration.kernels import sums
from tests.calibration.kernels.kernel import BETTER, DEFAULT, FP32_ONLY, SHORT, CampaignRow, KnownGood
from tests.calibration.kernels.rounding import stored
from tests.calibration.kernels.sums import Sum

BLAS = summed(sums.blas)
_RAW = Contract(variance="raw")


def _known_good(name: str, kernel: ConvBnKernel, contract: Contract = DEFAULT, **given: Any) -> KnownGood:
    return KnownGood(f"bn-{name}", "conv_bn", kernel, contract, given.pop("operators", NORMALISED), **given)


def _emulated(**changes: Any) -> Convolve:
    return summed(Sum(work=np.float64, **changes))


_CONVOLUTIONS = (
    _known_good("sequential", ConvBnKernel()),
    _known_good("pairwise",
                ConvBnKernel(summed(Sum(lanes=sums.blocks(1), combine=sums.pairwise)), total=in_pairs)),
    _known_good("blocked-32", ConvBnKernel(summed(Sum(lanes=sums.blocks(32))), chan(32))),
    _known_good("atomics-shuffled", ConvBnKernel(summed(Sum(order=sums.shuffled)), two_passes(shuffled))),
    _known_good("split-k4", ConvBnKernel(summed(Sum(lanes=sums.always(4)))), Contract(splits=4)),
    _known_good("fma", ConvBnKernel(_emulated(step=sums.fused_fp32), welford)),
    _known_good("im2col-blas", ConvBnKernel(BLAS)),
    _known_good("fp64", ConvBnKernel(_emulated(held=np.float64), held="fp64"), Contract(accumulate="fp64"),
                stricter=None),
    _known_good("toward-zero", ConvBnKernel(_emulated(step=sums.rounding_to(FP32, np.trunc))),
                Contract(rounding="zero"), stricter=DEFAULT),
    _known_good("tf32", ConvBnKernel(summed(Sum(prepare=partial(sums.narrowed, TF32)))), Contract(inputs="tf32"),
                stricter=Contract(inputs="bf16x3"), dtypes=FP32_ONLY),
    _known_good("bf16-inputs", ConvBnKernel(summed(Sum(prepare=partial(sums.narrowed, BF16)))), Contract(inputs="bf16"),
                stricter=Contract(inputs="tf32"), dtypes=FP32_ONLY),
    _known_good("tf32x3", ConvBnKernel(summed(Sum(prepare=partial(sums.split, TF32)))), Contract(inputs="tf32x3"),
                exempted=INF_MINUS_INF, dtypes=FP32_ONLY),
)  # fmt: skip
"""Other orders and other arithmetic of the convolutions."""

_WINOGRAD = tuple(
    _known_good(name, ConvBnKernel(computed(partial(winograd, name))), Contract(algorithm=name), stricter=stricter,
                exempted=SPREADS_NAN, operators=("conv_bn_forward", "conv_bn_inference"), when=three_by_three,
                ranks=(2,))
    for name, stricter in (("winograd-f2", BETTER), ("winograd-f4", DEFAULT))
)  # fmt: skip

_STATISTICS = (
    _known_good("welford", ConvBnKernel(BLAS, welford, rsqrt)),
    _known_good("chan-64", ConvBnKernel(BLAS, chan(64), rsqrt)),
    _known_good("chan-7-pairwise", ConvBnKernel(BLAS, chan(7, in_pairs))),
    _known_good("two-passes-pairwise", ConvBnKernel(BLAS, two_passes(in_pairs))),
    _known_good("two-passes-fp64", ConvBnKernel(BLAS, two_passes(in_float64), total=in_float64)),
    _known_good("two-passes-corrected", ConvBnKernel(BLAS, corrected)),
    _known_good("two-passes-corrected-mean", ConvBnKernel(BLAS, corrected_mean)),
    _known_good("raw-moments-about-the-first", ConvBnKernel(BLAS, shifted()), _RAW),
    _known_good("raw-moments", ConvBnKernel(BLAS, raw()), _RAW, stricter=DEFAULT),
    _known_good("raw-moments-pairwise", ConvBnKernel(BLAS, raw(in_pairs), scale=folded), _RAW, stricter=DEFAULT),
)
"""Other ways to a mean and a variance."""


def _begun_with_the_shift(operator: Operator, geometry: ConvBnGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Compute inference by a convolution with folded filters, each sum of which begins with the folded shift."""
    kernel = ConvBnKernel()
    mean, var = (kernel.wide(inputs[name]) for name in ("running_mean", "running_var"))
    c = kernel.with_statistics(geometry, inputs, mean[:, None], mean, var)
    shift = (c.beta - c.mean * c.factor).reshape(geometry.groups, -1, 1)

    def total(a: np.ndarray, b: np.ndarray, taps: int = 1) -> np.ndarray:
        ones = np.ones((len(b), 1, b.shape[2]), b.dtype)
        return Sum()(np.concatenate([shift, a], axis=2), np.concatenate([ones, b], axis=1), taps)

    w = kernel.wide(inputs["w"]) * per_filter(c.factor, geometry.rank)
    y = summed(total)("conv_forward", geometry.conv, {"x": inputs["x"], "w": w}, "fp32")
    return {"y": stored(y, dtype)}


_SCALES = (
    KnownGood("bn-sums-begin-with-the-shift", "conv_bn", _begun_with_the_shift, DEFAULT, ("conv_bn_inference",)),
    _known_good("weighed-distances", ConvBnKernel(BLAS, inverse=rsqrt, scale=weighed_distances)),
    _known_good("scale-and-shift", ConvBnKernel(BLAS, scale=folded)),
    _known_good("scale-in-filters", ConvBnKernel(BLAS, weights=True)),
    _known_good("scale-in-filters-tf32", ConvBnKernel(summed(Sum(prepare=partial(sums.narrowed, TF32))), weights=True),
                Contract(inputs="tf32"), stricter=Contract(inputs="bf16x3"), dtypes=FP32_ONLY),
    _known_good("gradient-by-normalised-z", ConvBnKernel(BLAS, gradient=normalised)),
    _known_good("gradient-coefficients-of-d", ConvBnKernel(BLAS, gradient=coefficients_of_d)),
    _known_good("gradient-coefficients-of-z", ConvBnKernel(BLAS, gradient=coefficients_of_z)),
)  # fmt: skip
"""Other orders of the multiplications by gamma and the inverse deviation."""

_BETWEEN = (
    _known_good("separate-kernels", ConvBnKernel(BLAS, between=True), Contract(between="storage"), stricter=DEFAULT,
                dtypes=SHORT),
    _known_good("separate-kernels-raw",
                ConvBnKernel(BLAS, raw(), scale=folded, gradient=coefficients_of_z, between=True),
                Contract(between="storage", variance="raw"), stricter=_RAW, dtypes=SHORT),
)  # fmt: skip
"""Convolution and normalisation as two kernels."""

KNOWN_GOOD: tuple[KnownGood, ...] = (*_CONVOLUTIONS, *_WINOGRAD, *_STATISTICS, *_SCALES, *_BETWEEN)

ROWS = (
    CampaignRow("bn n2 c6 h3 w3 k8 r3 s3"),
    CampaignRow("bn n3 c8 h1 w1 k12 r1 s1 eps3"),
    CampaignRow("bn n1 c6 h4 w3 k8 r3 s3 affine0 outside1"),
    CampaignRow("bn n2 c12 h6 w5 k8 r1 s1", every=2),
    CampaignRow("bn n2 c6 h7 w7 k8 r3 s3 p1 eps3 outside1", every=2),
    CampaignRow("bn n2 c8 h9 w9 k12 r3 s3 p1 g4 eps9", every=2),
    CampaignRow("bn n2 c6 h9 w9 k12 r3 s3 u2 p1 g6 eps1 mom30", every=5),
    CampaignRow("bn n2 c8 h9 w9 k16 r3 s3 p1", every=5),
    CampaignRow("bn n1 c64 h6 w6 k16 r3 s3 p1", every=10),
    CampaignRow("bn n2 c64 h14 w14 k64 r3 s3 p1", kernels="two-passes", every=25),
    CampaignRow("bn n2 c4 h45 w46 k4 r3 s3 p1", every=25),
    CampaignRow("bn n2 c4 h45 w46 k4 r3 s3", every=25),
    CampaignRow("bn n2 c6 w15 k8 s3 p1", every=2),
    CampaignRow("bn n2 c8 w41 k12 s3 u2 p1 g4 eps9", every=5),
    CampaignRow("bn n2 c4 w2071 k4 s3 p1", every=25),
    CampaignRow("bn n2 c6 d3 h4 w3 k8 t2 r3 s3 p1 eps3 outside1", every=2),
    CampaignRow("bn n2 c8 d4 h5 w4 k12 t3 r3 s3 p1 g4", every=5),
    CampaignRow("bn n2 c4 d11 h13 w15 k4 t1 r3 s3", every=25),
    # most of z is padding: behind few large squares, or before them, all others are equal
    CampaignRow("bn n1 c1 w1 k16 s1 p0:63"),
    CampaignRow("bn n1 c2 w2 k2 s3 p1:259"),
    CampaignRow("bn n1 c2 h2 w2 k16 r3 s3 p15", every=10),
    CampaignRow("bn n1 c2 w2 k64 s3 p1:259", every=10),
    CampaignRow("bn n1 c2 w2 k64 s3 p259:1", every=10),
)
MEDIUM = (
    "bn n2 c8 h9 w9 k16 r3 s3 p1",
    "bn n2 c64 h8 w8 k16 r3 s3",
    "bn n1 c16 h12 w12 k32 r3 s3 p1",
)
"""Problems on one of which a contract that is too strict must show."""
