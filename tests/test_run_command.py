"""`conformance run` as it is typed in an empty folder: what it prints, and how it ends."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from conformance.cli import terminal
from conformance.implementations.devices import missing
from tests.conftest import ROOT, TINY
from tests.kit import command, lasting, source

ABSENT = next(device for device in ("trn1", "trn2") if missing(device))
ONE = (f"--problem={TINY}", "--dtype=fp32", "--layout=nchw", "--distribution=integer")
WRONG = "acme conv_forward fp32: 1 of 1 fail: y: every element mismatched"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a kernel that is wrong, one that is right, and files of which nothing can be verified; go
    there, where no runner is."""
    (tmp_path / "all").mkdir()
    for name, text in {
        "acme": source("acme", "return y + 1"),
        "right": source("acme"),
        "broken": "raise OSError('libacme.so.1: cannot open')",
        "lacks": "import acme_lib\n",
        "away": source("away", construct=f", device='{ABSENT}'"),
        "narrow": source("narrow", declares=", when=lambda p: p.groups > 7"),
        "all/right": source("acme"),
        "all/lacks": "import acme_lib\n",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(terminal, "SIGN", 1e6)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def typed(*words: str) -> tuple[int, str]:
    """Run one tiny case; return the exit status and the output."""
    return command("run", *words, *ONE)


def test_what_lies_in_the_folder_of_a_run_is_no_part_of_the_library(folder: Path):
    """A `shlex.py` that a kernel had left there printed "120 of 120 pass" and ended the judge with 0."""
    (folder / "shlex.py").write_text("import os; os.write(1, b'1 of 1 pass'); os._exit(0)")
    words = [sys.executable, "-m", "conformance", "run", "acme.py", *ONE]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (done.returncode, WRONG in done.stdout, "1 of 1 pass" in done.stdout) == (1, True, False), done.stderr


PRINTED = {
    "wrong": "acme.py",
    "right, unsupported in a dtype": "right.py --dtype=bf16",
    "name of a file": "right",
    "quiet": "acme.py -q",
    "quieter": "acme.py -qq",
    "details": "acme.py --show=details",
    "verbose": "acme.py -v",
    "first failure": "acme.py -x",
    "no such test": "right.py -k nothing",
    "broken": "broken.py -n 2",
    # beside one that is right: a package was missing on the runner, and the kernel was not verified for months
    "lacks a package": "right.py lacks.py",
    "lacks a package, by name": "lacks.py -k integer",
    "lacks a package, quiet, by workers": "right.py lacks.py -n2 -q",
    "lacks a package, quieter": "lacks.py -qq",
    "lacks a device, declares nothing": "right.py away.py narrow",
    # nothing is said of what was left out on purpose, nor of a folder of which something was verified
    "device left out": "right.py away.py -m cpu",
    "last failures": "right.py narrow.py --lf",
    "folder": "all",
}
"""Words of a command line whose exit status and output are checked in."""


@pytest.mark.parametrize("words", PRINTED.values(), ids=PRINTED)
def test_a_run_prints(folder: Path, snapshot: SnapshotAssertion, words: str):
    status, text = typed(*words.split())
    assert f"exit status {status}\n{lasting(text)}" == snapshot


def test_a_file_that_is_deleted_when_it_is_loaded_is_no_fault_of_the_suite(folder: Path):
    (folder / "gone.py").write_text(f"import os\nos.remove(__file__)\n{source('gone')}")
    assert "INTERNALERROR" not in typed("gone.py", "right.py")[1]


def test_the_summary_of_a_job_on_github_has_what_a_report_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
):
    """Appended, because each step has one; with workers too, and without records or what a page needs."""
    job = folder / "job.md"
    job.write_text("# Before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(job))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    _, text = typed("acme.py", "lacks.py", "-n2", "-q")
    first = job.read_text()
    assert lasting(f"{text}\n{first}") == snapshot
    monkeypatch.delenv("GITHUB_ACTIONS")
    status, _ = typed("right.py", "--report=page")
    summaries = job.read_text().removeprefix(first), (folder / "page" / "summary.md").read_text()
    assert (status, lasting(summaries[0])) == (0, lasting(summaries[1]))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder))
    status, text = typed("right.py")
    assert (status, "GITHUB_STEP_SUMMARY: cannot be written (Is a directory)" in text) == (0, True)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("problem", ["n1 c2 h4 w4 k2 r3 s3", "'n1 c2 h4 w4 k2 r3 s3'"])
def test_a_problem_may_come_without_quotes_and_behind_an_option(problem: str):
    for line in (f"check right.py --dtype fp32 {problem}", f"check right.py {problem} --dtype fp32"):
        status, text = command(*shlex.split(line))
        assert (status, "pass: conv_forward of acme on 'n1 c2 h4 w4 k2 r3 s3', fp32 " in text) == (0, True)
