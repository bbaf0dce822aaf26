"""Correct kernels of average pooling: orders of the sums, and places and ways of dividing a sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from conformance.contract import NONFINITE, Contract
from conformance.dtypes import BF16, FP16, FP32, STORAGE, TF32
from conformance.operators import OPERATORS, POOLINGS, Arrays, Operator, PoolGeometry
from conformance.operators.pooling import scattered
from conformance.operators.spatial import padded, taps
from tests.calibration.avg_pool.gathering import Gathered, gathered
from tests.calibration.kernels import sums
from tests.calibration.kernels.kernel import DEFAULT, FP32_ONLY, CampaignRow, KnownGood
from tests.calibration.kernels.rounding import stored
from tests.calibration.kernels.sums import Sum, Total

FORWARD, BACKWARD = POOLINGS
TIMES_ZERO = dict.fromkeys(NONFINITE, "a constant matrix multiplies NaN and Inf outside the window by zero")
DIFFERENCES = dict.fromkeys(NONFINITE, "differences of prefix sums carry NaN and Inf to all that comes behind")

SEQUENTIAL = Sum()

Divide = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Quotients in the dtype of the first array, of divisors in float64 that broadcast to it."""


def divided(values: np.ndarray, divisors: np.ndarray) -> np.ndarray:
    """Divide with one rounding."""
    return values / divisors.astype(values.dtype)


def by_reciprocals(values: np.ndarray, divisors: np.ndarray) -> np.ndarray:
    """Divide with two roundings: one of the reciprocal, one of the product."""
    return values * reciprocals(divisors, values.dtype)


def reciprocals(divisors: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return reciprocals, rounded once."""
    return dtype.type(1) / divisors.astype(dtype)


def _added(total: Total, terms: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Add terms [KS, ...], times weights of their shape, in some order."""
    flat = terms.astype(np.float64).reshape(len(terms), -1).T[:, None]
    ones = np.ones((1, len(terms), 1))
    if weights is None:
        return total(flat.swapaxes(0, 1), ones, 1).reshape(terms.shape[1:])
    return total(flat, weights.reshape(len(terms), -1).T[..., None], 1).reshape(terms.shape[1:])


def _listed(seen: Gathered) -> tuple[np.ndarray, np.ndarray]:
    """Return the terms [KS, N, C, rows, columns] and their divisors, which broadcast to them."""
    rank, terms, shares = seen.divisors.ndim // 2, seen.terms, seen.shares
    return terms.reshape(-1, *terms.shape[rank:]), shares.reshape(-1, *shares.shape[rank:])


Average = Callable[[Operator, PoolGeometry, Arrays], np.ndarray]
"""The main output before it is stored."""


@dataclass(frozen=True, slots=True)
class Summed:
    """A sum, then a division in fp32. Gradients of windows with several divisors are divided before they are added.

    first   whether every term is divided before it is added
    fused   whether terms are multiplied with rounded reciprocals while they are added
    """

    total: Total = SEQUENTIAL
    divide: Divide = divided
    first: bool = False
    fused: bool = False
    work: type = np.float32

    def __call__(self, operator: Operator, geometry: PoolGeometry, inputs: Arrays) -> np.ndarray:
        """Return the averages in the accumulator's format or fp32."""
        seen = gathered(operator, geometry, inputs)
        terms, divisors = _listed(seen)
        if self.fused:
            weights = np.broadcast_to(reciprocals(divisors, np.dtype(self.work)), terms.shape)
            return _added(self.total, terms, weights.astype(np.float64))
        if self.first or not seen.common:
            return _added(self.total, self.divide(terms.astype(self.work), divisors))
        return self.divide(_added(self.total, terms).astype(self.work), divisors[0])


def _separable(divide: Divide, once: bool = False, kept: str = "fp32") -> Average:
    """Average along columns of the window first, then its rows and planes; divided axis by axis, or `once`.
    Intermediate values are `kept` in a format."""

    def average(operator: Operator, g: PoolGeometry, inputs: Arrays) -> np.ndarray:
        total, forward = inputs[operator.data], operator.name == FORWARD
        at_once = once and (forward or np.unique(g.divisors).size == 1)
        for axis in reversed(range(g.rank)):
            of_axis = Summed(divide=divide, first=not forward)
            total = of_axis(operator, _along(g, axis, forward, at_once), {operator.data: total})
            if axis:
                total = stored(total, kept).astype(np.float32)
        return divide(total, g.divisors if forward else g.divisors.reshape(-1)[:1]) if at_once else total

    return average


def _along(g: PoolGeometry, axis: int, forward: bool, undivided: bool) -> PoolGeometry:
    """Return the pooling of one axis, once the axes behind it are done. The first axis gets a given divisor."""

    def alone(values: Any, others: Any) -> Any:
        return tuple(value if place == axis else others for place, value in enumerate(values))

    done, left = (g.output_size, g.size) if forward else (g.size, g.output_size)
    given = g.divisor_override if axis == 0 else 1
    return replace(
        g,
        size=(*left[:axis], g.size[axis], *done[axis + 1 :]),
        window=alone(g.window, 1),
        stride=alone(g.stride, 1),
        padding=alone(g.padding, (0, 0)),
        divisor_override=1 if undivided else g.divisor_override and given,
    )


def _scattered(divide: Divide) -> Average:
    """Add gradients to the image, a position of the window at a time."""

    def average(operator: Operator, g: PoolGeometry, inputs: Arrays) -> np.ndarray:
        shares = divide(inputs["dy"].astype(np.float32), g.divisors.astype(np.float64))
        return scattered(g, shares, taps(g))

    return average


def _constant_matrix(operator: Operator, g: PoolGeometry, inputs: Arrays) -> np.ndarray:
    """Average by a GEMM with a matrix that holds reciprocals inside a window, and zeros elsewhere."""
    places = math.prod(g.size)
    one = replace(g, n=places, c=1, divisor_override=1)
    unit = np.eye(places).reshape(one.x.shape)
    windows = OPERATORS[FORWARD].reference(one, {"x": unit})["y"].reshape(places, -1)
    matrix = windows.astype(np.float32) * reciprocals(g.divisors.reshape(-1), np.dtype(np.float32))
    (tensor,) = operator.outputs(g).values()
    flat = inputs[operator.data].reshape(g.n * g.c, -1).astype(np.float32)
    return (flat @ (matrix if operator.name == FORWARD else matrix.T)).reshape(tensor.shape)


def _prefix_sums(operator: Operator, g: PoolGeometry, inputs: Arrays) -> np.ndarray:
    """Average by differences of an integral image in fp64, which holds the suite's data exactly."""
    image = padded(inputs["x"], g.overhang, np.dtype(np.float64))
    total = image
    for axis in range(2, 2 + g.rank):
        total = np.pad(total.cumsum(axis), [(int(place == axis), 0) for place in range(total.ndim)])
    for axis, (count, u, extent) in enumerate(zip(g.output_size, g.stride, g.window, strict=True), 2):
        first = np.arange(count) * u
        total = total.take(first + extent, axis) - total.take(first, axis)
    return total / g.divisors


def _known_good(name: str, average: Average, contract: Contract = DEFAULT, **given: Any) -> KnownGood:
    def run(operator: Operator, geometry: PoolGeometry, inputs: Arrays, dtype: str) -> Arrays:
        (output,) = operator.outputs(geometry)
        return {output: stored(average(operator, geometry, inputs), dtype)}

    return KnownGood(f"pool-{name}", "avg_pool", run, contract, given.pop("operators", POOLINGS), **given)


_EMULATED = partial(Sum, work=np.float64)
_BF16 = STORAGE["bf16"].type
_FP64 = Contract(accumulate="fp64")

_ORDERS = (
    _known_good("sequential", Summed()),
    _known_good("sequential-reciprocal", Summed(divide=by_reciprocals)),
    _known_good("reversed", Summed(Sum(order=sums.backwards), by_reciprocals)),
    _known_good("pairwise", Summed(Sum(lanes=sums.blocks(1), combine=sums.pairwise), by_reciprocals)),
    _known_good("blocked-32", Summed(Sum(lanes=sums.blocks(32)))),
    _known_good("simd-8", Summed(Sum(lanes=sums.always(8), strided=True, combine=sums.pairwise))),
    _known_good("vector-of-ones", Summed(sums.blas, by_reciprocals)),
    _known_good("constant-matrix", _constant_matrix, exempted=TIMES_ZERO),
    _known_good("atomics-shuffled", Summed(Sum(order=sums.shuffled), first=True)),
    _known_good("scatter", _scattered(divided), operators=(BACKWARD,)),
    _known_good("scatter-reciprocal", _scattered(by_reciprocals), operators=(BACKWARD,)),
    _known_good("columns-then-rows", _separable(divided, once=True)),
)
"""Orders of the sum in fp32."""

_DIVISIONS = (
    _known_good("divided-first", Summed(first=True)),
    _known_good("scaled-first", Summed(divide=by_reciprocals, first=True)),
    _known_good("fused", Summed(_EMULATED(step=sums.fused_fp32), fused=True)),
    _known_good("divided-by-axis", _separable(divided)),
    _known_good("scaled-by-axis", _separable(by_reciprocals)),
)
"""Other places of the division."""

_ACCUMULATORS = (
    _known_good("fp64", Summed(_EMULATED(held=np.float64), work=np.float64), _FP64, stricter=None),
    _known_good("prefix-sums-fp64", _prefix_sums, _FP64, stricter=None, exempted=DIFFERENCES, operators=(FORWARD,)),
    _known_good("toward-zero", Summed(_EMULATED(step=sums.rounding_to(FP32, np.trunc))), Contract(rounding="zero"),
                stricter=DEFAULT),
    _known_good("fp16-accumulator", Summed(_EMULATED(step=sums.rounding_to(FP16))), Contract(accumulate="fp16"),
                stricter=DEFAULT, dtypes=("fp16",)),
    _known_good("bf16-accumulator", Summed(Sum(work=_BF16, held=_BF16), by_reciprocals), Contract(accumulate="bf16"),
                stricter=Contract(accumulate="fp16"), dtypes=("bf16",)),
    _known_good("columns-stored-bf16", _separable(by_reciprocals, once=True, kept="bf16"),
                Contract(splits=4, partials="bf16"), stricter=Contract(splits=4, partials="fp16"),
                dtypes=("bf16",), operators=(FORWARD,), when=lambda g: math.prod(g.window[:-1]) <= 4),
    _known_good("tf32", Summed(Sum(prepare=partial(sums.narrowed, TF32))), Contract(inputs="tf32"),
                stricter=Contract(inputs="bf16x3"), dtypes=FP32_ONLY),
    _known_good("bf16-inputs", Summed(Sum(prepare=partial(sums.narrowed, BF16)), by_reciprocals),
                Contract(inputs="bf16"), stricter=Contract(inputs="tf32"), dtypes=FP32_ONLY),
)  # fmt: skip
"""Other accumulators, and inputs that a matrix unit rounds."""

KNOWN_GOOD: tuple[KnownGood, ...] = (*_ORDERS, *_DIVISIONS, *_ACCUMULATORS)

ROWS = (
    CampaignRow("pool n3 c4 h7 w5 r1 s1"),
    CampaignRow("pool n2 c3 h5 w6 r1 s1 div7"),
    CampaignRow("pool n2 c6 h8 w6 r2 s2"),
    CampaignRow("pool n2 c4 h10 w12 r3 s3 u2 p1 ceil1 valid1"),
    CampaignRow("pool n2 c5 h9 w9 r3 s3 u1 p1 valid1"),
    CampaignRow("pool n2 c3 h10 w11 r4 s3 u3x2 p1:2x0:1 ceil1"),
    CampaignRow("pool n2 c3 h10 w11 r3 s3 u2 p1 div11"),
    CampaignRow("pool n4 c16 h7 w7 r7 s7", every=2),
    CampaignRow("pool n2 c8 h15 w13 r15 s13", every=5),
    CampaignRow("pool n1 c3 h5 w259 r3 s3 u2 p1", every=5),
    CampaignRow("pool n1 c16 h30 w30 r3 s3 u2 p1", every=5),
    CampaignRow("pool n1 c8 h28 w30 r5 s7 u5x7", every=5),
    CampaignRow("pool n1 c24 h28 w28 r28 s28", every=10),
    CampaignRow("pool n2 c8 h32 w32 r8 s8 u2", every=10),
    CampaignRow("pool n2 c4 h20 w20 r7 s7 u1 p3 valid1", every=5),
    CampaignRow("pool n2 c512 h7 w7 r7 s7", ("avg_pool_backward",), every=10),
    CampaignRow("pool n2 c32 h30 w30 r5 s3", ("avg_pool_backward",), every=10),
    CampaignRow("pool n2 c5 w19 s3 u2 p1 ceil1 valid1"),
    CampaignRow("pool n2 c4 w23 s4 u3 p2:1 div7", every=2),
    CampaignRow("pool n2 c8 w260 s195", every=5),
    CampaignRow("pool n2 c16 w300 s64 u2", every=10),
    CampaignRow("pool n2 c3 d5 h6 w7 t2 r3 s3 u1x2x2 p1 valid1"),
    CampaignRow("pool n2 c3 d6 h7 w8 t3 r2 s3 u2x3x2 p1:0x0:1x1 ceil1", every=2),
    CampaignRow("pool n2 c8 d5 h6 w7 t5 r6 s7", every=5),
    CampaignRow("pool n2 c8 d9 h10 w11 t4 r5 s3 u1", every=10),
)
MEDIUM = (
    "pool n4 c16 h9 w9 r3 s3 u2 p1",
    "pool n4 c64 h28 w28 r28 s28",
    "pool n2 c16 h16 w16 r2 s2 u1",
)
"""Problems on one of which a contract that is too strict must show."""
