"""A run that is killed and resumed: its records must be those of one that nobody disturbed, and no process be left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
KERNEL = """
from conformance import Implementation
from tests import kernels

acme = Implementation("acme")
acme.implements("conv_forward", dtypes=("fp32",), when=lambda p: p.groups == 1)(kernels.conv_forward)
"""
MARK = "CONFORMANCE_KILLED_RUN"
"""A variable that all processes of a run inherit."""
GONE = 5.0
"""Seconds in which they have to end."""


@dataclass(frozen=True)
class Run:
    """Runs of one command line in a folder, each with its own file of records."""

    folder: Path
    arguments: Sequence[str] = ()

    def start(self, records: Path, *arguments: str) -> tuple[subprocess.Popen[bytes], str]:
        """The process, and what marks all that it starts."""
        (self.folder / "acme.py").write_text(KERNEL)
        words = ["-m", "conformance", "run", "acme.py", "--level=smoke", *self.arguments, f"--records={records}"]
        mark = uuid.uuid4().hex
        variables = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", MARK: mark}
        with (self.folder / "output.txt").open("wb") as output:
            command = [sys.executable, *words, *arguments]
            return subprocess.Popen(command, cwd=self.folder, env=variables, stdout=output, stderr=output), mark

    def whole(self, records: Path, *arguments: str) -> tuple[list[str], float]:
        """The records of a run that is left alone, and the seconds from the first line to the last."""
        process, _ = self.start(records, *arguments)
        begun = _first_line(process, records)
        assert process.wait(600) == 0, (self.folder / "output.txt").read_text()
        return compared(records), records.stat().st_mtime - begun

    def killed(self, records: Path, moment: float) -> tuple[int, list[int]]:
        """Kill a run some seconds after its first line. Its lines by then, and the processes that it leaves."""
        process, mark = self.start(records)
        _first_line(process, records)
        time.sleep(moment)
        process.kill()
        process.wait()
        until = time.monotonic() + GONE
        while (others := left(mark)) and time.monotonic() < until:
            time.sleep(0.05)
        return records.read_bytes().count(b"\n"), others


def _first_line(process: subprocess.Popen[bytes], records: Path) -> float:
    """When it was there."""
    while not records.exists() and process.poll() is None:
        time.sleep(0.01)
    return time.time()


def compared(records: Path) -> list[str]:
    """Verdicts without their seconds, in an order of their own. Every line must be whole."""
    found: list[dict[str, Any]] = [json.loads(line) for line in records.read_text().splitlines()]
    verdicts = (record for record in found if record["kind"] not in ("header", "footer"))
    return sorted(json.dumps(record | {"seconds": None, "covers": None}, sort_keys=True) for record in verdicts)


def left(mark: str) -> list[int]:
    """Processes with this mark that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"{MARK}={mark}".encode() in (path / "environ").read_bytes().split(b"\0")
            if marked and "\nState:\tZ" not in (path / "status").read_text():
                found.append(int(path.name))
        except OSError:
            continue  # ended, or somebody else's
    return found
