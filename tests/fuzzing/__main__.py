"""Fuzz one target until the time is over or an input breaks it, which is then written to a file `crash-...`.

    pip install atheris
    TMPDIR=/dev/shm python -m tests.fuzzing records --seconds 3600 --corpus FOLDER    # inputs are files: in memory

Coverage guides the bytes (atheris, libFuzzer). The same targets run for a moment in tests/fuzzing/test_bytes.py;
an input that is found here goes there, or into the tests of what it broke. A file as the last argument is run alone: a
crash again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import zipfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["conformance", "zipfile", "numpy.lib"]):
    from tests.fuzzing.targets import TARGETS

parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__.splitlines()[0])
parser.add_argument("target", choices=TARGETS)
parser.add_argument("--seconds", type=int, default=3600, metavar="N", help="how long (default: 3600)")
parser.add_argument("--corpus", type=Path, metavar="FOLDER", help="where interesting inputs are kept; default: nowhere")
parser.add_argument("input", nargs="?", type=Path, help="run this file alone")
arguments = parser.parse_args()
target = TARGETS[arguments.target]
# no mutation would get past a checksum
zipfile.ZipExtFile._update_crc = lambda self, data: None  # type: ignore[attr-defined]
if arguments.input:
    target.read(arguments.input.read_bytes())
    sys.exit()
folder = arguments.corpus or Path(tempfile.mkdtemp())
folder.mkdir(parents=True, exist_ok=True)
for place, content in enumerate(target.samples()):
    (folder / f"sample-{place}").write_bytes(content)
limits = [f"-max_total_time={arguments.seconds}", "-timeout=30", "-rss_limit_mb=2048", "-max_len=65536"]
atheris.Setup([sys.argv[0], *limits, str(folder)], target.read)
atheris.Fuzz()
