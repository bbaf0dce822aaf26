"""Known mistakes planted on a correct fp32 kernel: each is found, and the failure says what is wrong."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from conformance.execution.case import Case
from conformance.execution.status import Verdict
from conformance.execution.verify import verify
from conformance.implementations.implementation import Implementation
from conformance.judge import Contract
from conformance.operators import FAMILIES, OPERATORS
from conformance.problems import Variant, typed
from conformance.problems.table import applies
from tests import kernels

SMALL = "n2 c8 h9 w9 k16 r3 s3 p1 b1"
MIDDLE = "n2 c32 h12 w10 k16 r3 s3 u2 p1 b1"
GROUPED = "n2 c12 h10 w10 k8 r3 s3 p1 g4 b1"
REMAINDER = "n2 c4 h12 w13 k6 r3 s3 u2"

OUT = r"^\w+: [\d,]+ of [\d,]+ elements mismatched .*\nworst \w+\[[\d, ]+\] = .*, expected (nan|.*, error .*, limit )"

Function = Callable[..., Any]


def verdict_on(
    function: Function, operator: str, problem: str, distribution: str, contract: Contract | None = None
) -> Verdict:
    implementation = Implementation("planted", contract=contract or Contract())
    implementation.implements(operator)(function)
    return verify(
        Case(implementation, OPERATORS[operator], typed(problem), Variant("fp32", "nchw", distribution), seed=3)
    )


@dataclass(frozen=True)
class Defect:
    """A mistake, where it is made, the distributions that must see it, and what the failure must say."""

    operator: str
    plant: Callable[[Function], Function]
    distributions: str
    says: str
    problems: tuple[str, ...] = (SMALL, MIDDLE)


def before(change: Function) -> Callable[[Function], Function]:
    """The kernel on changed inputs."""
    return lambda kernel: functools.wraps(kernel)(lambda *inputs, **given: kernel(*change(*inputs), **given))


def after(change: Function) -> Callable[[Function], Function]:
    """A changed result of the kernel."""
    return lambda kernel: functools.wraps(kernel)(lambda *inputs, **given: change(kernel(*inputs, **given)))


def tf32(array: np.ndarray) -> np.ndarray:
    """Rounded to the 11 significant bits of TF32."""
    mantissa, exponent = np.frexp(array)
    rounded: np.ndarray = np.ldexp(np.round(mantissa * 2**11) / np.float32(2**11), exponent)
    return rounded


def interleaved(w: np.ndarray) -> np.ndarray:
    """Output channel k taken for one of group k % 4 instead of k // (K/4)."""
    return w.reshape(4, -1, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)


def with_value(index: Any, change: Callable[[Any], Any]) -> Function:
    """A result in which the elements at `index` are replaced."""

    def changed(result: np.ndarray) -> np.ndarray:
        result[index] = change(result[index])
        return result

    return changed


DEFECTS = {
    "flipped kernel": Defect(
        "conv_forward", before(lambda x, w, b: (x, w[:, :, ::-1, ::-1], b)), "integer impulse fixed wide", OUT
    ),
    "one element off by 0.4%": Defect(
        "conv_forward",
        after(with_value((1, 3, 4, 2), lambda y: y * np.float32(1.004))),
        "integer fixed",
        r"y: 1 of .*\nworst y\[1, 3, 4, 2\] = (.*\n)+error locations: n = 1 \(last\), k = 3, p = 4, q = 2",
    ),
    "TF32 inputs": Defect("conv_forward", before(lambda x, w, b: (tf32(x), tf32(w), b)), "fixed", "inferred.*: .*tf32"),
    "groups interleaved": Defect(
        "conv_forward",
        before(lambda x, w, b: (x, interleaved(w), b)),
        "integer fixed",
        r"error locations: k 1\.\.6 of 0\.\.7",
        (GROUPED,),
    ),
    "tail channels dropped": Defect(
        "conv_forward",
        after(with_value(np.s_[:, 13:], np.zeros_like)),
        "integer special fixed",
        r"error locations: k 13\.\.\d+ of 0\.\.\d+",
    ),
    "remainder of dx unwritten": Defect(
        "conv_backward_data",
        after(with_value(np.s_[:, :, -1], lambda row: row + 1)),
        "integer impulse fixed",
        r"error locations: h = 11 \(last\)",
        (REMAINDER,),
    ),
    "batch not summed": Defect(
        "conv_backward_weight", before(lambda x, dy: (x[-1:], dy[-1:])), "integer special fixed", OUT
    ),
    "dbias of one image": Defect(
        "conv_backward_weight", after(lambda result: (result[0], result[1] / 2)), "integer fixed", "^dbias: "
    ),
}

TRIALS = [
    pytest.param(defect, problem, id=f"{name}-{problem.replace(' ', '_')}")
    for name, defect in DEFECTS.items()
    for problem in defect.problems
]


@pytest.mark.parametrize(("defect", "problem"), TRIALS)
def test_defect_is_found_and_described(defect: Defect, problem: str):
    planted = defect.plant(getattr(kernels, defect.operator))
    for distribution in defect.distributions.split():
        verdict = verdict_on(planted, defect.operator, problem, distribution)
        assert verdict.status == "fail", distribution
        assert re.search(defect.says, verdict.reason), f"{distribution}: {verdict.reason}"


FP32_DISTRIBUTIONS = tuple(name for name in FAMILIES["conv"].distributions if applies(name, "fp32"))


def test_rounding_that_is_declared_passes():
    planted = DEFECTS["TF32 inputs"].plant(kernels.conv_forward)
    for distribution in FP32_DISTRIBUTIONS:
        verdict = verdict_on(planted, "conv_forward", MIDDLE, distribution, Contract(inputs="tf32"))
        # with fewer bits, the smallest number is larger
        assert verdict.status == ("unsupported" if distribution == "subnormal" else "pass"), verdict.reason


CONTRACTS = {
    "default": (Contract(), ""),
    "bf16": (Contract(inputs="bf16", accumulate="bf16", rounding="zero"), "range subnormal small"),
    "split": (Contract(splits=64, partials="bf16", subnormals="flushed"), "range subnormal small"),
    "winograd": (Contract(algorithm="winograd-f4"), "special wide nonfinite range subnormal mixed large small"),
    "fft": (Contract(algorithm="fft"), "special wide nonfinite range subnormal mixed large small"),
}
"""Contracts, and the distributions on which each has no one result."""


@pytest.mark.parametrize(("contract", "exempt"), CONTRACTS.values(), ids=CONTRACTS)
def test_no_contract_covers_a_constant(contract: Contract, exempt: str):
    planted = after(lambda y: np.full_like(y, 7))(kernels.conv_forward)
    for distribution in FP32_DISTRIBUTIONS:
        status = verdict_on(planted, "conv_forward", SMALL, distribution, contract).status
        assert status == ("unsupported" if distribution in exempt.split() else "fail"), distribution
