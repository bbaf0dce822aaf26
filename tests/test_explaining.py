"""Whatever goes wrong in explaining a verdict is told in one line, and changes no verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.__main__ import main
from conformance.engine import check, progress, search, summary
from conformance.execution import verify
from conformance.reporting import evidence, github, groups, modules, report, report_command, terminal, training
from conformance.reporting.evidence import RunEvidence
from tests.conftest import USUAL, Project
from tests.kit import source
from tests.report_samples import as_read, failed

pytest_plugins = ["pytester"]

WRONG = "return y * y.dtype.type(2)"
PARTS = {
    "text of a failure": (verify, "told"),
    "calls again": (verify, "differing_calls"),
    "known mistakes": (verify, "diagnose"),
    "mistakes in shapes": (verify, "diagnose_shapes"),
    "evidence": (evidence, "is_wrong"),
    "where": (evidence, "where"),
    "groups": (groups, "_of_implementation"),
    "names": (groups, "named"),
    "why a kernel fails": (report, "_why"),
    "first failure": (progress, "first_failure"),
    "tables": (training, "memory_tables"),
    "modules": (modules, "row"),
    "notes": (terminal, "notes"),
    "whole case": (summary, "_whole"),
    "annotation": (github, "of_group"),
    "report": (report_command, "of_run"),
    "summary of the job": (github.JobSummary, "append"),
}
"""What explains a verdict -> where it is looked up."""


def broken(*_: Any, **__: Any) -> Any:
    return 1 // 0


@pytest.mark.parametrize("part", PARTS)
def test_whatever_explains_a_verdict_may_fail(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], part: str
):
    """The verdicts of a run were lost to a KeyError in what looks for the condition of failures."""
    monkeypatch.setattr(*PARTS[part], broken)
    monkeypatch.setattr(modules, "is_own", lambda _: part == "modules")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    project.kernel("acme", body="return y[..., 1:]" if part == "mistakes in shapes" else WRONG)
    usual = [f"{option}={value}" for option, value in USUAL.items()]
    assert main(["run", "impls/acme.py", "--in-process", "--report=page", *usual]) == 1
    text = "".join(capsys.readouterr())
    (record,) = (record for record in project.records() if record["status"] == "fail")
    assert project.lines()[-1]["kind"] == "footer"
    assert "acme conv_forward fp32: 1 of 1 fail" in text
    assert "reproduce: " in text
    said = ": the explanation failed (ZeroDivisionError at test_explaining.py:"
    assert said in text or said in record["reason"]
    assert "Traceback" not in text


def test_what_decides_where_a_kernel_fails_may_fail():
    records = [as_read(failed(descriptor=text)) for text in ("n1 c4 h7 w7 k8 r3 s3", "n2 c4 h9 w9 k8 r3 s3 u2")]
    told: list[str] = []
    RunEvidence(records, tell=lambda line, _: told.append(line)).decide(records, broken)
    assert [line.partition(" (")[0] for line in told] == [
        "acme conv_forward on 'n1 c4 h7 w7 k8 r3 s3': the explanation failed"
    ]


def test_the_traceback_is_shown_where_it_is_asked_for(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(terminal, "notes", broken)
    project.kernel("acme", body=WRONG)
    assert "\nTraceback (most recent call last):\n" in project.run("--in-process", "-v").text


@pytest.mark.parametrize("part", [(verify, "told"), (verify, "diagnose"), (check, "compare"), (search, "group")])
def test_whatever_explains_a_check_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, caplog: Any, part: tuple[Any, str]
):
    monkeypatch.setattr(*part, broken)
    (tmp_path / "acme.py").write_text(source(body=WRONG))
    assert main(["check", str(tmp_path / "acme.py"), "n1 c2 h4 w4 k2 r3 s3 p1", "--where"]) == 1
    said = f"{''.join(capfd.readouterr())}{caplog.text}"
    assert "fail: conv_forward of acme on 'n1 c2 h4 w4 k2 r3 s3 p1'" in said
    assert ": the explanation failed (ZeroDivisionError at test_explaining.py:" in said
