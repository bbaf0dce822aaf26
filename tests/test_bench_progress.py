"""The live line: on a terminal, with what is done and how long the rest takes, and nowhere else."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from types import SimpleNamespace

import pytest

from conformance.plugin import progress
from conformance.plugin.progress import Estimate, Progress, duration
from tests.conftest import ROOT

pytest_plugins = ["pytester"]

SUITE = """
import time
import pytest

@pytest.mark.parametrize("case", CASES)
def test_slow(case):
    time.sleep(0.1)
"""
LINE = re.compile(r"(\d+)/3(?:, (\d+) s left)?  ([^\x1b]*)")


def on_a_terminal(pytester: pytest.Pytester, *arguments: str, stderr: bool = True, **variables: str) -> str:
    """What a run writes to a terminal of 80 columns."""
    pytester.makeconftest('pytest_plugins = ["conformance.plugin.progress"]')
    for name, cases in (("test_one", ["acme-a", "acme-b"]), ("test_two", ["zeta-a"])):
        pytester.makepyfile(**{name: SUITE.replace("CASES", str(cases))})
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "COLUMNS", "PYTEST_ADDOPTS")}
    environment = {**kept, "TERM": "xterm", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave if stderr else subprocess.PIPE,
        env=environment,
        cwd=pytester.path,
    )
    os.close(slave)
    written = b""
    try:
        while block := os.read(master, 1 << 16):
            written += block
    except OSError:  # what Linux says of a terminal that nobody writes to any more
        pass
    os.close(master)
    _, apart = process.communicate(timeout=60)
    assert process.returncode == 0
    return written.decode() + (apart or b"").decode()


def screen(written: str) -> list[str]:
    """The lines that are to be seen in the end, by the few codes that a run uses."""
    rows, row, column = [""], 0, 0
    for code, text in re.findall(r"(\x1b\[\d*[A-Z]|[\r\n])|([^\x1b\r\n]+)", written):
        if text:
            rows[row] = rows[row][:column].ljust(column) + text + rows[row][column + len(text) :]
            column += len(text)
        elif code == "\r":
            column = 0
        elif code == "\n":
            row += 1
            rows += [""] * (row == len(rows))
        elif code.endswith("A"):
            row -= 1
        elif code.endswith("G"):
            column = int(code[2:-1]) - 1
        elif code.endswith("K"):
            rows[row] = rows[row][:column]
    return rows


@pytest.mark.parametrize("arguments", [(), ("-v",), ("-p", "xdist", "-n", "1")], ids=["plain", "verbose", "xdist"])
def test_a_terminal_has_a_line(pytester: pytest.Pytester, arguments: tuple[str, ...]):
    if "xdist" in arguments:
        pytest.importorskip("xdist")
        arguments = ("-p", "xdist.plugin", "-n", "1")
    written = on_a_terminal(pytester, *arguments)
    lines = LINE.findall(written)
    assert {done for done, _, _ in lines} == {"1", "2", "3"}  # nothing is known before the first has ended
    assert {case for done, _, case in lines if done in "12"} >= {"acme-b", "zeta-a"}
    assert [left for _, left, _ in lines][-1] == "0"


def test_pytest_s_own_output_stays_as_it_is(pytester: pytest.Pytester):
    written = on_a_terminal(pytester)
    for drawn in re.finditer(r"\x1b\[A", written):  # nothing of an earlier line is left when the next one is there
        assert len([row for row in screen(written[: drawn.start()]) if "/3, " in row]) <= 1
    seen = [line.rstrip() for line in screen(written)]
    rows = [line.split() for line in seen if line.startswith("test_")]
    assert rows == [["test_one.py", "..", "[", "66%]"], ["test_two.py", ".", "[100%]"]]
    assert not any(LINE.search(line) for line in seen)


@pytest.mark.parametrize(
    ("arguments", "stderr", "variables"),
    [((), True, {"CI": "true"}), (("-q",), True, {}), ((), False, {}), ((), True, {"TERM": "dumb"})],
    ids=["ci", "quiet", "file", "dumb"],
)
def test_elsewhere_there_is_none(
    pytester: pytest.Pytester, arguments: tuple[str, ...], stderr: bool, variables: dict[str, str]
):
    written = on_a_terminal(pytester, *arguments, stderr=stderr, **variables)
    assert "3 passed" in written
    assert not LINE.search(written)


def test_the_rest_takes_what_its_like_has_taken():
    found = Estimate()
    found.expect([f"{name}[{number}]" for name, count in (("a", 3), ("b", 2), ("c", 4)) for number in range(count)])
    assert found.remaining is None
    for name, seconds in (("a[0]", 1.0), ("a[1]", 3.0), ("b[0]", 8.0)):
        found.add(name, seconds / 2)
        found.add(name, seconds / 2)
        found.end(name)
    assert (found.done, found.total, found.mean) == (3, 9, 4.0)
    assert found.remaining == 1 * 2.0 + 1 * 8.0 + 4 * 4.0
    found.workers = 2
    assert found.remaining == 13.0


def test_durations_have_two_units():
    assert [duration(seconds) for seconds in (0.4, 59, 61, 3599, 7380)] == [
        "0 s", "59 s", "1 min 1 s", "59 min 59 s", "2 h 3 min",
    ]  # fmt: skip


LONG = "t[a-name-that-is-longer-than-the-screen]"


@pytest.mark.parametrize(
    ("seconds", "drawn"),
    [(progress.SHOWN / 2, ""), (1.0, "\n\r\x1b[K1/2, 1 s left  a-name-that-is\x1b[A\x1b[6G")],
)
def test_quick_tests_draw_nothing(capsys: pytest.CaptureFixture[str], seconds: float, drawn: str):
    writer = SimpleNamespace(flush=lambda: None, width_of_current_line=5, fullwidth=30)
    line = Progress(SimpleNamespace(_tw=writer))  # type: ignore[arg-type]
    line.estimate.expect(["t[a]", LONG])
    line.estimate.add("t[a]", seconds)
    line.estimate.end("t[a]")
    steps = line.pytest_runtest_logstart(LONG)
    next(steps)
    with pytest.raises(StopIteration):
        next(steps)
    assert capsys.readouterr().err == drawn
