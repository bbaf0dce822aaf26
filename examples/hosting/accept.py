"""Say why records are not those of a frozen submission in an isolated run: see docs/hosting.md.

python accept.py RECORDS SUBMISSION LEVEL SEED STATUS, after `conformance verify RECORDS` has ended with 0; STATUS is
what the container ended with.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from conformance import __version__
from conformance.implementations.source_files import Covers, SourceFiles

VERDICTS = (0, 1, 5)
"""Exit statuses of runs that came to their end."""


def refusals(records: Path, submission: Path, level: str, seed: int, status: int) -> Iterator[str]:
    """Yield what is not as the host has asked."""
    header, *verdicts, footer = map(json.loads, records.read_text().splitlines())
    if [header["kind"], footer["kind"]] != ["header", "footer"] or {"header", "footer"} & {v["kind"] for v in verdicts}:
        yield "the file holds more or less than one run"
        return
    if (header["level"], header["seed"]) != (level, seed):
        yield f"it ran level {header['level']} with seed {header['seed']}"
    if others := header.get("selection", {}).keys() - {"--impl"}:
        yield f"it ran a part of the level: {', '.join(sorted(others))}"
    if status not in VERDICTS or (footer["exit_status"], footer["interrupted"]) != (status, False):
        yield f"the run ended with {footer['exit_status']}, the container with {status}"
    versions = [line["versions"] for line in (header, *verdicts)]
    if {version.get("kernel-conformance") for version in versions} != {__version__}:
        yield f"another version of the suite than {__version__} wrote it"
    if any("process" in version for version in versions) or any(v.get("in_process") for v in verdicts):
        yield "a kernel's process was not isolated"
    covers = Covers()
    for verdict in verdicts:
        told = verdict.get("covers", {})
        covers = covers.with_more(Covers(loaded=told.get("loaded", {}), later=told.get("later", {})))
    frozen = SourceFiles(submission)
    if not all(frozen.ran(verdict["source"], covers) for verdict in verdicts if verdict.get("source")):
        yield "it verified another source than the frozen one"


def main(words: list[str]) -> int:
    """Print the refusals: 0 if there are none, else 1; 4 where the words or files cannot be used."""
    try:
        records, submission, level, seed, status = words
        Path(submission).stat()  # else it is hashed as a folder that holds nothing
        found = [*refusals(Path(records), Path(submission), level, int(seed), int(status))]
    except (OSError, ValueError) as problem:
        print(f"accept.py RECORDS SUBMISSION LEVEL SEED STATUS: {problem}", file=sys.stderr)
        return 4
    print("\n".join(f"REFUSED: {line}" for line in found) or "accepted")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
