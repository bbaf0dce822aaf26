"""Legitimate kernels of convolution with batch normalisation: orders of the sums, statistics, what is folded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from conformance.dtypes import BF16, FP32, TF32
from conformance.judge import Contract
from conformance.operators import NORMALISED
from conformance.selftest.acquittals import moments, sums
from conformance.selftest.acquittals.collection import (
    ALL_ARMS,
    BETTER,
    FP32_STORAGE,
    INF_MINUS_INF,
    SPREADS_NAN,
    STORED,
    Acquittal,
)
from conformance.selftest.acquittals.moments import chan, raw, rsqrt, two_passes, welford
from conformance.selftest.acquittals.normalisation import (
    Convolve,
    Kernel,
    coefficients_of_d,
    coefficients_of_z,
    computed,
    folded,
    normalised,
    summed,
    weighed_distances,
)
from conformance.selftest.acquittals.sums import Sum
from conformance.selftest.acquittals.transforms import three_by_three, winograd
from conformance.selftest.trial import DEFAULT, Subject

BLAS = summed(sums.blas)
SHORT = ("bf16", "fp16")


def _acquittal(
    name: str,
    kernel: Kernel,
    honest: Contract = DEFAULT,
    too_good: Contract | None = BETTER,
    spared: Mapping[str, str] = ALL_ARMS,
    dtypes: tuple[str, ...] = STORED,
    operators: tuple[str, ...] = NORMALISED,
    when: Callable[[Any], bool] = lambda geometry: True,
) -> Acquittal:
    return Acquittal(Subject(f"bn-{name}", "batchnorm", kernel, honest, operators, when, dtypes), too_good, spared)


def _emulated(**changes: Any) -> Convolve:
    return summed(Sum(work=np.float64, **changes))


_CONVOLUTIONS = (
    _acquittal("sequential", Kernel()),
    _acquittal("pairwise", Kernel(summed(Sum(lanes=sums.blocks(1), combine=sums.pairwise)), total=moments.in_pairs)),
    _acquittal("blocked-32", Kernel(summed(Sum(lanes=sums.blocks(32))), chan(32))),
    _acquittal("atomics-shuffled", Kernel(summed(Sum(order=sums.shuffled)), two_passes(moments.shuffled))),
    _acquittal("split-k4", Kernel(summed(Sum(lanes=sums.always(4)))), Contract(splits=4)),
    _acquittal("fma", Kernel(_emulated(step=sums.fused_fp32), welford)),
    _acquittal("im2col-blas", Kernel(BLAS)),
    _acquittal(
        "fp64",
        Kernel(_emulated(held=np.float64), held="fp64"),
        Contract(accumulate="fp64"),
        None,
    ),
    _acquittal(
        "toward-zero",
        Kernel(_emulated(step=sums.rounding_to(FP32, np.trunc))),
        Contract(rounding="zero"),
        DEFAULT,
    ),
    _acquittal(
        "tf32",
        Kernel(summed(Sum(prepare=partial(sums.narrowed, TF32)))),
        Contract(inputs="tf32"),
        Contract(inputs="bf16x3"),
        dtypes=FP32_STORAGE,
    ),
    _acquittal(
        "bf16-inputs",
        Kernel(summed(Sum(prepare=partial(sums.narrowed, BF16)))),
        Contract(inputs="bf16"),
        Contract(inputs="tf32"),
        dtypes=FP32_STORAGE,
    ),
    _acquittal(
        "tf32x3",
        Kernel(summed(Sum(prepare=partial(sums.split, TF32)))),
        Contract(inputs="tf32x3"),
        BETTER,
        INF_MINUS_INF,
        FP32_STORAGE,
    ),
)
"""Other orders and other arithmetic of the convolutions."""

_WINOGRAD = tuple(
    _acquittal(
        name,
        Kernel(computed(partial(winograd, name))),
        Contract(algorithm=name),
        too_good,
        SPREADS_NAN,
        operators=("conv_bn_forward", "conv_bn_inference"),
        when=three_by_three,
    )
    for name, too_good in (("winograd-f2", BETTER), ("winograd-f4", DEFAULT))
)

_STATISTICS = (
    _acquittal("welford", Kernel(BLAS, welford, rsqrt)),
    _acquittal("chan-64", Kernel(BLAS, chan(64), rsqrt)),
    _acquittal("chan-7-pairwise", Kernel(BLAS, chan(7, moments.in_pairs))),
    _acquittal("two-passes-pairwise", Kernel(BLAS, two_passes(moments.in_pairs))),
    _acquittal("two-passes-fp64", Kernel(BLAS, two_passes(moments.in_float64), total=moments.in_float64)),
    _acquittal("two-passes-corrected", Kernel(BLAS, moments.corrected)),
    _acquittal("raw-moments-about-the-first", Kernel(BLAS, moments.shifted()), Contract(variance="raw")),
    _acquittal(
        "raw-moments",
        Kernel(BLAS, raw()),
        Contract(variance="raw"),
        DEFAULT,
    ),
    _acquittal(
        "raw-moments-pairwise",
        Kernel(BLAS, raw(moments.in_pairs), scale=folded),
        Contract(variance="raw"),
        DEFAULT,
    ),
)
"""Other ways to a mean and a variance."""

_SCALES = (
    _acquittal("weighed-distances", Kernel(BLAS, inverse=rsqrt, scale=weighed_distances)),
    _acquittal("scale-and-shift", Kernel(BLAS, scale=folded)),
    _acquittal("scale-in-filters", Kernel(BLAS, weights=True)),
    _acquittal(
        "scale-in-filters-tf32",
        Kernel(summed(Sum(prepare=partial(sums.narrowed, TF32))), weights=True),
        Contract(inputs="tf32"),
        Contract(inputs="bf16x3"),
        dtypes=FP32_STORAGE,
    ),
    _acquittal("gradient-by-normalised-z", Kernel(BLAS, gradient=normalised)),
    _acquittal("gradient-coefficients-of-d", Kernel(BLAS, gradient=coefficients_of_d)),
    _acquittal(
        "gradient-coefficients-of-z",
        Kernel(BLAS, gradient=coefficients_of_z),
    ),
)
"""What is multiplied with what."""

_BETWEEN = (
    _acquittal(
        "separate-kernels",
        Kernel(BLAS, between=True),
        Contract(between="storage"),
        DEFAULT,
        dtypes=SHORT,
    ),
    _acquittal(
        "separate-kernels-raw",
        Kernel(BLAS, raw(), scale=folded, gradient=coefficients_of_z, between=True),
        Contract(between="storage", variance="raw"),
        Contract(variance="raw"),
        dtypes=SHORT,
    ),
)
"""Convolution and normalisation apart."""

ACQUITTALS: tuple[Acquittal, ...] = (*_CONVOLUTIONS, *_WINOGRAD, *_STATISTICS, *_SCALES, *_BETWEEN)
