"""Units by number: what `--unit` names, which of the parts of a command belong to it, and whether units make a run."""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, TypeVar

from conformance.execution.selection import SelectionError
from conformance.implementations.source_files import is_code
from conformance.results.reading import shown
from conformance.results.schema import Header, Part, Record

T = TypeVar("T")
Divided = tuple[Any, ...]
"""Level, seed, method and options of a run that was divided into units, and their number."""
MAX_NAMED = 5
"""Most units of a kind that a line names with their files."""


@dataclass(frozen=True, slots=True)
class UnitRun:
    """A unit that has come to its end.

    run    tells the units of a run from those of others
    plan   the digest of the units that the run was divided into
    file   name of its file of records
    code   implementation, name of a file of its code (empty for its source) and digest, of all records
    """

    run: Divided
    number: int
    plan: str
    file: str
    code: set[tuple[str, str, str]] = field(default_factory=set)

    @classmethod
    def of(cls, header: Header, file: str) -> UnitRun | None:
        """Return the unit that a run was, by its header; None if it was not divided."""
        if header.unit is None:
            return None
        run = header.level, header.seed, header.method, tuple(sorted(header.selection.items())), header.unit.count
        return cls(run, header.unit.number, header.plan, file)

    def take(self, record: Record) -> None:
        """Note the code that a record is about. What is no code, such as a log that it writes, may change."""
        if record.source:
            files = record.covers.files if record.covers else {}
            code = {"": record.source} | {name: digest for name, digest in files.items() if is_code(name)}
            self.code.update((record.implementation, name, digest) for name, digest in code.items())

    def __str__(self) -> str:
        return f"{self.file} (unit {self.number})"


def declare(parser: argparse.ArgumentParser, parts: str) -> None:
    """Add `--unit` for a command that has such parts."""
    parser.add_argument("--unit", metavar="K/N", help=f"only every Nth of its {parts}, from the Kth on")


def declare_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command whose units can be carried out on a cluster."""
    parser.add_argument("--ray", metavar="ADDRESS", help="a unit for each device of a Ray cluster; auto: the one here")
    parser.add_argument("--resource", metavar="NAME", help="with --ray: what the cluster calls the device (CPU)")


def read(text: str | None) -> Part | None:
    """Return the unit that --unit names. Raises SelectionError."""
    if text is None:
        return None
    written = re.fullmatch(r"([1-9]\d{0,6})/([1-9]\d{0,6})", text, re.ASCII)
    number, count = map(int, written.groups()) if written else (1, 0)
    if number > count:
        raise SelectionError(f"--unit {text}: give the unit's number, from 1, and how many there are: --unit 3/8")
    return Part(number=number, count=count)


def share(parts: Iterable[T], unit: Part | None) -> Iterator[T]:
    """Yield the parts of a unit, or all: neighbours, which take about as long as each other, are in different units."""
    return islice(parts, unit.number - 1, None, unit.count) if unit else iter(parts)


def missing(units: Iterable[UnitRun]) -> Iterator[str]:
    """Yield a line for each run whose units are not all here: what is missing was not verified."""
    for (*_, count), parts in _runs(units):
        if absent := sorted({*range(1, count + 1)} - {unit.number for unit in parts}):
            yield f"{len(absent):,} of {count:,} units are missing, whose cases were not verified: {_listed(absent)}"


def mixed(units: Iterable[UnitRun]) -> Iterator[str]:
    """Yield lines on runs whose units do not belong together: their plans differ, so that some cases may be in none, or
    their kernels do. Runs of different days, of which each has all of its units, are none."""
    for (*_, count), parts in _runs(units):
        plans = defaultdict[str, list[UnitRun]](list)
        for unit in parts:
            plans[unit.plan].append(unit)
        if len(plans) > 1 and any(len({unit.number for unit in of_plan}) < count for of_plan in plans.values()):
            yield (
                f"units are of different plans, so that cases may be in none of them: {_apart(plans.values())}; run "
                "them again, each with the same --costs and kernels"
            )
            yield from _changed(parts)
        else:
            for of_plan in plans.values():
                yield from _changed(of_plan)


def _changed(units: Sequence[UnitRun]) -> Iterator[str]:
    """Yield a line for each implementation whose code some of these units have in one state, and others in another."""
    states = defaultdict[tuple[str, str], defaultdict[str, list[UnitRun]]](lambda: defaultdict(list))
    for unit in units:
        for implementation, name, digest in sorted(unit.code):
            states[implementation, name][digest].append(unit)
    changed = set[str]()
    for (implementation, name), by_digest in sorted(states.items()):
        numbers = [{unit.number for unit in of_digest} for of_digest in by_digest.values()]
        if implementation not in changed and any(having != set().union(*numbers) for having in numbers):
            changed.add(implementation)
            what = f"another {shown(name)}" if name else "another source"
            yield (
                f"{shown(implementation)}: units are not those of one kernel, some have {what}: "
                f"{_apart(by_digest.values())}; run them again, each with the same kernel"
            )


def _runs(units: Iterable[UnitRun]) -> Iterable[tuple[Divided, list[UnitRun]]]:
    runs = defaultdict[Divided, list[UnitRun]](list)
    for unit in units:
        runs[unit.run].append(unit)
    return runs.items()


def _apart(kinds: Iterable[Sequence[UnitRun]]) -> str:
    """Return units in words, by kind: `1.jsonl (unit 1), 3.jsonl (unit 3) | 2.jsonl (unit 2)`."""
    texts = []
    for units in kinds:
        more = [f"{len(units) - MAX_NAMED:,} more"] if len(units) > MAX_NAMED else []
        texts.append(", ".join([*map(str, units[:MAX_NAMED]), *more]))
    return " | ".join(texts)


def _listed(numbers: Sequence[int]) -> str:
    """Return numbers in words, neighbours as ranges: `2, 5-7`."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
