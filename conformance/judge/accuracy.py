"""The accuracy profile: what a kernel's errors say about how it computes, and the contract that it infers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from conformance.contract import Contract
from conformance.dtypes import FORMATS
from conformance.judge.limits import LAMBDA, OutputLimits, limits
from conformance.judge.output import Output
from conformance.judge.residuals import Residuals, Statistics

KNOWN = (
    Contract(accumulate="fp64"),
    Contract(accumulate="fp32"),
    Contract(accumulate="fp32", rounding="zero"),
    Contract(inputs="tf32x3", accumulate="fp32"),
    Contract(inputs="bf16x3", accumulate="fp32"),
    Contract(inputs="tf32", accumulate="fp32"),
    Contract(inputs="tf32", accumulate="fp32", rounding="zero"),
    Contract(inputs="fp16", accumulate="fp32"),
    Contract(inputs="bf16", accumulate="fp32"),
    Contract(inputs="bf16", accumulate="fp32", rounding="zero"),
    Contract(accumulate="fp16"),
    Contract(accumulate="bf16"),
)
"""The ways in which kernels are built."""


RANKS = {contract.arithmetic: place for place, contract in enumerate(KNOWN)}
"""Arithmetic in words -> its place among the known ones, the most precise first."""
TELLING, FEWEST, SHARE = 8, 3, 0.25
"""Terms of a sum in 16 bits from which on its errors show its arithmetic; cases that contradict an arithmetic, and
their share of these and of those that fail: results that are all zero are precise in any."""


def shows(dtype: str, terms: int) -> bool:
    """Whether the errors of an output show the arithmetic of its sums, which the rounding to a format can hide."""
    return dtype in ("fp32", "fp64") or terms >= TELLING


def contradicted(arithmetic: str, precise: Sequence[int], failing: int, passing: int) -> bool:
    """Whether cases that pass show that this is not the arithmetic of a kernel, which holds of all its cases: their
    errors are those of more precise ones, whose places `precise` has; or these are few, and more cases pass than fail.
    What is not known has no place."""
    if (rank := RANKS.get(arithmetic)) is None:
        return False
    against = sum(place < rank for place in precise)
    return against >= max(FEWEST, SHARE * (against + failing)) or (len(precise) < FEWEST and passing > failing)


@cache
def ladder(dtype: str, terms: int) -> dict[Contract, float]:
    """The known contracts that errors in `dtype` can tell apart, the strictest first, and how strict they are: their
    bound before output rounding, in units of spread.

    A 16-bit result hides whether its accumulator was fp32 or better, and its inputs lose no bits to a format, or to
    parts of one, that are as precise.
    """
    rungs = [
        contract
        for contract in KNOWN
        if (dtype in ("fp32", "fp64") or contract.accumulate != "fp64")
        and not (contract.narrow and contract.parts * FORMATS[contract.narrow].precision >= FORMATS[dtype].precision)
    ]
    strictness = {contract: limits(contract, dtype, terms).relative for contract in rungs}
    return dict(sorted(strictness.items(), key=lambda rung: rung[1]))


def inferred(output: Output, found: Residuals, declared: Contract, distribution: str) -> tuple[Contract | None, bool]:
    """The strictest known contract that the errors of a fixed-distribution output are consistent with, if any is, and
    whether the declared one is conservative: less strict than that.

    A propagated bound differs by contract in every element, so that errors are measured against each of them.
    """
    for contract, strictness in ladder(output.dtype, output.terms).items():
        if output.propagated is None:
            allowed = output.allowed(contract)
            bounded = found.excess <= allowed.relative
        else:
            allowed, _, found = output.measured(contract, distribution)
            bounded = found.worst_share <= 1
        if bounded:
            statistics = found.statistics(allowed, output.channels, output.taps)
            balanced = allowed.one_sided or max(abs(statistics.gain_z), abs(statistics.offset_z)) <= allowed.z
            if statistics.rms <= statistics.rms_limit and balanced:
                return contract, strictness < limits(declared, output.dtype, output.terms).relative
    return None, False


def profile(
    output: Output, found: Residuals, statistics: Statistics, declared: Contract, allowed: OutputLimits
) -> dict[str, float]:
    """Numbers in the declared contract's own units.

    lambda, lambda_limit: worst error that output rounding does not explain, in units of u_acc*sqrt(KS)*spread;
    effective_bits: -log2(max|e|/s2), the input precision that would explain the error; rms, gain_z, offset_z: the
    statistics of the tensor, where roundings are shared in units of that many. Where the bound is known by element,
    lambda is the share of LAMBDA deviations, and bits, gain and offset have no meaning.
    """
    if output.propagated is not None:
        return {"lambda": LAMBDA * found.excess_share, "lambda_limit": LAMBDA, "rms": statistics.rms}
    unit = declared.accumulator(output.dtype).unit_roundoff * math.sqrt(output.terms)
    return {
        "lambda": found.excess / unit,
        "lambda_limit": allowed.relative / unit,
        "effective_bits": -math.log2(found.largest) if found.largest > 0 else math.inf,
        "rms": statistics.rms,
        "gain_z": statistics.gain_z / math.sqrt(allowed.fan_out),
        "offset_z": statistics.offset_z / math.sqrt(allowed.fan_out),
    }
