"""`conformance run` as it is typed in an empty folder: what it prints, and how it ends."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.__main__ import main
from tests.conftest import ROOT, TINY, Project
from tests.kit import source

pytest_plugins = ["pytester"]

ONE = (f"--problem={TINY}", "--dtype=fp32", "--layout=nchw", "--distribution=integer")
WRONG = "acme conv_forward fp32: 1 of 1 fail: y: every element mismatched"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a kernel that is wrong, one that is right, and a file that cannot be loaded."""
    for name, text in {
        "acme": source("acme", "return y + 1"),
        "right": source("acme", "return y"),
        "broken": "raise OSError('libacme.so.1: cannot open')",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def typed(folder: Path, *words: str, one: bool = True, **environment: str) -> tuple[int, str]:
    """Exit status and output."""
    alone = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "PYTHONPATH", "CI", "GITHUB"))
    }
    alone |= environment | {"COLUMNS": "100", "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "conformance", "run", *words, *(ONE if one else ())],
        cwd=folder, env={"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"} | alone,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_file_that_needs_what_is_missing_is_told_of_whatever_is_chosen_by_name(project: Project):
    missing = project.write("impls/missing.py", "import cupy_that_is_not_here")
    outcome = project.run(f"--impl={project.kernel()}", f"--impl={missing}", "-k", "integer")
    assert (outcome.exit, "nothing was verified of" in outcome.text.lower()) == (5, True), outcome.text


def test_what_lies_in_the_folder_of_a_run_is_no_part_of_the_library(folder: Path):
    """A `shlex.py` that a kernel had left there printed "120 of 120 pass" and ended the judge with 0."""
    (folder / "shlex.py").write_text("import os; os.write(1, b'1 of 1 pass'); os._exit(0)")
    status, text = typed(folder, "acme.py", PYTHONPATH=str(ROOT))
    assert (status, WRONG in text, "1 of 1 pass" in text) == (1, True, False), text


def test_two_outputs_in_one_file_are_refused(folder: Path):
    """JUnit's XML took the place of the records, and the run ended with 0."""
    for words in (
        ("--records=out", "--junitxml=./out"),
        ("--report=page", "--records=page/index.html"),
        ("--report=page", "--junitxml=page/summary.md"),
    ):
        status, text = typed(folder, "right.py", *words)
        assert (status, "name one file" in text) == (4, True), text
        assert not (folder / "out").exists()


def test_a_part_of_a_level_by_lf_says_so(project: Project):
    project.kernel()
    project.run("--lf")
    assert project.lines()[0]["selection"]["--lf"] == ["True"]


def test_the_verdict_is_the_last_line_and_counts_what_ran(folder: Path):
    status, text = typed(folder, "acme.py")
    lines = text.splitlines()
    assert status == 1
    assert lines[lines.index("= conformance =".center(100, "=")) + 1].startswith(WRONG)
    assert lines[-1].strip("= ").startswith(WRONG)
    assert lines[0].startswith("kernel-conformance ")
    assert "collected" not in text
    assert "mismatched elements " not in text, "the number of wrong elements is said once"
    assert sum(line.startswith("FAIL acme conv_forward: y: ") for line in lines) == 1
    status, text = typed(folder, "right.py", "--dtype=bf16")
    assert (status, text.splitlines()[-1].strip("= ").partition(" (")[0]) == (0, "acme conv_forward fp32: 1 of 1 pass")
    assert text.count("unsupported") == 2
    assert ", bf16; --show unsupported\n" in text


def test_quiet_is_the_failures_and_the_verdict_and_quieter_one_line(folder: Path):
    quiet = typed(folder, "acme.py", "-q")[1].splitlines()
    assert quiet[0] == "acme: 1 kind of failure, 1 case"
    assert quiet[-1].startswith(WRONG)
    assert not any("===" in line for line in quiet)
    (line,) = typed(folder, "acme.py", "-qq")[1].splitlines()
    assert line.startswith(WRONG)


def test_a_file_that_cannot_be_used_is_told_in_one_line(folder: Path):
    status, text = typed(folder, "broken.py", "-n", "2")
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
        status, text = typed(folder, "right.py", *words)
        assert (status, said in text.splitlines()[-1]) == (5, True), text
    assert "; NOTHING WAS VERIFIED of narrow.py (" in text
    assert typed(folder, "lacks.py", "-qq")[1].startswith("NOTHING WAS VERIFIED of lacks.py: No module")
    (folder / "gone.py").write_text(f"import os\nos.remove(__file__)\n{source('gone')}")
    assert "INTERNALERROR" not in typed(folder, "gone.py", "right.py")[1]
    # nothing is said of what was left out on purpose, nor of a folder of which something was verified
    assert typed(folder, "right.py", "away.py", "-m", "cpu")[0] == 0
    status, text = typed(folder, "right.py", "narrow.py", "--lf")
    assert (status, "NOTHING WAS VERIFIED" in text) == (0, False), text
    (folder / "all").mkdir()
    for name in ("right", "lacks"):
        (folder / f"{name}.py").rename(folder / "all" / f"{name}.py")
    assert typed(folder, "all")[0] == 0


def test_without_arguments_it_asks_what_to_run(folder: Path):
    status, text = typed(folder, one=False)
    assert status == 4
    assert "give a file, a folder or a name, as in `conformance run acme.py`" in text
    assert "--all verifies everything that is here: " in text
    assert "numpy_direct" in text


WORDS = {
    "name of a file": (("right",), 0, "acme conv_forward fp32: 1 of 1 pass"),
    "wrong option": (("right.py", "--nonsense"), 4, "usage: conformance run "),
    "option of a plugin": (("right.py", "--html=a"), 4, "or of a plugin; --report=DIR writes a page"),
    "version": (("--version",), 0, "kernel-conformance "),
    "test": (("right.py::test_conv_forward",), 4, "an implementation stands behind ::, not a test; choose with --op"),
    "all and one": (("right.py", "--all"), 4, "--all and right.py: give one of them"),
    "first failure": (("acme.py", "-x"), 1, "INCOMPLETE, stopping after 1 failure: acme "),
    "parenthesis": (("right.py", "-k", "(a"), 4, "ERROR: -k '(a': a parenthesis is not closed"),
    "marker": (("right.py", "-m", "cpuu"), 4, "ERROR: -m cpuu: unknown; did you mean cpu?"),
    "processes": (("right.py", "-n", "two"), 4, "ERROR: -n two: must be a whole number, or auto"),
    "times": (("right.py", "--benchmark-only"), 4, "pytest --pyargs conformance.benchmarks --benchmark-only"),
    "details": (("acme.py", "--show=details"), 1, "\nmismatched elements 32 exceeds limit 0\n"),
    "verbose": (("acme.py", "-v"), 1, f"\nconv_forward[acme-{TINY.replace(' ', '_')}-fp32-nchw-integer] FAIL "),
    "problem": (("right.py", "n1 c2 h5 w5 k2 r3 s3"), 4, "a problem is given with --problem, in quotes: --problem "),
    "problem without quotes": (("right.py", "c2"), 4, "ERROR: c2: a problem is given with --problem, in quotes: "),
    "name of a problem": (("right.py", "edge.plain"), 4, "a problem is given with --problem"),
    "operator": (("right.py", "conv_forward"), 4, "conv_forward is an operator: give --operator conv_forward"),
    "another case": (("RIGHT.py",), 4, "ERROR: RIGHT.py: no such file; did you mean right.py?"),
    "one dash": (("right.py", "-operator", "conv_forward"), 4, "of several letters has two dashes: --operator"),
    "no such test": (
        ("right.py", "-k", "nothing"),
        5,
        "= -k or -m leaves no case; NOTHING WAS ",
    ),
}


@pytest.mark.parametrize(("words", "status", "said"), WORDS.values(), ids=WORDS)
def test_what_is_typed(folder: Path, words: tuple[str, ...], status: int, said: str):
    ended, text = typed(folder, *words)
    assert (ended, said in text) == (status, True), text
    assert "pytest.main()" not in text
    assert "KeyboardInterrupt" not in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("acme.py", "acme.py is no command; to verify a file or an implementation: conformance run acme.py ("),
        ("acme.py 'n1 c2 h5 w5'", "conformance check acme.py 'n1 c2 h5 w5' ("),
        ("acme.py n1 c2", "conformance check acme.py n1 c2 ("),
        ("torch-cpu --level smoke", "conformance run torch-cpu --level smoke ("),
        ("runn acme.py", "runn is no command; did you mean run?"),
        ("help check", "usage: conformance check "),
        ("help", "usage: conformance "),
        ("check acme.py --nonsense", "unrecognized arguments: --nonsense (options: conformance check --help)"),
        ("list operators --nonsense", "unrecognized arguments: --nonsense (options: conformance list --help)"),
        ("check acme.py", "give one, such as 'n1 c8 h9 w9 k4 r3 s3 p1', or verify on all: conformance run acme.py"),
        ("check 'n1 c2 h5 w5' acme.py", "'n1 c2 h5 w5': give the file first, and then the problem"),
    ],
)
def test_what_is_no_command_line_is_told_what_to_type(
    words: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
):
    monkeypatch.chdir(folder)
    status: Any
    try:
        status = main(shlex.split(words))
    except SystemExit as end:
        status = end.code
    text = "".join(capsys.readouterr())
    assert said in text
    assert status == (0 if words.startswith("help") else 4)


@pytest.mark.parametrize("words", ["n1 c2 h4 w4 k2 r3 s3", "'n1 c2 h4 w4 k2 r3 s3'"])
def test_a_problem_may_come_without_quotes_and_behind_an_option(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
):
    monkeypatch.chdir(folder)
    for line in (f"check right.py --dtype fp32 {words}", f"check right.py {words} --dtype fp32"):
        assert main(shlex.split(line)) == 0
        assert "pass: conv_forward of acme on 'n1 c2 h4 w4 k2 r3 s3', fp32 " in capsys.readouterr().out


def test_the_summary_of_a_job_on_github_has_what_a_report_says(folder: Path):
    """Appended, because each step has one; with workers too, and without records or what a page needs."""
    job = folder / "job.md"
    job.write_text("# Before\n")
    (folder / "lacks.py").write_text("import acme_lib\n")
    given = ("acme.py", "lacks.py", "-n2", "-q")
    status, text = typed(folder, *given, GITHUB_STEP_SUMMARY=str(job), GITHUB_ACTIONS="true")
    before, title, said = job.read_text().split("\n", 2)
    assert (status, before, title) == (1, "# Before", "# Conformance of acme conv_forward")
    assert "\n**NOTHING WAS VERIFIED of lacks.py: No module named 'acme_lib'**\n" in said
    assert "- acme conv_forward fp32: 1 of 1 fail: y: every element mismatched" in said
    assert "    reproduce: conformance check acme.py" in said
    assert (
        "::error file=lacks.py,title=lacks.py::NOTHING WAS VERIFIED of lacks.py: No module named 'acme_lib'\n" in text
    )
    status, text = typed(folder, "right.py", "--report=page", GITHUB_STEP_SUMMARY=str(job))
    again = job.read_text().removeprefix(f"{before}\n{title}\n{said}")
    page = (folder / "page" / "summary.md").read_text()
    assert status == 0
    assert [line for line in again.splitlines() if " UTC" not in line] == [
        line for line in page.splitlines() if " UTC" not in line
    ]
    status, text = typed(folder, "right.py", GITHUB_STEP_SUMMARY=str(folder))
    assert (status, "GITHUB_STEP_SUMMARY: cannot be written (Is a directory)" in text) == (0, True)
