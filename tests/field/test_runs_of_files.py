"""Runs of files of known-bad kernels, as a vendor runs them: the bad ones fail and the right ones beside them pass."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

pytest.importorskip("torch")
FOLDER = Path(__file__).parent
CALLS = ("--operator=conv_forward", "--distribution=behaviour", "--first-failure", "-k")
STATE = "calls_in_a_row or calls_repeat or other_parameters or right_later or forked_child or memory_is_given_back"
RUNS = {
    "behaviour": ((*CALLS, "calls_in_a_row"), {"good": 1, "bad": 21}, {"fail"}),
    "state": ((*CALLS, STATE), {"good": 4, "bad": 24}, {"fail"}),
    "partial_requests": (("-k", "empty. or asked_for_alone or added_to"), {"good": 5, "bad": 34}, {"fail", "error"}),
}
"""File -> what of the suite is run, how many kernels there are, and what a bad one comes to: it may be to raise."""


@pytest.mark.parametrize("file", RUNS)
def test_bad_ones_are_detected_and_good_ones_are_not(tmp_path: Path, file: str):
    words, counts, detected = RUNS[file]
    records = tmp_path / "records.jsonl"
    command = [sys.executable, "-m", "conformance", "run", f"{FOLDER / file}.py", f"--records={records}", "-q", *words]
    run = subprocess.run(command, cwd=FOLDER.parents[1], capture_output=True, text=True, check=False, timeout=600)
    found = defaultdict[str, set[str]](set)
    for line in map(json.loads, records.read_text().splitlines()):
        if "status" in line:
            found[line["implementation"]].add(line["status"])
    assert (run.returncode, Counter(name.partition("-")[0] for name in found)) == (1, counts), run.stdout[-2000:]
    bad = {name for name in found if name.startswith("bad-")}
    assert {name for name, statuses in found.items() if statuses & detected} == bad
    assert {name for name, statuses in found.items() if "error" in statuses - detected} == set()
    assert {name for name, statuses in found.items() if "pass" not in statuses} <= bad
