"""A process whose arithmetic has changed pronounces no more verdicts, and says which ones it should not have."""

from __future__ import annotations

import platform

import pytest

from tests.conftest import Project
from tests.formats.test_floating_point import GLIBC, ROUNDING

pytest_plugins = ["pytester"]

PARALLEL = ("-p", "xdist", "-n", "2")
SUITE = """
import ctypes
import numpy as np
import pytest
from conformance.operators.conv.operators import ConvForward

@pytest.mark.verifies("conv_forward")
def test_conv_forward(verify, case):
    verify(case)
    if case.implementation.name == "second":
        {change}
"""
ROUND_UP = f"ctypes.CDLL('libm.so.6').fesetround({ROUNDING['results are rounded upwards'].get(platform.machine())})"
BREAK = """reference = ConvForward.reference
        ConvForward.reference = lambda *given: {name: 0 * y for name, y in reference(*given).items()}"""
"""Where the judge is at fault; kernels stand for a kernel that reaches it."""


@pytest.fixture
def names(project: Project) -> tuple[str, ...]:
    for name in ("first", "second", "third"):
        project.kernel(name)
    return "first", "second", "third"


@GLIBC
@pytest.mark.parametrize(("workers", "seed"), [((), "0"), (PARALLEL, "5")], ids=["alone", "workers"])
def test_a_changed_mode_ends_the_run(project: Project, names: tuple[str, ...], workers: tuple[str, ...], seed: str):
    project.write("suite/test_suite.py", SUITE.format(change=ROUND_UP))
    outcome = project.pytest(*workers, f"--seed={seed}", "--workers=4", subprocess=True)
    assert outcome.exit == 3
    assert "results are rounded upwards (seen in suite/test_suite.py::test_conv_forward[second-" in outcome.text
    assert "Invalid: 0 verdicts since the last good check" in outcome.text
    assert [record["implementation"] for record in outcome.records] == ["first"], "only what was verified before"


@pytest.mark.parametrize(
    ("workers", "change"), [((), "ConvForward.reference = None"), (PARALLEL, BREAK)], ids=["raises", "other"]
)
def test_wrong_references_invalidate_what_came_since_they_were_right(
    project: Project, names: tuple[str, ...], workers: tuple[str, ...], change: str
):
    project.write("suite/test_suite.py", SUITE.format(change=change))
    outcome = project.pytest(*workers, "--seed=5", "--workers=4", subprocess=True)
    assert outcome.exit == 3
    assert "known references are not reproduced: " in outcome.text
    assert "Invalid: 3 verdicts since the last good check" in outcome.text
    assert outcome.records == [], "what is invalid is taken out"


def test_references_are_computed_anew_now_and_then(project: Project, names: tuple[str, ...]):
    now = "; import conformance.engine.arithmetic; conformance.engine.arithmetic.SECONDS = 0"
    project.write("suite/test_suite.py", SUITE.format(change=BREAK + now))
    outcome = project.pytest("--seed=5", subprocess=True)
    assert outcome.exit == project.lines()[-1]["exit_status"] == 3
    assert "(seen in suite/test_suite.py::test_conv_forward[third-" in outcome.text
    assert "Invalid: 2 verdicts since the last good check" in outcome.text
    assert outcome.records == [], "what is invalid is taken out"
