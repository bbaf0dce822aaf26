"""Results as a page shows them: the report of implementations on machines, and where and when it came about."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from msgspec import structs

from conformance.dtypes import dtype_place
from conformance.problems import LEVELS
from conformance.reporting import modules
from conformance.reporting.evidence import RunEvidence
from conformance.reporting.groups import Group
from conformance.reporting.page.model import Machine, Results, Row
from conformance.reporting.report import KernelVerdict, Report, few, total
from conformance.reporting.table import Table, many
from conformance.reporting.tally import RAN, Tally, exposure_of, operator_place
from conformance.results.schema import VERIFIED

WORST_FIRST = ("fail", "error", "waived", "pass")
"""Statuses, of which the first that occurs in a cell of the matrix is the one that the cell shows."""
PASSING = 8
"""Largest number of passing kernels that have a line each."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A cell of the matrix: cases that ran for an implementation and an operator, in a dtype or in all (empty)."""

    dtype: str
    counts: Counter[str]

    @property
    def status(self) -> str:
        """The status that the cell shows."""
        return next(status for status in WORST_FIRST if self.counts[status])

    @property
    def failing(self) -> int:
        return self.counts["fail"] + self.counts["error"]

    def label(self, implementation: str, operator: str) -> str:
        """Return in words the cell's place and counts."""
        counts = ", ".join(f"{self.counts[status]:,} {status}" for status in RAN if self.counts[status])
        return f"{implementation}, {operator}, {self.dtype or 'all dtypes'}: {counts}"


class Digest:
    """Everything that a report shows about some results."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.every_row = sorted({v.row for v in results.verdicts})
        """Implementations on machines, and files that could not be used."""
        self.rows = sorted({v.row for v in results.verdicts if v.record.operator})
        """Implementations on machines."""
        self._places = frozenset({*self.rows, *(c.row for c in results.clocked)})
        self.records = []
        """Every record, under the name of its row."""
        tally = Tally()
        for verdict in results.verdicts:
            record, name = verdict.record, self.name(verdict.row)
            self.records.append(
                record if record.implementation == name else structs.replace(record, implementation=name)
            )
            tally.add(self.records[-1])
        failed = [record for record in self.records if record.status in ("fail", "error")]
        self.report = Report(tally, RunEvidence(self.records), failed)
        self.totals = tally.totals
        """Cases by status."""
        self.verified = sum(self.totals[status] for status in VERIFIED)
        self.operators = sorted({operator for _, operator in tally.ran if operator}, key=operator_place)
        """Operators of which a case ran."""

    def name(self, row: Row) -> str:
        """Return the name of a row: with its device if the implementation ran on several machines, and with the whole
        machine if several devices have that name."""
        name, here = row
        machines = [machine for other, machine in self._places if other == name]
        if len(machines) < 2:
            return name
        return f"{name} on {here.label if sum(m.short == here.short for m in machines) > 1 else here.short}"

    def tiles(self, row: Row, operator: str) -> list[Tile]:
        """Return the tiles of an operator by dtype."""
        dtypes = self.report.tally.ran.get((self.name(row), operator), {})
        places = sorted(dtypes.items(), key=lambda item: dtype_place(item[0]))
        return [Tile(dtype, counts) for dtype, counts in places if counts]  # cases that were not run have no tile

    def together(self, row: Row, operator: str = "") -> Tile | None:
        """Return one tile for all dtypes of an operator, or for everything that ran of a row; None if nothing did."""
        counts = self.report.counts(self.name(row), operator)
        return Tile("", counts) if counts else None

    @cached_property
    def groups(self) -> list[tuple[str, list[Group]]]:
        """Groups of failures by implementation."""
        return [(name, [*groups]) for name, groups in groupby(self.report.groups, lambda group: group.implementation)]

    @property
    def idle(self) -> str:
        """Sentence on the implementations of which nothing ran; empty if there are none."""
        names = [self.name(row) for row in self.rows if not self.together(row)]
        return f"Nothing ran of {few(names, 'implementation')}." if names else ""

    def place(self, verdict: KernelVerdict) -> int:
        """Return the place among all groups of the first group of a kernel's failures."""
        kernel_groups = {
            id(group) for group in self.report.of(verdict.implementation) if verdict.operator in group.operators
        }
        return next((place for place, group in enumerate(self.report.groups) if id(group) in kernel_groups), 0)

    @cached_property
    def modules(self) -> Table | None:
        """Table with a row for each torch module; None if there are none."""
        rows = self.report.modules(filter(modules.is_own, self.records))
        return modules.table(rows) if rows else None

    @cached_property
    def grouped(self) -> dict[int, int]:
        """Id of a failing record -> the place of its group among all groups."""
        return {id(record): place for place, group in enumerate(self.report.groups) for record in group.records}

    @property
    def machines(self) -> Table:
        """Table of machines, with the implementations that ran there and the versions that were found."""
        versions: defaultdict[Machine, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for verdict in self.results.verdicts:
            for name, text in verdict.record.versions.items():
                if verdict.machine.device and name not in ("device", "machine", "system", "processor"):
                    versions[verdict.machine][name].add(text)
        rows = []
        for machine, texts_by_name in sorted(versions.items()):
            names = ", ".join(sorted({name for name, where in self.rows if where == machine})) or "none"
            words = ", ".join(f"{name} {' and '.join(sorted(texts))}" for name, texts in sorted(texts_by_name.items()))
            rows.append((machine.label, names, words))
        return Table("Versions", ("machine", "implementations", "versions"), tuple(rows), 3)

    @property
    def lead(self) -> str:
        """All verdicts in one line."""
        said = total(self.report.verdicts) if self.report.verdicts else ""
        nothing = "" if self.verified else "Nothing was verified."
        errors = f"{many(len(self.results.errors), 'defect')} in the files" if self.results.errors else ""
        return " ".join(filter(None, (nothing, ", but ".join(filter(None, (said, errors))))))

    @property
    def leads(self) -> bool:
        """True if the lead says more than the verdicts below it."""
        failing = any(verdict.failed for verdict in self.report.verdicts)
        return (failing and len(self.report.verdicts) > 1) or bool(self.results.errors) or not self.verified

    @property
    def title(self) -> str:
        """Names of the implementations and operators that were verified."""
        names = [*dict.fromkeys(verdict.implementation for verdict in self.report.verdicts)]
        which = f" ({many(len(self.operators), 'operator')})" if self.operators else ""
        which = f" {self.operators[0]}" if len(self.operators) == 1 else which
        return f"Conformance of {few(names, 'implementation')}{which}" if names else "Conformance of kernels"

    @property
    def long_title(self) -> str:
        """The result, and when and where it was reached."""
        return " · ".join((self.lead, *self.facts[:2]))

    @property
    def facts(self) -> list[str]:
        """Facts about the runs: when and where they were, and of what level and seed."""
        periods, machines = self.results.periods, sorted({row[1] for row in self.rows if self.together(row)})
        seeds = sorted({record.seed for record in self.records if record.seed is not None})
        return [
            *([f"{periods[0]}" + f" (the first of {len(periods)} runs)" * (len(periods) > 1)] if periods else []),
            *([few([machine.label for machine in machines], "machine", "; ")] if machines else []),
            *([f"level {', '.join(self.levels)}"] if self.levels else []),
            *([f"only the cases of {', '.join(self.results.chosen)}"] if self.results.chosen else []),
            *([f"seed {', '.join(map(str, seeds))}"] if seeds else []),
            *sorted({exposure_of(record) for record in self.records} - {""}),
        ]

    @property
    def levels(self) -> list[str]:
        """Levels that runs were asked for, the lowest first."""
        names = {record.run_level for record in self.records} - {""}
        return sorted(names, key=lambda name: (LEVELS.index(name) if name in LEVELS else len(LEVELS), name))
