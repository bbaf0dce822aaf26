"""Roundings and constants planted on a correct fp32 kernel, under contracts that do and do not cover them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance.execution.status import Verdict
from conformance.execution.trial import Trial
from conformance.execution.verify import verify
from conformance.implementations.implementation import Implementation
from conformance.judge import Contract
from conformance.operators import FAMILIES, OPERATORS
from conformance.problems import Variant, typed
from conformance.problems.table import applies
from tests import kernels

SMALL = "n2 c8 h9 w9 k16 r3 s3 p1 b1"


def verdict_on(function: Callable[..., Any], distribution: str, contract: Contract) -> Verdict:
    implementation = Implementation("planted", contract=contract)
    implementation.implements("conv_forward")(function)
    variant = Variant("fp32", "nchw", distribution)
    return verify(Trial(implementation, OPERATORS["conv_forward"], typed(SMALL), variant, seed=3))


def tf32(array: np.ndarray) -> np.ndarray:
    """Rounded to the 11 significant bits of TF32."""
    mantissa, exponent = np.frexp(array)
    rounded: np.ndarray = np.ldexp(np.round(mantissa * 2**11) / np.float32(2**11), exponent)
    return rounded


def lossy(x: np.ndarray, w: np.ndarray, b: np.ndarray, **given: Any) -> Any:
    return kernels.conv_forward(tf32(x), tf32(w), b, **given)


FP32_DISTRIBUTIONS = tuple(name for name in FAMILIES["conv"].distributions if applies(name, "fp32"))


def test_rounding_passes_where_it_is_declared_and_is_named_where_it_is_not():
    verdict = verdict_on(lossy, "fixed", Contract())
    assert verdict.status == "fail"
    assert re.search("inferred.*: .*tf32", verdict.reason), verdict.reason
    for distribution in FP32_DISTRIBUTIONS:
        verdict = verdict_on(lossy, distribution, Contract(inputs="tf32"))
        # with fewer bits, the smallest number is larger
        assert verdict.status == ("unsupported" if distribution == "subnormal" else "pass"), verdict.reason


CONTRACTS = {
    "default": (Contract(), ""),
    "bf16": (Contract(inputs="bf16", accumulate="bf16", rounding="zero"), "range subnormal small"),
    "split": (Contract(splits=64, partials="bf16", subnormals="flushed"), "range subnormal small"),
    "winograd": (
        Contract(algorithm="winograd-f4"),
        "special wide nonfinite range subnormal mixed large small absorbed",
    ),
    "fft": (Contract(algorithm="fft"), "special wide nonfinite range subnormal mixed large small absorbed"),
}
"""Contracts, and the distributions on which each has no one result."""


@pytest.mark.parametrize(("contract", "exempt"), CONTRACTS.values(), ids=CONTRACTS)
def test_no_contract_covers_a_constant(contract: Contract, exempt: str):
    def constant(*inputs: Any, **given: Any) -> Any:
        return np.full_like(kernels.conv_forward(*inputs, **given), 7)

    for distribution in FP32_DISTRIBUTIONS:
        status = verdict_on(constant, distribution, contract).status
        assert status == ("unsupported" if distribution in exempt.split() else "fail"), distribution
