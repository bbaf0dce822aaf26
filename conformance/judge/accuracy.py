"""The accuracy profile: the arithmetic that a kernel's errors show, and the contract inferred from them."""

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
"""Contracts of the arithmetic that kernels commonly use, the most precise first."""


RANKS = {contract.arithmetic: place for place, contract in enumerate(KNOWN)}
"""Arithmetic in words -> its rank in `KNOWN`, the most precise first."""
TELLING, FEWEST, SHARE = 8, 3, 0.25
"""TELLING: least terms of a sum in 16 bits whose errors show its arithmetic. FEWEST, SHARE: least number of passing
cases that contradict an arithmetic, and their least share of these and the failing cases (results of zeros are precise
in any arithmetic)."""


def shows(dtype: str, terms: int) -> bool:
    """Tell whether an output's errors show the arithmetic of its sums; rounding to a 16-bit format can hide it."""
    return dtype in ("fp32", "fp64") or terms >= TELLING


def contradicted(arithmetic: str, precise: Sequence[int], failing: int, passing: int) -> bool:
    """Tell whether passing cases show that a kernel, which uses one arithmetic in all its cases, does not use this one.

    `precise` are the ranks of the arithmetic that passing cases show. They contradict if enough of them are more
    precise; or if there are few of them and more cases pass than fail. An unknown arithmetic is never contradicted.
    """
    if (rank := RANKS.get(arithmetic)) is None:
        return False
    against = sum(place < rank for place in precise)
    return against >= max(FEWEST, SHARE * (against + failing)) or (len(precise) < FEWEST and passing > failing)


@cache
def ladder(dtype: str, terms: int) -> dict[Contract, float]:
    """Return the known contracts that errors in `dtype` can distinguish, the strictest first, each with its bound
    before output rounding in units of spread.

    A 16-bit result hides whether its accumulator was fp32 or better, and its inputs lose no bits to a format (or parts
    of a format) that is as precise.
    """
    rungs = [
        contract
        for contract in KNOWN
        if (dtype in ("fp32", "fp64") or contract.accumulate != "fp64")
        and not (contract.narrow and contract.parts * FORMATS[contract.narrow].precision >= FORMATS[dtype].precision)
    ]
    strictness = {contract: limits(contract, dtype, terms).relative for contract in rungs}
    return dict(sorted(strictness.items(), key=lambda rung: rung[1]))


def inferred(
    output: Output, residuals: Residuals, declared: Contract, distribution: str
) -> tuple[Contract | None, bool]:
    """Return the strictest known contract that the errors of a fixed-distribution output are consistent with (None if
    there is none), and whether the declared contract is conservative: less strict than the inferred one.

    A propagated bound differs by contract in every element, so errors are measured anew under each contract.
    """
    for contract, strictness in ladder(output.dtype, output.terms).items():
        if output.propagated is None:
            allowed = output.allowed(contract)
            bounded = residuals.excess <= allowed.relative
        else:
            allowed, _, residuals = output.measured(contract, distribution)
            bounded = residuals.worst_share <= 1
        if bounded:
            statistics = residuals.statistics(allowed, output.channels, output.taps)
            balanced = allowed.one_sided or max(abs(statistics.gain_z), abs(statistics.offset_z)) <= allowed.z
            if statistics.rms <= statistics.rms_limit and balanced:
                return contract, strictness < limits(declared, output.dtype, output.terms).relative
    return None, False


def profile(
    output: Output, residuals: Residuals, statistics: Statistics, declared: Contract, allowed: OutputLimits
) -> dict[str, float]:
    """Return the accuracy profile in the declared contract's units.

    lambda, lambda_limit: worst error that output rounding does not explain, in units of u_acc*sqrt(KS)*spread;
    effective_bits: -log2(max|e|/s2), the input precision that would explain the error; rms, gain_z, offset_z: the
    statistics of the tensor, the z divided by sqrt(fan_out) where elements share roundings. Where the bound is
    propagated by element, lambda is the share of LAMBDA deviations; bits, gain and offset are meaningless, and absent.
    """
    if output.propagated is not None:
        return {"lambda": LAMBDA * residuals.excess_share, "lambda_limit": LAMBDA, "rms": statistics.rms}
    unit = declared.accumulator(output.dtype).unit_roundoff * math.sqrt(output.terms)
    return {
        "lambda": residuals.excess / unit,
        "lambda_limit": allowed.relative / unit,
        "effective_bits": -math.log2(residuals.largest) if residuals.largest > 0 else math.inf,
        "rms": statistics.rms,
        "gain_z": statistics.gain_z / math.sqrt(allowed.fan_out),
        "offset_z": statistics.offset_z / math.sqrt(allowed.fan_out),
    }
