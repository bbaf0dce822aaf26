"""`python -m tests.cluster_records NAME ...`: whether records of a cluster equal those of as many processes of this
machine, at level smoke, and how much longer it takes. Those of one process may differ: torch uses all cores there, and
its sums of many numbers depend on the number of threads."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.engine.test_cluster import Machines, compared, in_peace

LEVEL = "--level=smoke"


def seconds_of(*words: str) -> float:
    """Run a command, which must end well; return the seconds that it took."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "conformance", "run", *words, LEVEL, "-q"], check=True)
    return time.monotonic() - began


def main(names: list[str]) -> int:
    """Return 1 if a record differs."""
    in_peace()
    machines = Machines()
    machines.add("d0")
    machines.add("d1")
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder, name)) for name in ("one.jsonl", "two.jsonl", "ray.jsonl")]
        seconds_of(*names, f"--records={files[0]}")
        processes = seconds_of(*names, "-n2", f"--records={files[1]}")
        cluster = seconds_of(*names, f"--ray={machines.address}", f"--records={files[2]}")
        machines.close()
        one, two, ray = map(compared, files)
    for name, records in (("one process", one), ("two processes", two)):
        print(f"{records.total():,} records of {name}: of the cluster's {(ray - records).total()} differ")
    print(f"two processes {processes:.1f} s, two machines of a cluster {cluster:.1f} s: {cluster / processes:.2f}")
    for record in [*(ray - two)][:3]:
        print(f"of the cluster alone: {record}")
    return int(two != ray)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
