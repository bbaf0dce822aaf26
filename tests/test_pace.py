"""How long a run will take is said before its first test."""

from __future__ import annotations

import re

import pytest

from conformance.implementations import devices
from conformance.plugin.progress import by_reports
from tests.conftest import Project

pytest_plugins = ["pytester"]


def test_the_pace_of_an_earlier_run_is_that_of_this_one(project: Project):
    project.kernel("acme")
    earlier = project.run()
    (record,) = earlier.records
    assert "estimate" not in earlier.text
    outcome = project.run("--pace=records.jsonl", "--records=again.jsonl", "--dtype=fp32", "--dtype=bf16")
    (said,) = re.findall(r"estimate: (.*)", outcome.text)
    seconds = f"{record['seconds']['total']:.2g} s each"
    # what is not declared is counted and is no test
    assert said.startswith(f"1 test, {seconds}, as the 1 case of records.jsonl took on average: ")
    assert outcome.text.index("estimate") < outcome.text.index("1 passed,")  # the line at the end


def test_a_run_in_which_nothing_ran_gives_no_estimate(project: Project):
    project.kernel("acme", construct=", device='trn3'")
    project.run("-m", "trn3")
    project.kernel("acme")
    outcome = project.run("--pace=records.jsonl", "--records=again.jsonl")
    assert "estimate: none, because records.jsonl has no case that ran" in outcome.text


@pytest.mark.parametrize("content", [None, "{}\n"])
def test_records_that_cannot_be_read_are_refused(project: Project, content: str | None):
    project.kernel("acme")
    if content is not None:
        project.write("earlier.jsonl", content)
    outcome = project.run("--pace=earlier.jsonl")
    assert outcome.exit == 4
    assert "earlier.jsonl: cannot be read" in outcome.text


def test_on_a_neuron_device_compiling_is_the_pace(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(devices.DEVICES, "trn1", lambda: None)
    devices.missing.cache_clear()
    try:
        project.kernel("acme", construct=", device='trn1', compiles_per_shape=True")
        outcome = project.run("-m", "trn1", "--distribution=integer", "--distribution=fixed", "--seed=0")
        assert outcome.statuses == {"pass": 2}
        assert by_reports(2, 1) in outcome.text  # both of one program
        assert "estimate" not in project.run("-m", "cpu").text
    finally:
        devices.missing.cache_clear()
    assert by_reports(600, 60).startswith(
        "estimate: 600 tests need 60 programs, 2 to 60 s each, as users report: 2 min 0 s to 1 h 0 min of compiling"
    )
