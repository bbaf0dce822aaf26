"""What documents say of a run, or of the code, is written by `python -m tests.documents`.

A block stands between `<!-- begin: NAME -->` and `<!-- end: NAME -->`; one whose source is not given stays as it is.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from conformance.cli import listing
from conformance.exit_codes import ExitCode
from conformance.reporting import training
from conformance.reporting.evidence import RunEvidence
from conformance.reporting.page.merge import load
from conformance.reporting.page.speeds import banners, speed_tables, speeds
from conformance.reporting.page.tables import Digest
from conformance.reporting.report import Report
from conformance.reporting.report_command import ReportError
from conformance.reporting.table import Table
from conformance.reporting.tally import ACCEPTS, Tally
from conformance.results.reading import verdicts
from conformance.results.schema import STATUSES, Record
from tests.calibration.known_kernels import KNOWN_GOOD, MUTANTS
from tests.conftest import ROOT

DOCUMENTS = [
    path for pattern in ("*.md", "docs/*.md", "golden/*.md", "impls/**/*.md") for path in sorted(ROOT.glob(pattern))
]
_BLOCK = re.compile(r"(<!-- begin: (\S+) -->\n)(.*?)(<!-- end: \2 -->)", re.DOTALL)


class Sources(NamedTuple):
    """Records of runs and their tally; printed output of the campaigns; what a benchmark run measured."""

    records: list[Record]
    tally: Tally
    mutation: str = ""
    false_alarms: str = ""
    times: Digest | None = None


def _counts(s: Sources) -> Iterator[str]:
    versions = {name: text for record in s.records for name, text in record.versions.items()}
    named = [f"{name} {versions[name]}" for name in ("python", "torch", "jax", "numpy") if name in versions]
    levels, totals = sorted({record.run_level for record in s.records}), s.tally.totals
    yield f"Level {', '.join(levels)}, {versions.get('processor', 'unknown processor')}, {', '.join(named)}."
    yield f"{totals.total():,} cases: {', '.join(f'{totals[name]:,} {name}' for name in STATUSES if totals[name])}."


def _report(s: Sources) -> Report:
    return Report(s.tally, RunEvidence(), [])


def _accuracy(s: Sources) -> Iterator[str]:
    profiles = _report(s).accuracy
    yield from profiles.markdown() if profiles else ()


def _listed(reasons: Mapping[str, Counter[str]]) -> Iterator[str]:
    for name, counts in sorted(reasons.items()):
        for reason, count in counts.most_common():
            yield f"- `{name}`: {re.sub(r'https?://[^ )]+', lambda url: f'<{url[0]}>', reason)} ({count:,} x)"


def _tables(make: Callable[[list[Record]], Iterable[Table | None]], s: Sources) -> Iterator[str]:
    for table in filter(None, make(s.records)):
        yield from (f"{table.title}:", "", *table.markdown(), "")


def _last(printed: str, words: str, of: str) -> Iterator[str]:
    """The line of a campaign's output that has its result."""
    result = next((line for line in printed.splitlines() if words in line), None)
    if result is None:
        raise ValueError(f"no line with {words.strip()!r} in the printed output that was given for {of}")
    yield f"{of}: {result}."


def _times(s: Sources) -> Iterator[str]:
    """Say whether to believe the machine, then give the tables of the page."""
    assert s.times is not None
    found = speeds(s.times)
    for banner in banners(found):
        yield from (f"- {line}" for line in (banner.text, *banner.reasons))
    for table in speed_tables(s.times, found):
        yield from ("", f"### {table.title}", "", *table.markdown())


def _operators(_: Sources) -> Iterator[str]:
    first, *columns = ("operator", "inputs", "returns", "parameters")
    rows = (
        (row["name"], *(f"`{row[column].replace(' ', ', ')}`" for column in columns))
        for row in listing.KINDS["operators"]([])
    )
    yield from Table("", (first, *columns), tuple(rows), 4).markdown()


def _failure(_: Sources) -> Iterator[str]:
    """Return what a run prints when the README's example swaps the strides."""
    example = (ROOT / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    yield from _failure_of("acme", example.replace(":: stride[0], :: stride[1]", ":: stride[1], :: stride[0]"))


def _undeclared(_: Sources) -> Iterator[str]:
    """Return what a run prints of the TF32 kernel that does not say so."""
    (example,) = (text for name, text in contract_examples() if name == "tf32")
    yield from _failure_of("tf32", UNDECLARED.sub("", example))


UNDECLARED = re.compile(r", contract=Contract\([^)]*\)")


def contract_examples() -> list[tuple[str, str]]:
    """Name and content of each file that declares a contract in the documents."""
    pages = "contracts.md", "matrix-units.md", "transforms.md", "rounding.md"
    page = "".join((ROOT / "docs" / name).read_text() for name in pages)
    return [(name, text) for text, name in re.findall(r"```python\n(# (\w+)\.py\n.*?)```", page, re.DOTALL)]


def _failure_of(name: str, content: str) -> Iterator[str]:
    """The failures that a run of a file prints, as a block."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"{name}.py").write_text(content)
        command = [sys.executable, "-m", "conformance", "run", f"{name}.py"]
        found = os.environ | {"PYTHONPATH": str(ROOT)}
        printed = subprocess.run(command, cwd=folder, env=found, capture_output=True, text=True).stdout
    failure = re.search(rf"^{name}: .*?^reproduce: .*?$", printed, re.DOTALL | re.MULTILINE)
    assert failure, printed
    lines = (textwrap.wrap(line, 110, subsequent_indent="    ") for line in failure[0].splitlines())
    yield from ("```text", *chain.from_iterable(lines), "```")


BLOCKS: dict[str, tuple[str, Callable[[Sources], Iterable[str]]]] = {
    "counts": ("records", _counts),
    "matrix": ("records", lambda s: _report(s).matrix.markdown()),
    "accuracy": ("records", _accuracy),
    "accepted": ("records", lambda s: _listed(s.tally.reasons[ACCEPTS])),
    "waived": ("records", lambda s: _listed(s.tally.reasons["waived"])),
    "training": ("records", partial(_tables, lambda records: [training.table(records)])),
    "memory": ("records", partial(_tables, training.memory_tables)),
    "mutation": ("mutation", lambda s: _last(s.mutation, "mutation score ", f"{len(MUTANTS):,} known-bad kernels")),
    "false-alarms": (
        "false_alarms",
        lambda s: _last(s.false_alarms, " verdicts, ", f"{len(KNOWN_GOOD)} known-good kernels"),
    ),
    "times": ("times", _times),
    "operators": ("", _operators),
    "failure": ("", _failure),
    "undeclared": ("", _undeclared),
}
"""Name of a block -> the source that it needs (none: the code itself), and its lines."""


def blocks(text: str) -> dict[str, str]:
    """The generated blocks of a document, by name."""
    return {name: body for _, name, body, _ in _BLOCK.findall(text)}


def render(name: str, sources: Sources) -> str:
    return "\n" + "\n".join(BLOCKS[name][1](sources)).strip("\n") + "\n\n"


def _printed(path: Path) -> str:
    """Raises ValueError naming a file that is no text, or cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(f"{path}: {problem}") from None


def main(words: Sequence[str] | None = None) -> int:
    """Rewrite the blocks whose sources are given: 0, or 4 where one is not what it is given for, and nothing is
    written."""
    parser = argparse.ArgumentParser(prog="python -m tests.documents")
    parser.add_argument("records", nargs="*", type=Path, metavar="RECORDS", help="files of pytest --records")
    for name in ("mutation", "false-alarms"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"output of tests.calibration {name}")
    parser.add_argument("--times", type=Path, metavar="FILE", help="file of pytest --benchmark-json")
    arguments = parser.parse_args(words)
    try:
        texts = written(arguments)
    except (ValueError, ReportError) as problem:
        print(f"documents: {problem}; nothing written", file=sys.stderr)
        return ExitCode.UNUSABLE
    for document, (text, names) in texts.items():
        document.write_text(text)
        print(f"{document.relative_to(ROOT)}: {', '.join(names) or 'nothing'} written")
    return ExitCode.GOOD


def written(arguments: argparse.Namespace) -> dict[Path, tuple[str, list[str]]]:
    """Document -> its new text, and the names of the blocks that were made anew. Raises ValueError."""
    records, tally = [], Tally()
    for record in (record for path in arguments.records for _, record in verdicts(path)):
        records.append(record)
        tally.add(record)
    given = {name: getattr(arguments, name) for name in ("mutation", "false_alarms")}
    times = Digest(load([arguments.times])) if arguments.times else None
    sources = Sources(records, tally, **{name: _printed(path) for name, path in given.items() if path}, times=times)
    texts = {}
    for document in DOCUMENTS:
        text, names = document.read_text(), []
        for name, old in blocks(text).items():
            if getattr(sources, BLOCKS[name][0] or "tally"):
                begin = f"<!-- begin: {name} -->\n"
                try:
                    text = text.replace(begin + old, begin + render(name, sources))
                except ValueError as problem:
                    raise ValueError(f"{document.relative_to(ROOT)}, block {name}: {problem}") from None
                names.append(name)
        texts[document] = text, names
    return texts


if __name__ == "__main__":
    sys.exit(main())
