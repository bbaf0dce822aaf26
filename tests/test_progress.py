"""A row for each implementation and operator while a run goes on, and on a terminal what is not done."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import Any

import pytest

from conformance.plugin.progress import RemainingTime, duration
from tests.conftest import Project

pytest_plugins = ["pytester"]

TINY = "n1 c2 h4 w4 k2 r3 s3 p1"
SLOW = "time.sleep(0.15); return y"


def on_a_terminal(project: Project, *arguments: str, stderr: bool = True, columns: int = 80, **variables: Any) -> str:
    """What a run of three slow cases of acme and three of zeta writes to a terminal."""
    for name, body in (("acme", SLOW), ("zeta", "time.sleep(0.15); return y + 1")):
        project.kernel(name, head="import time", body=body)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "COLUMNS", "PYTEST_ADDOPTS")}
    chosen = [f"--distribution={name}" for name in ("integer", "impulse", "fixed")]
    usual = ["--color=no", f"--problem={TINY}", *chosen, "--dtype=fp32", "--layout=nchw"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *usual, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave if stderr else subprocess.PIPE,
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
    _, apart = process.communicate(timeout=60)
    assert process.returncode == 1  # zeta is wrong
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
            row -= int(code[2:-1])
        elif code.endswith("J"):
            rows[row] = rows[row][:column]
            del rows[row + 1 :]
    return rows


ROWS = [["acme", "conv_forward", "3", "0", "0", "0", "0"], ["zeta", "conv_forward", "0", "3", "0", "0", "0"]]


@pytest.mark.parametrize(("arguments", "columns"), [((), 80), (("-p", "xdist.plugin", "-n", "2"), 160)])
def test_a_terminal_shows_what_is_not_done(project: Project, arguments: tuple[str, ...], columns: int):
    written = on_a_terminal(project, *arguments, columns=columns)
    pictures = [screen(part) for part in written.split("\x1b[J")]
    live = [line for picture in pictures for line in picture if re.search(r"\d/3, \d failed, \d+ s left", line)]
    assert {line.split()[0] for line in live} == {"acme", "zeta"}
    # on a busy machine, workers' verdicts arrive together, and a picture between the first two is not drawn
    assert all(re.search("[12] failed", line) for line in live if "zeta" in line)
    assert not any(re.search("[1-9] failed", line) for line in live if "acme" in line)
    assert any(re.match(r"\d/6, \d+ s left  (acme|zeta)-", line) for picture in pictures for line in picture)
    seen = screen(written)
    assert not any(" left" in line for line in seen)  # nothing of it stays
    assert sorted(line.split() for line in seen if "conv_forward  " in line) == ROWS
    assert all(len(line) < columns for line in seen if "conv_forward  " in line or "left" in line)


@pytest.mark.parametrize(
    ("arguments", "stderr", "variables"),
    [((), True, {"CI": "true"}), ((), False, {}), ((), True, {"TERM": "dumb"}), (("-s",), True, {})],
    ids=["ci", "file", "dumb", "uncaptured"],
)
def test_without_a_terminal_there_are_finished_rows_only(
    project: Project, arguments: tuple[str, ...], stderr: bool, variables: dict[str, Any]
):
    written = on_a_terminal(project, *arguments, stderr=stderr, **variables)
    assert " left" not in written
    assert "\x1b" not in written
    assert sorted(line.split() for line in written.splitlines() if "conv_forward  " in line) == ROWS


def test_verbose_runs_have_a_line_for_each_test(project: Project):
    written = on_a_terminal(project, "-v")
    assert written.count("PASS") == written.count("FAIL ") == 3
    assert " left" not in written


def test_quiet_runs_have_neither(project: Project):
    written = on_a_terminal(project, "-q")
    before = written.partition("= conformance =")[0]
    assert "conv_forward" not in before
    assert "3 failed, 3 passed" in written


def test_rows_that_do_not_come_to_their_end_say_so(project: Project):
    written = on_a_terminal(project, "-x")
    assert re.search(r"zeta +conv_forward +0 +1 +0 +0 +0\s+not finished: 1 of 3 tests", written)


def test_other_tests_keep_their_letters(project: Project):
    project.write("suite/test_own.py", "def test_one(): pass\n\ndef test_two(): assert False, 'of my own'\n")
    written = "\n".join(screen(on_a_terminal(project)))
    assert re.search(r"suite/test_own.py \.F", written)
    assert "of my own" in written
    assert "4 failed, 4 passed" in written


def test_the_rest_takes_what_its_like_has_taken():
    found = RemainingTime()
    found.expect([f"{name}[{number}]" for name, count in (("a", 3), ("b", 2), ("c", 4)) for number in range(count)])
    assert found.remaining is None
    for name, seconds in (("a[0]", 1.0), ("a[1]", 3.0), ("b[0]", 8.0)):
        found.add(name, seconds / 2)
        found.add(name, seconds / 2)
        found.end(name)
    assert (found.done, found.total) == (3, 9)
    assert found.remaining == 1 * 2.0 + 1 * 8.0 + 4 * 4.0
    found.workers = 2
    assert found.remaining == 13.0


def test_durations_have_two_units():
    assert [duration(seconds) for seconds in (0.4, 59, 61, 3599, 7380)] == [
        "0 s", "59 s", "1 min 1 s", "59 min 59 s", "2 h 3 min",
    ]  # fmt: skip
