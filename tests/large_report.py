"""What a report of many records takes: `python -m tests.large_report 200000 records.jsonl` multiplies the records of a
run, makes their report, and prints seconds and the most memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.report_samples import spread, written


def main(count: int, seeds: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        known = [json.loads(line) for line in seeds.read_text(encoding="utf-8").splitlines()]
        path = written(Path(folder) / "records.jsonl", spread([seed for seed in known if "status" in seed], count))
        command = [sys.executable, "-m", "conformance", "report", str(path), "-o", f"{folder}/out"]
        start = time.perf_counter()
        subprocess.run(command, check=True)
    seconds, peak = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"{count:,} records: {seconds:.0f} s, at most {peak >> 10:,} MiB")  # Linux counts in KiB


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
