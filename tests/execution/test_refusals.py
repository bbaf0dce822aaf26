"""Refusals when a kernel is called: by its values they are failures, by all else they are not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conformance.checks import CHECKS, check_behaviour
from conformance.execution.refusals import PATIENCE
from conformance.execution.status import Verdict
from conformance.execution.verify import verify
from conformance.execution.workers import Workers
from tests.conftest import Project
from tests.kit import loaded, trial_of

pytest_plugins = ["pytester"]

PLAIN = "n2 c4 h6 w5 k4 r3 s3"
HEAD = """
import os, random
from pathlib import Path
import numpy as np
from conformance import Implementation, Unsupported
from tests import kernels

acme = Implementation("acme")
calls, poisoned = [], {}
random.seed(1)

@acme.implements("conv_forward", dtypes=("fp32", "bf16"), layouts=("nchw", "nhwc"))
def conv_forward(x, w, bias, *, stride, padding, dilation, groups, layout):
    calls.append(x.shape)
    given = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": layout}
    y = kernels.conv_forward(x, w, bias, **given)
"""
BY_VALUE = {
    "loses NaN, and refuses the geometry for its next forty calls": """
    left = poisoned.get(x.shape, 0)
    if left or np.isnan(y).any():
        poisoned[x.shape] = left - 1 if left else 40
        raise Unsupported("this alignment")
    return y
""",
    "last element is wrong, and refuses wherever that shows": """
    wrong = y.copy()
    wrong[-1, -1, -1, -1] -= x[-1, -1, -1, -1] * w[-1, -1, -1, -1]
    if (wrong != y).any():
        raise Unsupported("this alignment")
    return wrong
""",
    "one per cent off, and refuses wherever that shows": """
    if y.any():
        raise Unsupported("this alignment")
    return y * np.float32(1.01)
""",
    "refuses large values": """
    if abs(x).max() > 50 or np.isnan(x).any():
        raise Unsupported("this alignment")
    return y
""",
    "refuses all from the first NaN on": """
    if poisoned or np.isnan(y).any():
        poisoned[0] = True
        raise Unsupported("this alignment")
    return y
""",
    "refuses after twenty calls": """
    if len(calls) > 20:
        raise Unsupported("this alignment")
    return y
""",
    "refuses one call of twenty": """
    if random.random() < 0.05:
        raise Unsupported("this alignment")
    return y
""",
    "refuses all after a refusal of strides": """
    if stride != (1, 1) or poisoned:
        poisoned[0] = True
        raise Unsupported("strides")
    return y
""",
}
LEGITIMATE = {
    "dilation": "if dilation != (1, 1): raise Unsupported('dilation')",
    "sizes": "if x.nbytes + y.nbytes > 2000: raise Unsupported('needs more memory than the device has')",
    "dtype": "if x.dtype != np.float32: raise Unsupported('bf16')",
    "layout": "if layout == 'nhwc': raise Unsupported('channels last')",
    "storage": "if not x.flags.c_contiguous: raise Unsupported('views')",
}


def run(one: Any) -> Iterator[Verdict]:
    """Yield the verdicts of all distributions on a few problems."""
    for problem in (PLAIN, "n1 c3 h7 w7 k4 r3 s3 u2", "n2 c4 h8 w8 k5 r1 s1"):
        for distribution in ("integer", "fixed", "impulse", "nonfinite", "large", "natural", "wide"):
            yield verify(trial_of(one, problem, distribution=distribution))


@pytest.mark.parametrize("body", BY_VALUE.values(), ids=BY_VALUE)
def test_a_kernel_that_refuses_by_value_fails(body: str, workers: Workers, tmp_path: Path):
    """It passed 108 of 108, with one line `refused when called`: the same process was asked again, which remembers."""
    found = [*run(loaded(workers, tmp_path, HEAD + body))]
    failed = [verdict.reason for verdict in found if verdict.status == "fail"]
    assert failed
    assert all("refuses" in reason for reason in failed)


def test_a_second_process_does_not_remember_what_was_refused(workers: Workers, tmp_path: Path):
    one = loaded(workers, tmp_path, HEAD + BY_VALUE["loses NaN, and refuses the geometry for its next forty calls"])
    assert verify(trial_of(one, "n2 c4 h8 w8 k5 r1 s1")).status == "pass"
    verdict = verify(trial_of(one, PLAIN, distribution="nonfinite"))
    assert verdict.reason == (
        "refuses these values, and computes others of the problem: this alignment\ncomputed: distribution integer"
    )


def test_a_refusal_does_not_hide_the_next(workers: Workers, tmp_path: Path):
    one = loaded(workers, tmp_path, HEAD + BY_VALUE["refuses all after a refusal of strides"])
    found = [verify(trial_of(one, f"n2 c4 h8 w8 k5 r1 s1{how}")).status for how in ("", " u2", " p1")]
    assert found == ["pass", "unsupported", "fail"]


@pytest.mark.parametrize("body", LEGITIMATE.values(), ids=LEGITIMATE)
def test_a_kernel_that_refuses_by_anything_else_does_not(body: str, workers: Workers, tmp_path: Path):
    one = loaded(workers, tmp_path, f"{HEAD}    {body}\n    return y\n")
    cases = [
        trial_of(one, problem, distribution=distribution, dtype=dtype, layout=layout, storage=storage)
        for problem in (PLAIN, f"{PLAIN} d2", "n2 c8 h20 w20 k5 r3 s3")
        for distribution in ("integer", "nonfinite")
        for dtype, layout, storage in (("fp32", "nchw", ""), ("bf16", "nhwc", ""), ("fp32", "nchw", "x:crop"))
    ]
    found = [verify(case) for case in cases]
    assert {verdict.status for verdict in found} == {"pass", "unsupported"}
    assert all(verdict.refused for verdict in found if verdict.status == "unsupported")
    assert len(workers._begun) == 2, "one process besides that of the cases"


def test_another_refusal_of_the_same_costs_nothing(workers: Workers, tmp_path: Path):
    one = loaded(workers, tmp_path, HEAD + "    raise Unsupported('never')\n")
    verify(trial_of(one, PLAIN))
    (other,) = workers._others.values()
    asked = other._question
    for distribution in ("integer", "nonfinite", "impulse"):
        assert verify(trial_of(one, PLAIN, distribution=distribution)).status == "unsupported"
    assert workers._others == {next(iter(workers._processes)): other}
    assert other._question == asked


NOTHING = [f"n1 c1 h{size} w4 k1 r1 s1" for size in range(3, 3 + PATIENCE)]


def test_a_kernel_that_refuses_all_is_asked_little(workers: Workers, tmp_path: Path):
    """It was asked for fifteen sets of values of each problem, to the end."""
    log = tmp_path / "calls"
    body = f"    with open({str(log)!r}, 'a') as file: file.write('.')\n    raise Unsupported('never')\n"
    one, calls = loaded(workers, tmp_path, HEAD + body), [0]
    for problem in (*NOTHING, PLAIN, f"{PLAIN} u2"):
        assert verify(trial_of(one, problem)).status == "unsupported"
        calls.append(log.stat().st_size)
    counts = [now - before for before, now in pairwise(calls)]
    assert min(counts[:PATIENCE]) > 10
    assert counts[PATIENCE:] == [2, 2], "itself, and zeros"


@pytest.mark.parametrize(("computes", "status"), [("k4", "fail"), ("never", "unsupported")])
def test_a_kernel_that_computes_something_is_asked_for_all_values_again(
    computes: str, status: str, workers: Workers, tmp_path: Path
):
    """Large values are refused, which zeros and those of other seeds are not."""
    body = (
        "    if y.shape[1] != 4 or not (y.any() and abs(x).max() < 1e3) or {!r} == 'never': raise Unsupported('it')\n"
    )
    one = loaded(workers, tmp_path, f"{HEAD}{body.format(computes)}    return y\n")
    for problem in NOTHING:
        verify(trial_of(one, problem))
    assert verify(trial_of(one, PLAIN, distribution="large")).status == "unsupported", "zeros are refused too"
    verify(trial_of(one, PLAIN, distribution="integer"))
    assert verify(trial_of(one, PLAIN, distribution="large")).status == status


def test_a_refusal_in_the_middle_of_a_check_fails(workers: Workers, tmp_path: Path):
    """It counted as a check that the kernel does not support."""
    one = loaded(workers, tmp_path, HEAD + BY_VALUE["refuses after twenty calls"])
    verdict = check_behaviour(trial_of(one, PLAIN, distribution="behaviour"), CHECKS["calls_in_a_row_are_right"].check)
    assert (verdict.status, "computes the same one another time" in verdict.reason) == ("fail", True)


UNSEEN = """
import os
from pathlib import Path
FIRST = Path({marker!r})
FIRST.touch()
with FIRST.open("a") as file:
    file.write("x")
OTHER = FIRST.stat().st_size > 1
"""


@pytest.mark.parametrize("refused", ["integer", "nonfinite"], ids=["first", "last"])
def test_what_the_run_has_seen_is_not_refused(refused: str, project: Project):
    """A kernel that knows in which process it is asked; the order of its cases says nothing."""
    finite = "np.isfinite(y).all()" if refused == "integer" else "not np.isfinite(y).all()"
    body = f"if OTHER or {finite}: raise Unsupported('this alignment')\n    return y"
    project.kernel(body=body, head="import numpy as np\n" + UNSEEN.format(marker=str(project.folder / "first")))
    outcome = project.run(
        "--problem", PLAIN, "--distribution=integer", "--distribution=nonfinite", "--operator=conv_forward"
    )
    assert (outcome.exit, outcome.statuses["fail"], outcome.statuses["error"]) == (1, 1, 0)
    (reason,) = (record["reason"] for record in outcome.records if record["status"] == "fail")
    if refused == "integer":  # the first call of all
        assert reason.endswith("refused: distribution integer; computed: distribution nonfinite")
        assert "computes others of the problem" in outcome.text
    else:
        assert reason.startswith("refuses a call, and in a new process even the first one that it had computed")


def test_where_there_can_be_no_second_process_the_first_is_asked(workers: Workers, tmp_path: Path):
    """A process may have a device for itself."""
    lock = tmp_path / "lock"
    body = BY_VALUE["refuses large values"] + f"\nPath({str(lock)!r}).mkdir()\n"
    one = loaded(workers, tmp_path, HEAD + body)
    verdict = verify(trial_of(one, PLAIN, distribution="large"))
    assert verdict.reason.startswith(
        "refuses these values, and computes others of the problem: this alignment\ncomputed: "
    )
    assert verify(trial_of(one, PLAIN)).status == "pass"
    assert len(workers._processes) == 1
