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
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import IO, Any

import pytest

from conformance import Implementation
from conformance.execution.case import Case
from conformance.operators import OPERATORS
from conformance.plugin import progress
from conformance.plugin.processes import TolerantStream
from conformance.plugin.progress import Progress, duration
from conformance.problems import Variant, typed
from tests.conftest import TINY, Project
from tests.report_samples import RAISED, as_read, failed, sample

pytest_plugins = ["pytester"]

SLOW = "time.sleep(0.15); return y"
VERDICTS = ["acme conv_forward fp32: 3 of 3 pass", "zeta conv_forward fp32: 3 of 3 fail"]
PICTURE = re.compile(r"\r(\d)/6(, \d failed)? *(?=[\r\n])")


def on_a_terminal(project: Project, *arguments: str, **variables: str) -> str:
    """What a run of three slow cases of acme and three of zeta writes to a terminal."""
    for name, body in (("acme", SLOW), ("zeta", "time.sleep(0.15); return y + 1")):
        project.kernel(name, head="import time", body=body)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "COLUMNS", "PYTEST_ADDOPTS")}
    chosen = [f"--distribution={name}" for name in ("integer", "impulse", "fixed")]
    usual = ["--color=no", f"--problem={TINY}", *chosen, "--dtype=fp32", "--layout=nchw"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *usual, *arguments],
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
    return written.decode()


def verdicts(written: str) -> list[str]:
    """The lines of the kernels, of all that a run has written."""
    return re.findall(r"^\w+ conv_forward fp32: 3 of 3 \w+", written, re.MULTILINE)


@pytest.mark.parametrize("arguments", [(), ("-p", "xdist.plugin", "-n", "2")], ids=["serial", "parallel"])
def test_a_terminal_shows_how_far_it_is_in_one_line(project: Project, arguments: tuple[str, ...]):
    written = on_a_terminal(project, *arguments)
    shown = [match.groups() for match in PICTURE.finditer(written)]
    assert shown[-1] == ("6", ", 3 failed")
    assert verdicts(written) == VERDICTS


@pytest.mark.parametrize(("arguments", "ci"), [((), "true"), (("-s",), "")], ids=["ci", "uncaptured"])
def test_without_a_terminal_there_is_only_the_table(project: Project, arguments: tuple[str, ...], ci: str):
    written = on_a_terminal(project, *arguments, CI=ci)
    assert not PICTURE.search(written)
    assert "suite/test_suite.py" not in written.partition("= conformance =")[0]
    assert verdicts(written) == VERDICTS


def test_verbose_runs_have_a_line_for_each_test_and_quiet_ones_nothing(project: Project):
    verbose, quiet = on_a_terminal(project, "-v"), on_a_terminal(project, "-q")
    assert verbose.count("PASS") == verbose.count("FAIL ") == 3
    assert not PICTURE.search(verbose + quiet)
    said = quiet.split("\r\n")
    assert said[0] == "zeta: 1 kind of failure, 3 cases"
    assert verdicts(quiet) == VERDICTS
    assert said[-2].startswith("3 failed, 3 passed in ")


def test_beside_other_tests_all_have_letters(project: Project):
    project.write("suite/test_own.py", "def test_one(): pass\n\ndef test_two(): assert False, 'of my own'\n")
    written = on_a_terminal(project)
    letters = "".join(re.findall(r"suite/test_(?:own|suite)\.py ([.F]+)", written))
    assert sorted(letters) == [*"....FFFF"][::1]
    assert "of my own" in written
    assert "4 failed, 4 passed" in written


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Progress, IO[str], list[str]]]:
    """The progress of a run whose output is a pipe, what that pipe says, and what pytest's reporter writes."""
    monkeypatch.setattr(progress, "SECOND", 0.02)
    monkeypatch.setattr(progress, "SIGN", 0.05)
    read, write = os.pipe()
    said: list[str] = []
    written = SimpleNamespace(_file=SimpleNamespace(fileno=lambda: write), fullwidth=80)
    nothing = lambda: None  # noqa: E731
    reporter = SimpleNamespace(isatty=lambda: False, write_line=said.append, ensure_newline=nothing, _tw=written)
    ends: list[Callable[[], None]] = []
    config: Any = SimpleNamespace(
        pluginmanager=SimpleNamespace(get_plugin=lambda _: reporter),
        option=SimpleNamespace(collectonly=False),
        get_verbosity=lambda: 0,
        getoption=lambda name, default=None: "fd" if name == "capture" else default,
        add_cleanup=ends.append,
        args=["conformance.suites"],
    )
    with os.fdopen(read) as pipe:
        yield Progress(config), pipe, said
        for end in ends:
            end()
        os.close(write)


def line(pipe: IO[str]) -> str:
    """The next line, which is awaited, but not for ever."""
    assert select.select([pipe], [], [], 20)[0], "nothing was said"
    return pipe.readline()


def test_while_one_case_takes_long_a_pipe_says_which(piped: tuple[Progress, IO[str], list[str]]):
    shown, pipe, _ = piped
    assert line(pipe) == "0 done, 0 s\n"  # the files are loaded, or workers collect
    shown.expect(3)
    variant = Variant("fp32", "nchw", "fixed")
    case = Case(Implementation("acme"), OPERATORS["conv_forward"], typed("n16 c64 h572 w572 k64 r3 s3"), variant, 0)
    shown.begin(case, "")
    while (found := line(pipe)).startswith("0 done"):
        pass
    assert re.fullmatch(r"0/3, \d s(, now conv_forward n16 c64 h572 w572 k64 r3 s3)?\n", found)
    assert line(pipe).endswith(", now conv_forward n16 c64 h572 w572 k64 r3 s3\n")


def test_tests_of_a_project_alone_have_no_line(project: Project):
    """A run of 6,545 tests said 0/6,545 every ten seconds."""
    project.write("signs.py", "from conformance.plugin import progress\nprogress.SIGN = 0.05\n")
    project.write("own/test_own.py", "import time\ndef test_own():\n    time.sleep(1)\n")
    written = project.pytester.runpytest_subprocess(
        "-p", "conformance.plugin", "-p", "xdist", "-p", "signs", "-n", "1", "own"
    ).stdout.str()
    assert "1 passed" in written
    assert "0 done" not in written
    assert "0/1" not in written


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


def test_the_first_failure_is_shown_when_it_happens(piped: tuple[Progress, IO[str], list[str]]):
    shown, _, said = piped
    for entry in (sample(), failed(), failed(reason="other")):
        shown.add(as_read(entry), 3)
    first, again = said
    assert first.startswith("FAIL acme conv_forward: y: 288 of 2,592 ")
    assert "contract" not in first
    assert again.startswith("reproduce: conformance check acme 'n2 c8 ")
    assert shown.text() == "3/3, 2 failed"


REFUSED = {"status": "unsupported", "reason": "no device", "refused": True, "checks": {}}


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (RAISED, "acme: in each of its first 8 cases: raised ValueError: no at /a/acme.py:7"),
        (REFUSED, "acme: in each of its first 8 cases: refused when called: no device"),
    ],
    ids=["raises", "refuses"],
)
def test_what_ends_every_case_is_said_after_a_few(
    piped: tuple[Progress, IO[str], list[str]], entry: dict[str, Any], line: str
):
    """Of a kernel that could run nowhere that was said after three and a half minutes."""
    shown, _, said = piped
    for _ in range(7):
        shown.add(as_read(sample(**entry)), 99)
    assert line not in said
    for _ in range(9):
        shown.add(as_read(sample(**entry)), 99)
    assert said.count(line) == 1


@pytest.mark.parametrize("place", [0, 6])
def test_what_does_not_end_every_case_is_not_said_of_all(piped: tuple[Progress, IO[str], list[str]], place: int):
    shown, _, said = piped
    entries = [sample(**RAISED, descriptor=f"n1 c{c} h4 w4 k2 r3 s3") for c in range(1, 20)]
    entries[place] = sample()
    for entry in entries:
        shown.add(as_read(entry), 99)
    assert not any(text.startswith("acme: in each") for text in said)


def test_durations_have_two_units():
    assert [duration(seconds) for seconds in (0.4, 59, 61, 3599, 7380)] == [
        "0 s", "59 s", "1 min 1 s", "59 min 59 s", "2 h 3 min",
    ]  # fmt: skip
