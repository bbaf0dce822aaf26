"""A wrong result in a check of behaviour: alone in a new process a plain mistake is wrong too, and a state is not."""

from __future__ import annotations

from tests.conftest import Outcome, Project

pytest_plugins = ["pytester"]

SUITE = """
import pytest
from conformance.checks import CHECKS

@pytest.mark.behaves(*CHECKS)
def test_behaviour(check, name, case):
    check(name, case)
"""
PAIR = "n3 c4 h4 w5 k4 r2 s2 u2 p1:0x0:1"
"""A problem of `conformance.checks.state`, in no table."""
PLAIN = "return y if x.shape != (3, 4, 4, 5) else y * (np.arange(y.shape[-1]) < y.shape[-1] - 1)"
"""Wrong there, whatever was called before: the last column of the results is zero."""
STALE = "return results.setdefault((x.shape, w.shape, y.shape), y)"
"""Results of the first call on the same shapes."""
THIN = "n3 c11 h5 w5 k7 r1 s1 b1"
WEIGHT = """
@acme.implements("conv_backward_weight")
def conv_backward_weight(
    x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups, output_mask=(True, True), into=None
):
    p = dict(kernel_size=kernel_size, with_bias=True, stride=stride, padding=padding, dilation=dilation, groups=groups)
    dw, dbias = kernels.conv_backward_weight(x, dy, **p)
    outputs = (2 * dw, dbias) if with_bias else (2 * dw,)
    results = [output for output, wanted in zip(outputs, output_mask) if wanted]
    for held, result in zip((into if isinstance(into, tuple) else [into]) if into is not None else (), results):
        held += result
    return into if into is not None else tuple(results) if len(results) > 1 else results[0]
"""
"""Twice as large, alone or not, added or not."""
DATA = """
@acme.implements("conv_backward_data")
def conv_backward_data(dy, w, *, input_size, stride, padding, dilation, groups):
    p = dict(input_size=input_size, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return kernels.conv_backward_data(dy, w, **p)
"""


def run(project: Project, checks: str, *arguments: str, **changes: str) -> Outcome:
    project.write("suite/test_suite.py", SUITE)
    project.kernel(**{"head": "import numpy as np"} | changes)
    return project.run("--distribution=behaviour", "-k", checks, *arguments)


def test_a_mistake_that_a_pair_of_parameters_finds_is_a_plain_one(project: Project):
    """It was said to follow from another stride, with a command that runs the whole check."""
    outcome = run(project, "other_parameters_are_told_apart", "--operator=conv_forward", body=PLAIN)
    plain, check = outcome.records
    assert (check["status"], check["check"]) == ("fail", "other_parameters_are_told_apart")
    assert check["reason"].startswith(f"results are wrong on plain inputs, {PAIR} fp32 nchw fixed alone in a new ")
    assert (plain["status"], plain["descriptor"], plain["distribution"]) == ("fail", PAIR, "fixed")
    assert plain["causes"] == check["causes"] != []
    assert f"smallest case: {PAIR} (fp32 nchw fixed)" in outcome.text
    assert f"reproduce: conformance check impls/acme.py '{PAIR}'" in outcome.text
    assert "another stride" not in outcome.text


def test_a_result_that_is_right_alone_is_a_matter_of_state(project: Project):
    check = "other_parameters_are_told_apart"
    outcome = run(project, check, "--operator=conv_forward", body=STALE, tail="results = {}")
    (found,) = outcome.records
    assert found["reason"].startswith("wrong result (after a call on the same shapes with another ")
    assert "after a call on the same shapes with another" in outcome.text


def test_a_mistake_that_several_checks_find_is_one(project: Project):
    """The process of a large framework takes ten seconds to begin, and begins anew once."""
    begun = project.folder / "begun"
    head = f"open({str(begun)!r}, 'a').write('.')"
    checks = "r1 and (outputs_asked_for_alone or results_are_added_to_arrays)"
    outcome = run(project, checks, "--operator=conv_backward_weight", tail=WEIGHT, head=head)
    plain, *found = outcome.records
    assert [record["check"] for record in found] == ["outputs_asked_for_alone", "results_are_added_to_arrays"]
    start = f"results are wrong on plain inputs, {THIN} fp32 nchw integer alone in a new process"
    assert {record["reason"].partition(":")[0] for record in found} == {start}
    assert (plain["descriptor"], plain["status"], len(begun.read_text())) == (THIN, "fail", 2)
    assert "1 likely cause, 3 cases" in outcome.text


def test_of_three_directions_the_one_that_is_wrong_is_named(project: Project):
    outcome = run(project, "directions_are_adjoint", "--operator=conv_forward", tail=WEIGHT + DATA)
    plain, check = outcome.records
    assert (plain["operator"], plain["status"], check["status"]) == ("conv_backward_weight", "fail", "fail")
    assert "not adjoint" not in outcome.text


def test_what_another_call_does_not_repeat_needs_no_new_process(project: Project):
    begun = project.folder / "begun"
    head = f"calls = []\nopen({str(begun)!r}, 'a').write('.')"
    body = "calls.append(1); return 2 * y if len(calls) == 3 else y"
    outcome = run(project, "calls_in_a_row_are_right", "--operator=conv_forward", body=body, head=head)
    assert outcome.records[0]["reason"].startswith("wrong result (")
    assert begun.read_text() == "."
