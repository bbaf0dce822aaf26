"""What a waiver may not excuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance import Implementation
from conformance.checks import CHECKS, sample
from conformance.checks.adjoint import directions_are_adjoint
from conformance.checks.behaviour import results_are_plain
from conformance.checks.memory import training_holds_what_autograd_shows
from conformance.execution import verify
from conformance.execution.trial import Trial
from conformance.implementations.bridges.torch import torch_arrays
from conformance.inputs.golden import GoldenError
from tests import cheaters
from tests.conftest import Project
from tests.kit import trial_of

pytest_plugins = ["pytester"]


def waived_case() -> Trial:
    """A kernel that is wrong everywhere, and says so."""
    case = trial_of(lambda x, w, bias: np.zeros((1, 1, 1, 1), np.float32), "n1 c1 h1 w1 k1 r1 s1")
    case.implementation.waive("conv_forward", reason="known", url="https://example.org/1")
    return case


@pytest.mark.parametrize(("distribution", "status"), [("fixed", "fail"), ("behaviour", "waived")])
def test_what_a_call_does_besides_is_waived_as_behaviour_alone(distribution: str, status: str):
    case = trial_of(cheaters.spoils_input())
    case.implementation.waive("conv_forward", reason="r", url="u", distributions=(distribution,))
    assert verify.verify(case).status == status


def test_a_waiver_of_a_case_that_passes_is_named_with_its_place():
    case = trial_of(lambda x, w, bias: x * w, "n1 c1 h1 w1 k1 r1 s1")
    case.implementation.waive("conv_forward", reason="known", url="https://example.org/1")
    verdict = verify.verify(replace(case, problem=replace(case.problem, origin="table")))
    assert (verdict.status, f" narrow its when=, {__file__}:" in verdict.reason) == ("fail", True), verdict.reason


def spoiled(expected):
    raise GoldenError("spoiled")


def test_a_golden_that_does_not_hold_is_not_waived(monkeypatch: pytest.MonkeyPatch):
    assert verify.verify(waived_case()).status == "waived"
    monkeypatch.setattr(verify, "check", spoiled)
    assert verify.verify(waived_case()).status == "error"


def test_a_golden_that_does_not_hold_is_not_waived_in_a_check_of_behaviour(monkeypatch: pytest.MonkeyPatch):
    assert sample.check_behaviour(waived_case(), results_are_plain).status == "waived"
    monkeypatch.setattr(sample, "check_golden", spoiled)
    assert sample.check_behaviour(waived_case(), results_are_plain).status == "error"


def raises(*arrays, **parameters):
    raise RuntimeError("no")


def sevens(x, w, bias, *, padding):
    height, width = (size + sum(sides) for size, sides in zip(x.shape[2:], padding, strict=True))
    return np.full((len(x), len(w), height - w.shape[2] + 1, width - w.shape[3] + 1), 7, x.dtype)


@pytest.mark.parametrize("kernel", [raises, sevens])
@pytest.mark.parametrize("name", [name for name, check in CHECKS.items() if "conv_forward" in check.operators])
def test_a_check_that_judged_no_call_is_no_pass(name: str, kernel: Callable[..., Any]):
    """A kernel that always raises, with everything waived, ended with 0: 3 of 24 pass."""
    case = trial_of(kernel, "n2 c4 h6 w5 k4 r3 s3 p1", distribution="behaviour")
    case.implementation.waive("conv_forward", reason="r", url="u")
    verdict = sample.check_behaviour(case, CHECKS[name].check, of_right_kernels=CHECKS[name].of_right_kernels)
    assert verdict.status in ("waived", "unsupported")


def test_zeros_are_adjoint_and_say_nothing():
    one = Implementation("zeros")
    one.implements("conv_forward")(lambda x, w, bias: np.zeros((len(x), len(w), *x.shape[2:]), x.dtype))
    one.implements("conv_backward_data")(lambda dy, w: np.zeros((len(dy), w.shape[1], *dy.shape[2:]), dy.dtype))
    one.implements("conv_backward_weight")(lambda x, dy: (np.zeros((dy.shape[1], x.shape[1], 1, 1), x.dtype), None)[:1])
    verdict = sample.check_behaviour(trial_of(one, "n2 c4 h6 w5 k4 r1 s1"), directions_are_adjoint)
    assert (verdict.status, verdict.reason) == ("unsupported", sample.NOTHING_JUDGED)


def test_a_training_step_of_a_wrong_variant_is_no_pass():
    torch = pytest.importorskip("torch")
    one = Implementation("acme", arrays=torch_arrays("cpu"))

    @one.differentiates("conv_bn_forward", saves=1)
    @one.implements("conv_bn_forward")
    def wrong(x, w, gamma, beta, running_mean, running_var, *, padding, eps):
        y = torch.nn.functional.conv2d(x, w, padding=[before for before, _ in padding])
        mean, variance = y.mean((0, 2, 3)), y.var((0, 2, 3), correction=0)
        y = 1.01 * torch.nn.functional.batch_norm(y, None, None, None, None, training=True, eps=eps)
        return y, mean, variance, mean, variance

    one.waive("conv_bn_forward", reason="r", url="u")
    case = trial_of(one, "bn n8 c32 h26 w26 k64 r3 s3 affine0 run0 eps3", "conv_bn_forward")
    assert sample.check_behaviour(case, training_holds_what_autograd_shows).status == "waived"


def test_an_empty_batch_alone_verifies_nothing(project: Project):
    """Everything else was waived, and 4 of 193 passed: those that have no element to compare."""
    waiver = "acme.waive('conv_forward', reason='r', url='u', when=lambda p: p.n)"
    project.kernel(body="return y + 1", tail=waiver)
    outcome = project.run("--problem", "n0 c4 h6 w5 k4 r3 s3", "--distribution=fixed")
    assert (outcome.exit, outcome.statuses) == (5, {"pass": 1})


def test_invalid_arguments_alone_verify_nothing(project: Project):
    project.kernel()
    project.write("suite/test_behaviour.py", BEHAVIOUR)
    outcome = project.pytest("--distribution=behaviour")
    assert (outcome.exit, outcome.statuses["pass"]) == (5, 1)


BEHAVIOUR = """
import pytest

@pytest.mark.behaves("invalid_arguments")
def test_behaviour(check, name, case):
    check(name, case)
"""
