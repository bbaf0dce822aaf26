"""A run that is killed at random moments and resumed: `python -m tests.kill_and_resume --moments 20`.

Each time the records must be those of a run that nobody disturbed, and no process may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
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
    return sorted(json.dumps(record | {"seconds": None}) for record in verdicts)


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


def main() -> int:
    """0 if every run was completed and left nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    print(f"--seed {given.seed}")
    generator, bad = random.Random(given.seed), 0
    for workers in ("0", "2"):
        with tempfile.TemporaryDirectory() as folder:
            run = Run(Path(folder), ("-n", workers))
            expected, seconds = run.whole(run.folder / "whole.jsonl")
            print(f"-n {workers}: {len(expected)} records in {seconds:.1f} s", flush=True)
            for number in range(given.moments):
                records, moment = run.folder / f"{number}.jsonl", generator.uniform(0, seconds)
                count, others = run.killed(records, moment)
                agrees = run.whole(records, "--resume")[0] == expected
                bad += not agrees or bool(others)
                outcome = f"{len(others)} processes left, resumed: {'the same' if agrees else 'DIFFERENT'}"
                print(f"  killed after {moment:.2f} s, {count} lines: {outcome}", flush=True)
    print(f"{bad} of {2 * given.moments} are wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
