"""Known-bad kernels that others wrote, from a class of defects and the vendor guide alone, run as users run theirs.

A file of `FOLDER` is a class: its implementations are known-bad kernels, those called `good-...` are known-good ones.
They go through a whole run of the suite, because the defect of many is not a wrong number: it is in storage, state,
memory, or refusals.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from conformance.implementations.source_files import Covers, SourceFiles
from conformance.inputs.recipes import progress
from conformance.results.reading import verdicts
from conformance.results.schema import covered

FOLDER = Path(__file__).parents[1] / "field"
GOOD = "good"
BAD = ("fail", "error")


@dataclass(slots=True)
class Examined:
    """A kernel of the collection, and its first failure, if any."""

    kernel: str
    family: str = ""
    """Class of the kernel's defect."""
    verdicts: int = 0
    """Number of cases that were run."""
    where: str = ""
    reason: str = ""

    @property
    def detected(self) -> bool:
        return bool(self.where)

    @property
    def good(self) -> bool:
        return self.kernel.startswith(GOOD)

    @property
    def as_expected(self) -> bool:
        """Tell whether a known-bad kernel is detected, or a known-good one passes some case and is not."""
        return self.detected != self.good and self.verdicts > 0


def files(families: Iterable[str] = (), folder: Path = FOLDER) -> list[Path]:
    """Return the files of some classes, or of all."""
    chosen = frozenset(families)
    found = sorted(path for path in folder.glob("*.py") if not path.name.startswith(("_", "test_")))
    return [path for path in found if not chosen or family_of(path) in chosen]


def family_of(path: Path) -> str:
    """Return the class of a file: `state.py` holds kernels of the class `state`."""
    return path.stem.replace("_", "-")


FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(map(family_of, files())))


def examine(
    paths: Sequence[Path], level: str, jobs: int, thorough: bool = True, only: Sequence[str] = ()
) -> list[Examined]:
    """Run every kernel of the files, or `only` some by their names, each until its first failure, in `jobs` runs at
    once. Known-good ones go through all cases of level smoke, and of `level` too only if `thorough`: they never fail,
    so that no failure ends them, and they took most of an hour.

    Raises RuntimeError, with the output of the run, if a run did not end.
    """
    if not paths:
        return []
    shares = [paths[place::jobs] for place in range(min(jobs, len(paths)))]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        tasks = [(share, level, thorough, Path(folder) / str(number), only) for number, share in enumerate(shares)]
        parts = pool.map(lambda task: _examined(*task), tasks)
        return [one for part in progress(parts, len(tasks), "parts of others' kernels") for one in part]


def _examined(paths: Sequence[Path], level: str, thorough: bool, records: Path, only: Sequence[str]) -> list[Examined]:
    """Run the small cases first, which detect most: only the other kernels need the many tests of `level` collected."""
    found = run(paths, "smoke", records.with_suffix(".smoke"), only)
    left = [one for one in found.values() if not one.detected and (thorough or not one.good or not one.verdicts)]
    if left and level != "smoke":
        families = {one.family for one in left}
        files = [path for path in paths if family_of(path) in families]
        found |= run(files, level, records.with_suffix(".all"), [one.kernel for one in left])
    return list(found.values())


def run(
    paths: Sequence[Path], level: str, records: Path, only: Sequence[str] = (), words: Sequence[str] = ()
) -> dict[str, Examined]:
    """Run kernels of the files, or some of them only, by their names; `words` go to the run.

    Raises RuntimeError, with the output of the run, if it did not end.
    """
    command = (
        *(sys.executable, "-m", "conformance", "run", *map(str, paths), "--level", level, f"--records={records}"),
        *(f"--impl={name}" for name in only),
        # a process for each file: the cases of all files share references
        *("--workers", str(len(paths)), "--first-failure", "-qq", *words),
    )
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    broken, read = {str(path) for path in paths}, [record for _, record in verdicts(records)]
    sources, covers = {path: SourceFiles(path) for path in paths}, covered(read)
    families = {
        key[1]: family_of(path)
        for key in {(record.implementation, record.source) for record in read}
        for path, files in sources.items()
        if files.ran(key[1], covers.get(key, Covers()))
    }
    found: dict[str, Examined] = {}
    for record in read:
        if record.implementation in broken:  # a file that cannot be used
            raise RuntimeError(f"{record.implementation}: {record.reason}")
        one = found.setdefault(record.implementation, Examined(record.implementation))
        one.family = one.family or families.get(record.source, "")
        one.verdicts += record.status in ("pass", *BAD)
        if record.status in BAD and not one.detected:
            named = (record.operator, record.check, record.problem, record.dtype, record.layout, record.distribution)
            one.where = " ".join(filter(None, named))
            one.reason = record.reason.splitlines()[0] if record.reason else record.status
    return found
