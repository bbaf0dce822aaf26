"""The figures that a report shows: counts, the matrix, findings, profiles, traffic."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from conformance.diagnosis.where import Where, named, seen
from conformance.dtypes import dtype_place
from conformance.problems import LEVELS
from conformance.reporting import accuracy, modules
from conformance.reporting.evidence import RunEvidence
from conformance.reporting.failures import has_no_kernel
from conformance.reporting.groups import Group, conditions, group
from conformance.reporting.kernel_verdicts import KernelVerdict, kernel_verdicts, total
from conformance.reporting.page.model import Machine, Results, Row, operator_place
from conformance.reporting.table import Table, many
from conformance.reporting.tally import RAN, Tally, exposure_of
from conformance.reporting.terminal import ACCEPTS, TOO_COARSE
from conformance.results.schema import VERIFIED, Record

WORST_FIRST = ("fail", "error", "waived", "pass")
"""Statuses, of which the first that occurs in a cell of the matrix is the one that the cell shows."""
NAMED = 3
"""Largest number of implementations or machines that a title names."""
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
        self.named = [(self.name(verdict.row), verdict.record) for verdict in results.verdicts]
        """Every record, with the name of its row."""
        self.tally = Tally()
        """Totals, as at the end of a run, by these names."""
        for name, record in self.named:
            self.tally.add(record, name)
        self.totals = self.tally.totals
        """Cases by status."""
        self.verified = sum(self.totals[status] for status in VERIFIED)
        ran = {v.record.operator for v in results.verdicts if v.record.status in RAN}
        self.operators = sorted(ran - {""}, key=operator_place)
        """Operators of which a case ran."""
        self._records: defaultdict[Row, list[Record]] = defaultdict(list)
        for verdict in results.verdicts:
            self._records[verdict.row].append(verdict.record)

    def name(self, row: Row) -> str:
        """Return the name of a row: with its device if the implementation ran on several machines, and with the whole
        machine if several devices have that name."""
        name, here = row
        machines = [machine for other, machine in self._places if other == name]
        if len(machines) < 2:
            return name
        return f"{name} on {here.label if sum(m.short == here.short for m in machines) > 1 else here.short}"

    @cached_property
    def exceeding(self) -> list[tuple[str, str]]:
        """Rows, by name, and dtypes with an error that exceeds the contract: it says nothing about precision."""
        found = {(n, r.dtype) for n, r in self.named for profile in r.profile.values() if not profile.share <= 1}
        return sorted(found, key=lambda pair: (pair[0], dtype_place(pair[1])))

    @cached_property
    def matrix(self) -> dict[tuple[Row, str], list[Tile]]:
        """(Row, operator) -> tiles by dtype."""
        counts: defaultdict[tuple[Row, str, str], Counter[str]] = defaultdict(Counter)
        for v in (verdict for verdict in self.results.verdicts if verdict.record.status in RAN):
            counts[v.row, v.record.operator, v.record.dtype][v.record.status] += v.record.cases
        found: defaultdict[tuple[Row, str], list[Tile]] = defaultdict(list)
        for (row, operator, dtype), held in sorted(counts.items(), key=lambda item: dtype_place(item[0][2])):
            found[row, operator].append(Tile(dtype, held))
        return dict(found)

    def together(self, row: Row, operator: str = "") -> Tile | None:
        """Return one tile for all dtypes of an operator, or for everything that ran of a row; None if nothing did."""
        own = (tiles for (one, name), tiles in self.matrix.items() if one == row and operator in ("", name))
        counts = sum((tile.counts for tiles in own for tile in tiles), Counter())
        return Tile("", counts) if counts else None

    @cached_property
    def groups(self) -> list[tuple[Row, list[Group]]]:
        """Failures of each row, grouped by cause."""
        rows = sorted(self._records.items())
        return [(row, found) for row, records in rows if (found := group(records, self._evidence[row]))]

    @cached_property
    def verdicts(self) -> list[KernelVerdict]:
        """Verdicts on every kernel of every row, as at the end of a run."""
        failed, found = dict(self.groups), []
        for row, records in sorted(self._records.items()):
            tally = Tally()
            for record in records:
                tally.add(record)
            for one in kernel_verdicts(tally, failed.get(row, ()), self._evidence[row]):
                found.append(replace(one, implementation=self.name(row)))
        return sorted(found, key=lambda one: (one.implementation, operator_place(one.operator)))

    @property
    def idle(self) -> str:
        """Sentence on the implementations of which nothing ran; empty if there are none."""
        names = [self.name(row) for row in self.rows if not self.together(row)]
        return f"Nothing ran of {_named(names, 'implementation')}." if names else ""

    def place(self, verdict: KernelVerdict) -> int:
        """Return the place among all groups of the first group of a kernel's failures."""
        every = [(self.name(row), one.operators) for row, found in self.groups for one in found]
        own = (n for n, (name, its) in enumerate(every) if name == verdict.implementation and verdict.operator in its)
        return next(own, 0)

    @cached_property
    def _evidence(self) -> dict[Row, RunEvidence]:
        return {row: RunEvidence(records) for row, records in self._records.items()}

    def where(self, row: Row, one: Group) -> Sequence[Where]:
        """Return the conditions under which a group of a row fails; empty if none is known."""
        return conditions(one, self._evidence[row])

    def heading(self, row: Row, one: Group) -> tuple[str, str]:
        """Return the heading of a group of a row: what fails, how and where; and the evidence for where, which is empty
        if that is not known."""
        operators = _named([*filter(None, one.operators)], "operator")
        where = self.where(row, one)
        said = f"{one.text}, where {named(where)}" if where else one.text
        observed = seen(where, (one.plainer or one.smallest).descriptor) if where else ""
        return f"{operators}: {said}" if operators else said, observed

    @cached_property
    def modules(self) -> Table | None:
        """Table with a row for each torch module; None if there are none."""
        failed, rows = dict(self.groups), []
        for verdict in filter(lambda one: modules.is_own(one.record), self.results.verdicts):
            row, together = verdict.row, self.together(verdict.row)
            counts = together.counts if together else Counter()
            rows.append(
                modules.row(verdict.record, counts, failed.get(row, ()), partial(self.where, row), self.name(row))
            )
        return modules.table(rows) if rows else None

    @cached_property
    def grouped(self) -> dict[int, tuple[int, Group]]:
        """Id of a failing record -> the place of its group among all groups, and the group."""
        every = enumerate(one for _, found in self.groups for one in found)
        return {id(record): (place, one) for place, one in every for record in one.records}

    def reasons(self, status: str, refused: bool = False) -> list[tuple[str, int, str]]:
        """Return (row, cases, reason on one line) for a status, most cases first, either refused at run time or not.
        Operators that are not implemented are in no row."""
        found: Counter[tuple[str, str]] = Counter()
        for name, record in self.named:
            if record.status == status and record.refused == refused and not has_no_kernel(record):
                found[name, record.headline] += record.cases
        return sorted(((n, count, why) for (n, why), count in found.items()), key=lambda r: (r[0], -r[1], r[2]))

    @cached_property
    def findings(self) -> list[Table]:
        """Tables of weaker contracts, of reasons with their cases, of unverified outputs, and of invalid arguments."""
        accepted, unverified = (
            [(n, c, why) for n, held in sorted(found.items()) for why, c in sorted(held.items())]
            for found in (self.tally.accepted, self.tally.unverified)
        )
        kinds = {
            "Not verified": [(name, cases, f"{output}: {TOO_COARSE}") for name, cases, output in unverified],
            "Waived": self.reasons("waived"),
            "Unavailable": self.reasons("unavailable"),
            ACCEPTS.capitalize(): accepted,
        }
        tables = [_reasons(title, rows) for title, rows in kinds.items() if rows]
        weak = tuple((*key, ", ".join(sorted(places))) for key, places in sorted(self.tally.weak.items()))
        heads = ("implementation", "weaker than fp32 in", "operators")
        return [*([Table("Weaker contracts", heads, weak, 3)] if weak else []), *tables]

    @cached_property
    def unsupported(self) -> Table | None:
        """Table of what implementations do not take: operators that they do not have, cases that they do not declare,
        and calls that they refuse. None if there is nothing."""
        missing = self.tally.not_implemented
        rows = [(n, held.total(), f"does not implement {', '.join(held)}") for n, held in missing.items() if held]
        rows += self.reasons("unsupported")
        refused = self.reasons("unsupported", refused=True)
        rows += [(n, count, f"refused when called: {why}") for n, count, why in refused]
        return _reasons("Unsupported", rows) if rows else None

    @property
    def machines(self) -> Table:
        """Table of machines, with the implementations that ran there and the versions that were found."""
        versions: defaultdict[Machine, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for verdict in self.results.verdicts:
            for name, text in verdict.record.versions.items():
                if verdict.machine.device and name not in ("device", "machine", "system", "processor"):
                    versions[verdict.machine][name].add(text)
        rows = []
        for machine, found in sorted(versions.items()):
            names = ", ".join(sorted({name for name, where in self.rows if where == machine})) or "none"
            words = ", ".join(f"{name} {' and '.join(sorted(texts))}" for name, texts in sorted(found.items()))
            rows.append((machine.label, names, words))
        return Table("Versions", ("machine", "implementations", "versions"), tuple(rows), 3)

    @property
    def lead(self) -> str:
        """All verdicts in one line."""
        said = total(self.verdicts) if self.verdicts else ""
        nothing = "" if self.verified else "Nothing was verified."
        errors = f"{many(len(self.results.errors), 'defect')} in the files" if self.results.errors else ""
        return " ".join(filter(None, (nothing, ", but ".join(filter(None, (said, errors))))))

    @property
    def leads(self) -> bool:
        """True if the lead says more than the verdicts below it."""
        failing = any(one.failed for one in self.verdicts)
        return (failing and len(self.verdicts) > 1) or bool(self.results.errors) or not self.verified

    @property
    def title(self) -> str:
        """Names of the implementations and operators that were verified."""
        names = [*dict.fromkeys(one.implementation for one in self.verdicts)]
        which = f" ({many(len(self.operators), 'operator')})" if self.operators else ""
        which = f" {self.operators[0]}" if len(self.operators) == 1 else which
        return f"Conformance of {_named(names, 'implementation')}{which}" if names else "Conformance of kernels"

    @property
    def long_title(self) -> str:
        """The result, and when and where it was reached."""
        return " · ".join((self.lead, *self.facts[:2]))

    @property
    def facts(self) -> list[str]:
        """Facts about the runs: when and where they were, and of what level and seed."""
        periods, machines = self.results.periods, sorted({row[1] for row, operator in self.matrix if operator})
        seeds = sorted({record.seed for _, record in self.named if record.seed is not None})
        return [
            *([f"{periods[0]}" + f" (the first of {len(periods)} runs)" * (len(periods) > 1)] if periods else []),
            *([_named([one.label for one in machines], "machine", "; ")] if machines else []),
            *([f"level {', '.join(self.levels)}"] if self.levels else []),
            *([f"only the cases of {', '.join(self.results.chosen)}"] if self.results.chosen else []),
            *([f"seed {', '.join(map(str, seeds))}"] if seeds else []),
            *sorted({exposure_of(record) for _, record in self.named} - {""}),
        ]

    @property
    def levels(self) -> list[str]:
        """Levels that runs were asked for, the lowest first."""
        found = {record.run_level for _, record in self.named} - {""}
        return sorted(found, key=lambda name: (LEVELS.index(name) if name in LEVELS else len(LEVELS), name))


def _named(names: Sequence[str], noun: str, between: str = ", ") -> str:
    """Return a few names, or how many there are if they are more."""
    return between.join(names) if len(names) <= NAMED else many(len(names), noun)


def _reasons(title: str, rows: Sequence[tuple[str, int, str]]) -> Table:
    return Table(title, ("implementation", "reason", "cases"), tuple((n, why, f"{c:,}") for n, c, why in rows), 2)


def profiles(digest: Digest) -> Table | None:
    """Return the accuracy profile, as at the end of a run, without rows that exceed their contract."""
    rows = [row for row in accuracy.rows(digest.tally.profiles) if row[:2] not in digest.exceeding]
    rows.sort(key=lambda row: (row[0], dtype_place(row[1])))
    names = ", ".join(f"{name} {dtype}" for name, dtype in digest.exceeding)
    note = accuracy.NOTE + (f"; left out, because errors exceed the contract: {names}" if names else "")
    return Table("Accuracy profile", accuracy.HEADS, tuple(rows), 2, note) if rows else None
