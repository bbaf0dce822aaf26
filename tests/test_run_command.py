"""`conformance run` as it is typed in an empty folder: what it prints, and how it ends."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, TINY, Project
from tests.kit import command, source

pytest_plugins = ["pytester"]

ONE = (f"--problem={TINY}", "--dtype=fp32", "--layout=nchw", "--distribution=integer")
WRONG = "acme conv_forward fp32: 1 of 1 fail: y: every element mismatched"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a kernel that is wrong, one that is right, and a file that cannot be loaded; go there, where
    no runner is."""
    for name, text in {
        "acme": source("acme", "return y + 1"),
        "right": source("acme", "return y"),
        "broken": "raise OSError('libacme.so.1: cannot open')",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def typed(*words: str) -> tuple[int, str]:
    """Run one tiny case; return the exit status and the output."""
    return command("run", *words, *ONE)


def test_a_file_that_needs_what_is_missing_is_told_of_whatever_is_chosen_by_name(project: Project):
    missing = project.write("impls/missing.py", "import cupy_that_is_not_here")
    outcome = project.run(f"--impl={project.kernel()}", f"--impl={missing}", "-k", "integer")
    assert (outcome.exit, "nothing was verified of" in outcome.text.lower()) == (5, True), outcome.text


def test_what_lies_in_the_folder_of_a_run_is_no_part_of_the_library(folder: Path):
    """A `shlex.py` that a kernel had left there printed "120 of 120 pass" and ended the judge with 0."""
    (folder / "shlex.py").write_text("import os; os.write(1, b'1 of 1 pass'); os._exit(0)")
    words = [sys.executable, "-m", "conformance", "run", "acme.py", *ONE]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (done.returncode, WRONG in done.stdout, "1 of 1 pass" in done.stdout) == (1, True, False), done.stderr


def test_a_part_of_a_level_by_lf_says_so(project: Project):
    project.kernel()
    project.run("--lf")
    assert project.lines()[0]["selection"]["--lf"] == ["True"]


def test_the_verdict_is_the_last_line_and_counts_what_ran(folder: Path):
    status, text = typed("acme.py")
    lines = text.splitlines()
    assert status == 1
    assert lines[lines.index("= conformance =".center(100, "=")) + 1].startswith(WRONG)
    assert lines[-1].strip("= ").startswith(WRONG)
    assert lines[0].startswith("kernel-conformance ")
    assert "collected" not in text
    assert "mismatched elements " not in text, "the number of wrong elements is said once"
    assert sum(line.startswith("FAIL acme conv_forward: y: ") for line in lines) == 1
    status, text = typed("right.py", "--dtype=bf16")
    assert (status, text.splitlines()[-1].strip("= ").partition(" (")[0]) == (0, "acme conv_forward fp32: 1 of 1 pass")
    assert text.count("unsupported") == 2
    assert ", bf16; --show unsupported\n" in text


def test_quiet_is_the_failures_and_the_verdict_and_quieter_one_line(folder: Path):
    quiet = typed("acme.py", "-q")[1].splitlines()
    assert quiet[0] == "acme: 1 kind of failure, 1 case"
    assert quiet[-1].startswith(WRONG)
    assert not any("===" in line for line in quiet)
    (line,) = typed("acme.py", "-qq")[1].splitlines()
    assert line.startswith(WRONG)


def test_a_file_that_cannot_be_used_is_told_in_one_line(folder: Path):
    status, text = typed("broken.py", "-n", "2")
    assert status == 1
    assert text.count("libacme.so.1") == 1
    assert "no test here verifies anything" not in text
    last = text.splitlines()[-1].strip("= ")
    assert last.startswith("broken.py: OSError: libacme.so.1: cannot open (broken.py, line 1); NOTHING WAS VERIFIED (")


def test_a_file_of_which_nothing_was_verified_is_no_green_run(folder: Path):
    """Beside one that is right: a package was missing on the runner, and the kernel was not verified for months."""
    (folder / "lacks.py").write_text("import acme_lib\n")
    (folder / "away.py").write_text(source("away", construct=", device='trn1'"))
    (folder / "narrow.py").write_text(source("narrow", declares=", when=lambda p: p.groups > 7"))
    for words, said in {
        ("lacks.py",): "; NOTHING WAS VERIFIED of lacks.py: No module named 'acme_lib'",
        ("lacks.py", "-n2", "-q"): "; NOTHING WAS VERIFIED of lacks.py: No module named 'acme_lib'",
        ("away.py", "narrow"): "; NOTHING WAS VERIFIED of away.py: no ",
    }.items():
        status, text = typed("right.py", *words)
        assert (status, said in text.splitlines()[-1]) == (5, True), text
    assert "; NOTHING WAS VERIFIED of narrow.py (" in text
    assert typed("lacks.py", "-qq")[1].startswith("NOTHING WAS VERIFIED of lacks.py: No module")
    (folder / "gone.py").write_text(f"import os\nos.remove(__file__)\n{source('gone')}")
    assert "INTERNALERROR" not in typed("gone.py", "right.py")[1]
    # nothing is said of what was left out on purpose, nor of a folder of which something was verified
    assert typed("right.py", "away.py", "-m", "cpu")[0] == 0
    status, text = typed("right.py", "narrow.py", "--lf")
    assert (status, "NOTHING WAS VERIFIED" in text) == (0, False), text
    (folder / "all").mkdir()
    for name in ("right", "lacks"):
        (folder / f"{name}.py").rename(folder / "all" / f"{name}.py")
    assert typed("all")[0] == 0


WORDS = {
    "name of a file": (("right",), 0, "acme conv_forward fp32: 1 of 1 pass"),
    "first failure": (("acme.py", "-x"), 1, "INCOMPLETE, stopping after 1 failure: acme "),
    "details": (("acme.py", "--show=details"), 1, "\nmismatched elements 32 exceeds limit 0\n"),
    "verbose": (("acme.py", "-v"), 1, f"\nconv_forward[acme-{TINY.replace(' ', '_')}-fp32-nchw-integer] FAIL "),
    "no such test": (("right.py", "-k", "nothing"), 5, "= -k or -m leaves no case; NOTHING WAS "),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("words", "status", "said"), WORDS.values(), ids=WORDS)
def test_words_are_understood(words: tuple[str, ...], status: int, said: str):
    ended, text = typed(*words)
    assert (ended, said in text) == (status, True), text


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("problem", ["n1 c2 h4 w4 k2 r3 s3", "'n1 c2 h4 w4 k2 r3 s3'"])
def test_a_problem_may_come_without_quotes_and_behind_an_option(problem: str):
    for line in (f"check right.py --dtype fp32 {problem}", f"check right.py {problem} --dtype fp32"):
        status, text = command(*shlex.split(line))
        assert (status, "pass: conv_forward of acme on 'n1 c2 h4 w4 k2 r3 s3', fp32 " in text) == (0, True)


def test_the_summary_of_a_job_on_github_has_what_a_report_says(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Appended, because each step has one; with workers too, and without records or what a page needs."""
    job = folder / "job.md"
    job.write_text("# Before\n")
    (folder / "lacks.py").write_text("import acme_lib\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(job))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    status, text = typed("acme.py", "lacks.py", "-n2", "-q")
    before, title, said = job.read_text().split("\n", 2)
    assert (status, before, title) == (1, "# Before", "# Conformance of acme conv_forward")
    assert "\n**NOTHING WAS VERIFIED of lacks.py: No module named 'acme_lib'**\n" in said
    assert "- acme conv_forward fp32: 1 of 1 fail: y: every element mismatched" in said
    assert "    reproduce: conformance check acme.py" in said
    assert (
        "::error file=lacks.py,title=lacks.py::NOTHING WAS VERIFIED of lacks.py: No module named 'acme_lib'\n" in text
    )
    monkeypatch.delenv("GITHUB_ACTIONS")
    status, text = typed("right.py", "--report=page")
    again = job.read_text().removeprefix(f"{before}\n{title}\n{said}")
    page = (folder / "page" / "summary.md").read_text()
    assert status == 0
    assert [line for line in again.splitlines() if " UTC" not in line] == [
        line for line in page.splitlines() if " UTC" not in line
    ]
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder))
    status, text = typed("right.py")
    assert (status, "GITHUB_STEP_SUMMARY: cannot be written (Is a directory)" in text) == (0, True)
