"""The known-bad kernels of `tests/field/partial_requests.py` are detected, and the right ones pass."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("torch")
FILE = Path(__file__).with_name("partial_requests.py")
CASES = "empty. or asked_for_alone or added_to"


@pytest.fixture(scope="module")
def statuses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Implementation -> statuses of its cases."""
    records = tmp_path_factory.mktemp("field") / "records.jsonl"
    command = [sys.executable, "-m", "conformance", "run", str(FILE), f"--records={records}", "-k", CASES, "-q"]
    subprocess.run(command, cwd=FILE.parents[2], capture_output=True, check=False, timeout=600)
    found = defaultdict(set)
    for record in map(json.loads, records.read_text().splitlines()):
        if record["kind"] not in ("header", "footer"):
            found[record["implementation"]].add(record["status"])
    return found


def test_bad_ones_are_detected(statuses: dict[str, set[str]]):
    survivors = [name for name, found in statuses.items() if name.startswith("bad-") and not found & {"fail", "error"}]
    assert survivors == []
    assert sum(name.startswith("bad-") for name in statuses) >= 30


def test_good_ones_pass(statuses: dict[str, set[str]]):
    good = {name: found for name, found in statuses.items() if name.startswith("good-")}
    assert len(good) == 5
    assert all("pass" in found and not found & {"fail", "error"} for found in good.values()), good
