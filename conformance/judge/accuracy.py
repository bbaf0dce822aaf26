"""The accuracy profile: what a kernel's errors say about how it computes, and the contract it inferred."""

from __future__ import annotations

import math
from functools import cache

from conformance.judge.contract import Contract
from conformance.judge.limits import LAMBDA, NONE, Constants, Limits, limits, propagated_limits
from conformance.judge.residuals import Residuals

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


@cache
def ladder(dtype: str, terms: int) -> tuple[Contract, ...]:
    """The known contracts that errors in `dtype` can tell apart, from the strictest bound to the weakest.

    A 16-bit result hides whether its accumulator was fp32 or better.
    """
    rungs = [contract for contract in KNOWN if dtype in ("fp32", "fp64") or contract.accumulate != "fp64"]
    return tuple(sorted(rungs, key=lambda contract: strictness(contract, dtype, terms)))


def inferred(
    found: Residuals, dtype: str, terms: int, constants: Constants = NONE, sharing: int = 1
) -> Contract | None:
    """The strictest contract that the errors of a fixed-distribution output are consistent with; None if none is."""
    for contract in ladder(dtype, terms):
        if consistent(found, limits(contract, dtype, terms, found.count, constants, sharing)):
            return contract
    return None


def consistent(found: Residuals, allowed: Limits) -> bool:
    """Whether errors keep within the limits, judged from their sums and extremes."""
    if found.excess > _allowed(allowed) or found.rms(allowed) > found.rms_limit(allowed):
        return False
    return allowed.one_sided or max(abs(found.gain(allowed)), abs(found.offset(allowed))) <= allowed.z


def strictness(contract: Contract, dtype: str, terms: int) -> float:
    """The contract's bound before output rounding, in units of spread; smaller is stricter."""
    return _allowed(limits(contract, dtype, terms))


def profile(found: Residuals, declared: Contract, dtype: str, terms: int, allowed: Limits) -> dict[str, float]:
    """Numbers in the contract's own units.

    lambda, lambda_limit: worst error that output rounding does not explain, in units of u_acc*sqrt(KS)*spread;
    effective_bits: -log2(max|e|/s2); rms, gain_z, offset_z: the statistics of the tensor, where roundings are shared
    in units of that many.
    """
    unit = declared.accumulator(dtype).unit_roundoff * math.sqrt(terms)
    return {
        "lambda": found.excess / unit,
        "lambda_limit": _allowed(allowed) / unit,
        "effective_bits": found.effective_bits,
        "rms": found.rms(allowed),
        "gain_z": found.gain(allowed) / math.sqrt(allowed.sharing),
        "offset_z": found.offset(allowed) / math.sqrt(allowed.sharing),
    }


def propagated(found: Residuals, declared: Contract, dtype: str) -> dict[str, float]:
    """Those that have a meaning where the bound is known by element: lambda is the share of LAMBDA deviations."""
    allowed = propagated_limits(declared, dtype)
    return {
        "lambda": LAMBDA * max(found.excess_share, 0.0),
        "lambda_limit": LAMBDA,
        "rms": found.rms(allowed),
    }


def _allowed(allowed: Limits) -> float:
    return allowed.inputs + allowed.sums
