"""Contracts and refusals hide little: zeros are detected under the weakest contract, right results pass under any."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance import Contract, Implementation, Unsupported
from conformance.execution.status import Verdict
from conformance.execution.trial import Trial
from conformance.execution.verify import verify
from conformance.implementations import registry
from conformance.operators import OPERATORS, ORDINARY, takes
from conformance.problems import PROBLEMS, at_level
from conformance.resources import IMPLS

WEAKEST = Contract(
    inputs="bf16", accumulate="bf16", rounding="zero", algorithm="fft", splits=10**6, partials="bf16",
    subnormals="flushed", variance="raw",
)  # fmt: skip
WEAK = {
    "bf16 sums": (Contract(accumulate="bf16"), "bf16"),
    "fp16 sums": (Contract(accumulate="fp16"), "fp16"),
    "bf16 sums of fp32": (Contract(accumulate="bf16"), "fp32"),
    "bf16 partials": (Contract(splits=8, partials="bf16"), "bf16"),
    "tf32": (Contract(inputs="tf32"), "fp32"),
    "bf16 inputs": (Contract(inputs="bf16"), "fp32"),
    "bf16x6": (Contract(inputs="bf16x6"), "fp32"),
    "winograd-f4": (Contract(algorithm="winograd-f4"), "fp32"),
    "fft": (Contract(algorithm="fft"), "fp32"),
    "toward zero": (Contract(rounding="zero"), "fp32"),
    "separate, raw": (Contract(between="storage", variance="raw"), "bf16"),
}
"""A contract, and the format of the tensors that it is declared for."""
TURNS = ("conv_backward_weight", "conv_bn_backward", "avg_pool_forward")
"""Operators beside conv_forward that weak contracts are tried on, by turns."""
TRIED = [(name, tried) for i, name in enumerate(WEAK) for tried in ("conv_forward", TURNS[i % len(TURNS)])]


def verdicts(
    operator: str,
    contract: Contract,
    dtype: str = "fp32",
    change: Callable[..., Any] = lambda found, given: found,
) -> Iterator[Verdict]:
    """Of the right kernel of an operator at level smoke, with its results changed."""
    kernels = registry.load([IMPLS / "numpy_direct"]).implementations["numpy-direct"].kernels
    right = next(one for one in kernels if one.operator == operator and {"nchw", "nn"} & {*one.layouts})
    names = inspect.signature(right.function).parameters

    def function(*arrays: Any, **given: Any) -> Any:
        with np.errstate(all="ignore"):
            return change(right.function(*arrays, **{k: v for k, v in given.items() if k in names}), given)

    one = Implementation("acme", contract=contract)
    one.kernels.append(replace(right, function=function, contract=contract, dtypes=(dtype,)))
    for problem, variants in at_level(PROBLEMS, "smoke"):
        for variant in variants if takes(operator, problem.geometry) else ():
            declared = variant.dtype == dtype and variant.layout in right.layouts and not variant.storage
            if declared and variant.distribution != "behaviour" and variant.suits(operator, problem.geometry):
                yield verify(Trial(one, OPERATORS[operator], problem, variant, 0))


def scaled(factor: float) -> Callable[..., Any]:
    def change(found: Any, given: Any) -> Any:
        several = isinstance(found, tuple)
        return tuple(y * y.dtype.type(factor) for y in found) if several else found * found.dtype.type(factor)

    return change


@pytest.mark.parametrize("operator", ORDINARY)
def test_zeros_are_detected_under_the_weakest_contract(operator: str):
    assert any(verdict.status == "fail" for verdict in verdicts(operator, WEAKEST, change=scaled(0)))


TOO_WEAK = {
    "a tenth": (Contract(splits=10**6, partials="bf16"), 1.1),
    "one percent": (WEAKEST, 1.01),
    "one percent of bf16 sums": (Contract(inputs="bf16", accumulate="bf16"), 1.01),
}


@pytest.mark.parametrize(("contract", "factor"), TOO_WEAK.values(), ids=TOO_WEAK)
def test_a_contract_under_which_nothing_can_be_seen_fails(contract: Contract, factor: float):
    assert any(verdict.status == "fail" for verdict in verdicts("conv_forward", contract, change=scaled(factor)))


@pytest.mark.parametrize(("name", "operator"), TRIED)
def test_right_results_pass_under_a_weak_contract(name: str, operator: str):
    found = {verdict.status for verdict in verdicts(operator, *WEAK[name])}
    assert {"pass"} <= found <= {"pass", "unsupported"}


def test_a_refusal_at_run_time_is_told_from_a_declared_one():
    def refuse(found: Any, given: Any) -> Any:
        if given["stride"][0] == 2:
            raise Unsupported("strides of two")
        return found

    found = [*verdicts("conv_forward", Contract(), change=refuse)]
    assert {verdict.refused for verdict in found if verdict.reason == "strides of two"} == {True}
    assert not any(verdict.refused for verdict in found if verdict.reason != "strides of two")


@pytest.mark.parametrize("values", [np.isnan, lambda y: np.rint(y) != y], ids=["NaN", "fractions"])
def test_a_refusal_of_some_values_fails(values: Callable[[np.ndarray], np.ndarray]):
    def refuse(found: Any, given: Any) -> Any:
        if values(found).any():
            raise Unsupported("this alignment")
        return found

    failed = [one.reason for one in verdicts("conv_forward", Contract(), change=refuse) if one.status == "fail"]
    assert any(reason.startswith("refuses these values") for reason in failed)
