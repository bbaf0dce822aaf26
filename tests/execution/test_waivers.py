"""What a waiver may not excuse."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.checks import sample
from conformance.checks.behaviour import results_are_plain
from conformance.execution import verify
from conformance.execution.case import Case
from conformance.inputs.golden import GoldenError
from tests import cheaters
from tests.conftest import Project
from tests.kit import case_of

pytest_plugins = ["pytester"]


def waived_case() -> Case:
    """A kernel that is wrong everywhere, and says so."""
    case = case_of(lambda x, w, bias: np.zeros((1, 1, 1, 1), np.float32), "n1 c1 h1 w1 k1 r1 s1")
    case.implementation.waive("conv_forward", reason="known", url="https://example.org/1")
    return case


@pytest.mark.parametrize(("distribution", "status"), [("fixed", "fail"), ("behaviour", "waived")])
def test_what_a_call_does_besides_is_waived_as_behaviour_alone(distribution: str, status: str):
    case = case_of(cheaters.spoils_input())
    case.implementation.waive("conv_forward", reason="r", url="u", distributions=(distribution,))
    assert verify.verify(case).status == status


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


def test_a_kernel_that_refuses_everything_when_it_is_called_verifies_nothing(project: Project):
    """Invalid arguments are refused too, which is no verdict about any result."""
    project.kernel(body="raise Unsupported('never')")
    project.write("suite/test_behaviour.py", BEHAVIOUR)
    outcome = project.run("--distribution=integer", "--distribution=behaviour")
    assert (outcome.exit, set(outcome.statuses)) == (5, {"unsupported"})


def test_invalid_arguments_alone_verify_nothing(project: Project):
    project.kernel()
    project.write("suite/test_behaviour.py", BEHAVIOUR)
    outcome = project.run("--distribution=behaviour")
    assert (outcome.exit, outcome.statuses["pass"]) == (5, 1)


BEHAVIOUR = """
import pytest

@pytest.mark.behaves("invalid_arguments")
def test_behaviour(check, name, case):
    check(name, case)
"""
