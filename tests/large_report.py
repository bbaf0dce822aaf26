"""What a report of many records takes: `python -m tests.large_report 200000 records.jsonl` multiplies the records of a
run, makes their report in a process of its own, and prints seconds and the most memory (Linux)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.report_samples import spread, written

REPORT = """
import sys, time
from pathlib import Path
from conformance.__main__ import main
start = time.perf_counter()
main(["report", *sys.argv[1:]])
(peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(f"{time.perf_counter() - start:.0f} s, at most {int(peak.split()[1]) >> 10:,} MiB")
"""


def main(count: int, seeds: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        known = [json.loads(line) for line in seeds.read_text(encoding="utf-8").splitlines()]
        path = written(Path(folder) / "records.jsonl", spread([seed for seed in known if "status" in seed], count))
        subprocess.run([sys.executable, "-c", REPORT, str(path), "-o", f"{folder}/out"], check=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
