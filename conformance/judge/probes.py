"""A verdict on an output too large to compare with an exact reference: sampled elements and a random projection.

The samples are judged as any output is. The projection sum_k r_k e_k of L lanes' errors is a sum of L independent
mean-zero errors, so in units of its root sum of squares it is as sub-Gaussian as one error; with the same LAMBDA

    |projected - expected| <= LAMBDA * sqrt(u_out^2 * sum ref^2 + unit^2 * (sum s2^2 + sum ref^2))

where `unit` is the contract's rms error per spread, to which the projection's own rounding is added. sum s2^2 is
bounded from the inputs' distribution (Hoeffding), and given the inputs sum ref^2 is a quadratic form of independent
lanes, below sum s2^2 * (1 + 2 sqrt(x/L) + 2x/L) except with probability exp(-x) (Laurent and Massart 2000). One wrong
element among millions is one wrong term of one such sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import FORMATS
from conformance.judge.judgement import EQUALITY_DISTRIBUTIONS, Check, Judgement, Locations, judge
from conformance.judge.limits import ALPHA, LAMBDA, OutputLimits, limits
from conformance.judge.output import Output
from conformance.operators.conv.probes import Projection


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one large output: sampled elements, and a projection over its lanes.

    `index[T, 4]`, `exact[T]`, `magnitude[T]` are samples; `projected` and `expected` have one element per projected
    position; `square` bounds the sum of s2^2 over the `lanes` of any of them.
    """

    index: np.ndarray
    exact: np.ndarray
    magnitude: np.ndarray
    projected: np.ndarray
    expected: np.ndarray
    square: float
    lanes: int
    noise: float


def projection_limit(evidence: Evidence | Projection, allowed: OutputLimits, dtype: str) -> float:
    """Largest |projected - expected| of a kernel that keeps its contract (see the module)."""
    x = math.log(evidence.expected.size / ALPHA) / evidence.lanes
    references = evidence.square * (1 + 2 * math.sqrt(x) + 2 * x)
    rounded = FORMATS[dtype].unit_roundoff ** 2 * references
    unit = max(allowed.sums / LAMBDA, allowed.unit)
    return LAMBDA * math.sqrt(rounded + (unit**2 + evidence.noise**2) * (evidence.square + references))


def judge_by_probes(output: Output, evidence: Evidence, distribution: str, contract: Contract) -> Judgement:
    """The judgement on a large output. On the integer distribution both probes must be exact."""
    values = output.actual[tuple(evidence.index.T)]
    magnitude = {output.name: evidence.magnitude}
    of_filters = output.name == "dw"
    axis = 0 if of_filters else output.axes.index("K" if "K" in output.axes else "C")
    samples = replace(
        output, axes="T", actual=values, reference=evidence.exact, magnitude=lambda: magnitude,
        channels=evidence.index[:, axis],
    )  # fmt: skip
    sampled = judge(samples, distribution, contract)
    worst, where = sampled.worst, None
    if worst is not None:
        worst = replace(worst, index=tuple(map(int, evidence.index[worst.index[0]])))
        where = Locations(place="a sampled element")

    allowed = limits(contract, output.dtype, output.terms, output.actual.size)
    exact = distribution in EQUALITY_DISTRIBUTIONS and contract.exact_on_integers(output.dtype)
    limit = 0.0 if exact else projection_limit(evidence, allowed, output.dtype)
    error = np.abs(evidence.projected - evidence.expected)
    error[np.isnan(error)] = np.inf
    check = Check("projection error", float(error.max()), limit)
    if not check.passed:
        # the projected axis is K or C of an image, and sets of the first axis of a filter; the others are known
        sets = ("group", "set of channels", *output.axes[1:])
        names = sets if of_filters else (output.axes[0], *output.axes[2:])
        position = np.unravel_index(int(np.argmax(error)), error.shape)
        places = ", ".join(f"{name.lower()} = {i}" for name, i in zip(names, position, strict=True))
        where = Locations(place=f"somewhere in the channels at {places}")
    return replace(
        sampled,
        criterion=f"{len(values):,} samples, a projection of all {output.actual.size:,}; {sampled.criterion}",
        checks=(*sampled.checks, check),
        mismatched=sampled.mismatched + int(np.count_nonzero(~(error <= limit))),
        worst=worst,
        where=where,
        zeros=sampled.zeros if np.max(np.abs(evidence.expected)) <= limit else "fail",
    )
