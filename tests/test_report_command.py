"""`conformance report` and `pytest --report`: what they write, say and return."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conformance.__main__ import main
from conformance.reporting import report_command
from tests.conftest import Project, absence
from tests.report_samples import FOOTER, HEADER, Record, absent, failed, sample, sealed, written

pytest_plugins = ["pytester"]

FILES = {"index.html", "summary.md"}


@pytest.fixture(autouse=True)
def _needed() -> None:
    if lacking := absence(report_command.require):
        pytest.skip(lacking)


def test_a_report_of_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first = written(tmp_path / "a.jsonl", [sample()])
    second = written(tmp_path / "b.jsonl", [failed(problem="b")])
    out = tmp_path / "deep" / "report"
    assert main(["report", str(first), str(second), "-o", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == FILES
    assert capsys.readouterr().out == f"{out / 'index.html'}\n"


def test_lines_left_out_are_said_and_the_status_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "cut.jsonl"
    path.write_bytes(sealed([HEADER, sample(), sample(problem="c")]) + json.dumps(sample(problem="b"))[:99].encode())
    assert main(["report", str(path), "-o", str(tmp_path / "out")]) == 1
    unfinished, cut = capsys.readouterr().err.splitlines()
    run = "the run of 2026-05-04T03:02:01+00:00"
    assert unfinished == f"report: cut.jsonl: {run} was cut off or interrupted; give its command --resume"
    last = "line 4 (the last, without a line end)"
    assert cut == f"report: cut.jsonl, {last}: is cut off: was its run interrupted?; left out"
    page = (tmp_path / "out" / "index.html").read_text()
    assert f"cut.jsonl, {last}: is cut off" in page
    assert "2 defects in the files" in page
    assert ">acme conv_forward fp32: 2 of 2 pass, but 2 defects in the files<" in page


def test_what_was_changed_is_not_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = written(tmp_path / "a.jsonl", [sample(), failed(problem="b")])
    path.write_text(path.read_text().replace('"fail"', '"pass"'))
    assert main(["report", str(path), "-o", str(tmp_path / "out")]) == 1
    assert "report: a.jsonl, lines 1 to 4: are not what the run of 2026" in capsys.readouterr().err
    assert "Nothing was verified." in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.parametrize(
    ("records", "footer", "status", "said"),
    [
        ([sample()], {}, 0, ""),
        ([sample(), failed(problem="b")], {"exit_status": 1, "cases": {"pass": 1, "fail": 1}}, 0, ""),
        ([absent()], {"exit_status": 5}, 0, ""),
        ([sample()], {"exit_status": 1}, 1, "ended with 1: a failure, an error, or nothing verified on a device that"),
        ([sample()], {"exit_status": 5, "cases": {"pass": 1}}, 1, "ended with 5: nothing was verified, or nothing of"),
        ([sample()], {"exit_status": 3}, 1, "a.jsonl: the run of 2026-05-04T03:02:01+00:00 ended with 3: an error"),
        ([sample()], {"exit_status": 99}, 1, "ended with 99"),
    ],
)
def test_a_report_that_is_written_ends_well_but_of_a_run_that_went_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], records: list[Record], footer: Record, status: int, said: str
):
    path = tmp_path / "a.jsonl"
    path.write_bytes(sealed([HEADER, *records, FOOTER | footer]))
    assert main(["report", str(path), "-o", str(tmp_path / "out")]) == status
    assert said in (told := capsys.readouterr().err)
    assert bool(told) == bool(said)


def test_of_many_lines_left_out_the_first_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "cut.jsonl"
    path.write_bytes(sealed([HEADER]) + b"nothing\n" * 30)
    assert main(["report", str(path), "-o", str(tmp_path / "out")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == report_command.MAX_LISTED + 1
    assert lines[-1] == "report: and 11 more"


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = written(tmp_path / "a.jsonl", [sample()])
    for folder in (path / "below", tmp_path / ("long" * 100) / "out"):
        assert main(["report", str(path), "-o", str(folder)]) == 4
        assert "cannot be written (" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("ending", "status"), [(OSError(28, "No space left on device"), 4), (KeyboardInterrupt(), 2)])
@pytest.mark.parametrize("files", [0, 1])
def test_a_report_that_is_not_finished_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, ending: BaseException, status: int
):
    path, out, sync = written(tmp_path / "a.jsonl", [sample()]), tmp_path / "deep" / "out", os.fsync

    def interrupted() -> int:
        """The status of a report that breaks off after so many files."""
        left = [files]

        def fsync(file: int) -> None:
            if not left[0]:
                raise ending
            left[0] -= 1
            sync(file)

        monkeypatch.setattr(os, "fsync", fsync)
        status = main(["report", str(path), "-o", str(out)])
        monkeypatch.undo()
        return status

    assert interrupted() == status
    assert not out.parent.exists()
    assert main(["report", str(path), "-o", str(out)]) == 0
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    written(path, [failed()])
    assert interrupted() == status
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(report_command, "find_spec", lambda name: None)
    assert main(["report", str(tmp_path / "a.jsonl"), "-o", str(tmp_path)]) == 4
    assert "needs jinja2: pip install jinja2" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "2")], ids=["serial", "parallel"])
def test_a_run_ends_with_where_its_report_is(project: Project, workers: tuple[str, ...]):
    project.kernel()
    outcome = project.pytest("--report=told", *workers, subprocess=True)
    assert outcome.exit == 0
    assert outcome.text.count("report: ") == 1
    assert f"report: {Path('told', 'index.html')}" in outcome.text
    assert {path.name for path in (project.folder / "told").iterdir()} == FILES
    assert "1 of 1 pass" in (project.folder / "told" / "summary.md").read_text()


def test_a_failure_in_junit_says_how_to_reproduce_it(project: Project):
    project.kernel(body="return y + 1")
    outcome = project.run("--junitxml=junit.xml")
    junit = ElementTree.parse(project.folder / "junit.xml")
    assert [*junit.iter("property")] == []  # records in each made it larger than theirs
    texts = [failure.text or "" for failure in junit.iter("failure")]
    assert [text.splitlines()[-1] for text in texts] == [f"reproduce: {outcome.records[0]['command']}"]


@pytest.mark.parametrize("body", ["return y", "return y + 1"], ids=["right", "wrong"])
def test_a_run_whose_report_cannot_be_written_ends_with_four(project: Project, body: str):
    project.kernel(body=body)
    project.write("told/index.html/file", "in the way")
    outcome = project.run("--report=told")
    assert outcome.exit == 4
    assert "report: told: cannot be written (Is a directory)" in outcome.text
    assert len(outcome.records) == 1


@pytest.mark.parametrize(
    ("missing", "said"), [(True, "--report: needs jinja2: pip install"), (False, "--report conftest.py")]
)
def test_a_report_that_cannot_be_made_is_known_at_once(
    project: Project, monkeypatch: pytest.MonkeyPatch, missing: bool, said: str
):
    project.kernel()
    if missing:
        monkeypatch.setattr(report_command, "find_spec", lambda name: None)
    outcome = project.run("--report=told" if missing else "--report=conftest.py/below")
    assert outcome.exit == 4
    assert said in outcome.text
    assert outcome.records == []
