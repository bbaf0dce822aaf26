"""A good submission, made as a vendor makes one, and the ways to spoil it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from conformance.reporting.submission import archive, contents
from conformance.results import reading

ROOT = Path(__file__).parents[1]
KERNEL = """
import numpy as np

from conformance import Implementation
from tests import kernels

acme = Implementation("acme")
URL = "https://acme.example/issues/7"
acme.waive("conv_forward", reason="a known one", url=URL, distributions=("special", "nonfinite"))


@acme.implements("conv_forward", dtypes=("fp32",), when=lambda p: p.groups == 1)
def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
    y = kernels.conv_forward(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return np.where(np.isnan(y), 0, y)
"""
"""One operator, right but for a NaN that it swallows, for which there is a waiver."""
STATEMENT = """\
Submitter: Acme Inc.
Contact: kernels@acme.example
Device: Acme A1, 16 GB, driver 4.2
Implementation: acme
Level: smoke

Signed-off-by: Jane Doe <jane@acme.example>
"""
Members = dict[str, bytes]
Spoil = Callable[[Members], None]


@dataclass(frozen=True)
class Vendor:
    """A folder with a kernel, its records, a benchmark run and a statement."""

    folder: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """pytest on the suites of this repository, on the vendor's kernel alone."""
        words = [sys.executable, "-m", "pytest", f"--impl={self.folder / 'acme.py'}", "-q", *arguments]
        variables = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        variables.pop("PYTEST_DISABLE_PLUGIN_AUTOLOAD", None)
        return subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300, check=False)

    def path(self, name: str) -> Path:
        """A file of the vendor's."""
        return self.folder / name


def vendor(folder: Path, kernel: str = KERNEL, status: int = 0) -> Vendor:
    """A vendor who has verified, which ended with this status, and timed."""
    found = Vendor(folder)
    found.path("acme.py").write_text(kernel)
    found.path("statement.txt").write_text(STATEMENT)
    ended = found.run("--level=smoke", f"--records={found.path('records.jsonl')}")
    assert ended.returncode == status, ended.stdout + ended.stderr
    found.path("bench.json").write_text(json.dumps(benchmark(found.path("records.jsonl"))))
    return found


def verdicts(records: Path) -> list[str]:
    """The lines of a file of records, without those that begin and end a run."""
    return [f"{line.decode()}\n" for _, line in reading.lines(records.read_bytes(), records.name)]


def benchmark(records: Path) -> dict[str, Any]:
    """A run of pytest-benchmark that timed the first verdict that passed."""
    found = map(json.loads, verdicts(records))
    record = next(r for r in found if r["status"] == "pass" and r.get("distribution") == "fixed")
    machine = {"cpu": {"brand_raw": "Acme CPU", "count": 2}, "machine": "x86_64"}
    return {"machine_info": machine, "benchmarks": [{"extra_info": record, "stats": {"data": [1e-3, 2e-3]}}]}


def repacked(members: Members, honest: bool = True) -> bytes:
    """An archive of other members; `honest` if manifest and derived members follow them, as a forger would have it."""
    if honest:
        found = contents.understood(members)
        members["waivers.json"] = contents.as_json(contents.waivers(found.records))
        members["environment.json"] = contents.as_json(contents.environment(found))
        return listed(members)
    return archive.written(members)


def listed(members: Members) -> bytes:
    """An archive whose manifest is right, whatever its members are."""
    return archive.written(members | {"manifest.json": contents.as_json(contents.manifest(members))})


def zipped(members: Members, *more: tuple[zipfile.ZipInfo, bytes]) -> bytes:
    """An archive with members that `written` would never make."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
        for info, content in more:
            file.writestr(info, content)
    return buffer.getvalue()


def lines(members: Members) -> list[dict[str, Any]]:
    """The records."""
    return [json.loads(line) for line in members["records/00.jsonl"].splitlines()]


def relined(members: Members, records: list[dict[str, Any]]) -> None:
    """Put records back."""
    members["records/00.jsonl"] = b"".join(json.dumps(record).encode() + b"\n" for record in records)
