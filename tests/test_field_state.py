"""Known-bad kernels of state, and of behaviour on single paths, are detected; the right ones beside them pass."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

FIELD = Path(__file__).parent / "field"
STATE = "calls_in_a_row or calls_repeat or other_parameters or right_later or forked_child or memory_is_given_back"


@pytest.mark.parametrize(("file", "checks"), [("behaviour", "calls_in_a_row"), ("state", STATE)])
def test_known_bad_kernels_of_the_field_are_detected(tmp_path: Path, file: str, checks: str):
    records = tmp_path / "records.jsonl"
    words = [sys.executable, "-m", "conformance", "run", str(FIELD / f"{file}.py"), "--operator=conv_forward"]
    words += ["--distribution=behaviour", "-k", checks, f"--records={records}", "-q"]
    run = subprocess.run(words, cwd=FIELD.parents[1], capture_output=True, text=True, check=False)
    found = [line for line in map(json.loads, records.read_text().splitlines()) if "status" in line]
    statuses = defaultdict[str, set[str]](set)
    for line in found:
        statuses[line["implementation"]].add(line["status"])
    assert (run.returncode, len(statuses) > 12) == (1, True), run.stdout[-2000:]
    assert {name for name, seen in statuses.items() if "fail" in seen} == {n for n in statuses if n[:4] == "bad-"}
    assert [line for line in found if line["status"] == "error"] == []
