"""How far a run is, on a terminal and without one, and the table at its end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from typing import Any

import pytest

from conformance import Implementation
from conformance.cli import terminal
from conformance.cli.terminal import Terminal
from conformance.engine.progress import Progress, duration
from conformance.engine.tasks import Task
from conformance.execution.trial import Trial
from conformance.operators import OPERATORS
from conformance.problems import Variant, typed
from conformance.streams import TolerantStream
from tests.conftest import TINY, Project
from tests.report_samples import RAISED, as_read, failed, sample

pytest_plugins = ["pytester"]

SLOW = "time.sleep(0.15); return y"
VERDICTS = [("acme", "3"), ("zeta", "3F")]
PICTURE = re.compile(r"(\d)/6(, \d failed)?, \d+ s, now conv_forward ")


def on_a_terminal(project: Project, *arguments: str, **variables: str) -> str:
    """Return what a run of three slow cases of acme and three of zeta writes to a terminal."""
    for name, body in (("acme", SLOW), ("zeta", "time.sleep(0.15); return y + 1")):
        project.kernel(name, head="import time", body=body)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "COLUMNS", "NO_COLOR")}
    chosen = [f"--distribution={name}" for name in ("integer", "impulse", "fixed")]
    usual = [f"--problem={TINY}", *chosen, "--dtype=fp32", "--layout=nchw"]
    process = subprocess.Popen(
        [sys.executable, "-m", "conformance", "run", "impls", *usual, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        env={**kept, "TERM": "xterm", **variables},
        cwd=project.folder,
    )
    os.close(slave)
    written = b""
    try:
        while block := os.read(master, 1 << 16):
            written += block
    except OSError:  # what Linux says of a terminal that nobody writes to any more
        pass
    os.close(master)
    assert process.wait(timeout=60) == 1  # zeta is wrong
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.decode()).replace("\r", "\n")


def verdicts(written: str) -> list[tuple[str, str]]:
    """The rows of the matrix, of all that a run has written."""
    return re.findall(r"^(acme|zeta) +(\d\S*)$", written, re.MULTILINE)


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["serial", "parallel"])
def test_a_terminal_shows_how_far_it_is_in_one_line(project: Project, arguments: tuple[str, ...]):
    written = on_a_terminal(project, *arguments)
    assert PICTURE.search(written)
    assert verdicts(written) == VERDICTS


@pytest.mark.parametrize(("arguments", "ci"), [((), "true"), (("-s",), "")], ids=["ci", "uncaptured"])
def test_without_a_terminal_there_is_only_the_table(project: Project, arguments: tuple[str, ...], ci: str):
    written = on_a_terminal(project, *arguments, CI=ci)
    assert not PICTURE.search(written)
    assert verdicts(written) == VERDICTS


def test_verbose_runs_have_a_line_for_each_case_and_quiet_ones_nothing(project: Project):
    verbose, quiet = on_a_terminal(project, "-v"), on_a_terminal(project, "-q")
    assert verbose.count(" PASS [") == verbose.count(" FAIL [") == 3
    assert not PICTURE.search(verbose + quiet)
    assert quiet.startswith("zeta: 1 kind of failure, 3 cases")
    assert verdicts(quiet) == VERDICTS


def test_beside_other_tests_all_have_letters(project: Project):
    project.write("suite/test_own.py", "def test_one(): pass\n\ndef test_two(): assert False, 'of my own'\n")
    project.kernel()
    project.kernel("zeta", body="return y + 1")
    outcome = project.pytest("--distribution=integer", "--distribution=fixed")
    letters = "".join(re.findall(r"suite/test_(?:own|suite)\.py ([.F]+)", outcome.text))
    assert sorted(letters) == [*"...FFF"]
    assert "of my own" in outcome.text
    assert re.search(r"1 failed, 3 passed,( \d+ warnings?,)? 2 wrong in", outcome.text)


def test_while_one_case_takes_long_a_pipe_says_which(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.setattr(terminal, "SIGN", 0.05)
    progress, variant = Progress(), Variant("fp32", "nchw", "fixed")
    case = Trial(Implementation("acme"), OPERATORS["conv_forward"], typed("n16 c64 h572 w572 k64 r3 s3"), variant, 0)
    with Terminal(0, is_live=True).showing(progress):
        time.sleep(0.2)
        progress.tests = 3
        progress.begin(Task("conv_forward", case))
        time.sleep(0.2)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "0 done, 0 s"  # the files are loaded, or processes plan
    assert last == "0/3, 0 s, now conv_forward n16 c64 h572 w572 k64 r3 s3"


def test_a_line_is_in_a_pipe_when_it_is_written():
    """Python holds back 8 KB: a header came after half a minute, behind what a thread had written."""
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "w") as stream:
        tolerant = TolerantStream(stream)
        tolerant.write("the first ")
        assert select.select([read], [], [], 0)[0] == []
        tolerant.write("failure\n")
        assert select.select([read], [], [], 0)[0] == [read]
        assert os.read(read, 99) == b"the first failure\n"


def test_the_first_failure_is_shown_when_it_happens():
    progress = Progress()
    progress.tests = 3
    lines = [line for entry in (sample(), failed(), failed(reason="other")) for line in progress.add(as_read(entry))]
    first, again = lines
    assert first.startswith("FAIL acme conv_forward: y: 288 of 2,592 ")
    assert "contract" not in first
    assert again.startswith("reproduce: conformance check acme 'n2 c8 ")
    assert progress.counts == "3/3, 2 failed"


REFUSED = {"status": "unsupported", "reason": "no device", "refused": True, "checks": {}}


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (RAISED, "acme: in each of its first 8 cases: raised ValueError: no at /a/acme.py:7"),
        (REFUSED, "acme: in each of its first 8 cases: refused when called: no device"),
    ],
    ids=["raises", "refuses"],
)
def test_what_ends_every_case_is_said_after_a_few(entry: dict[str, Any], line: str):
    """It was said after three and a half minutes of a kernel that could run nowhere."""
    progress = Progress()
    said = [progress.add(as_read(sample(**entry))) for _ in range(16)]
    assert [line in lines for lines in said] == [False] * 7 + [True] + [False] * 8


@pytest.mark.parametrize("place", [0, 6])
def test_what_does_not_end_every_case_is_not_said_of_all(place: int):
    entries = [sample(**RAISED, descriptor=f"n1 c{c} h4 w4 k2 r3 s3") for c in range(1, 20)]
    entries[place] = sample()
    progress = Progress()
    said = [line for entry in entries for line in progress.add(as_read(entry))]
    assert not any(text.startswith("acme: in each") for text in said)


def test_durations_have_two_units():
    assert [duration(seconds) for seconds in (0.4, 59, 61, 3599, 7380)] == [
        "0 s", "59 s", "1 min 1 s", "59 min 59 s", "2 h 3 min",
    ]  # fmt: skip
