"""What results amount to: counts, the matrix, findings, profiles, traffic."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property, partial

from conformance.problems import LEVELS
from conformance.reporting import accuracy, modules
from conformance.reporting.evidence import RunEvidence
from conformance.reporting.groups import Group, group, located
from conformance.reporting.page.model import Machine, Results, Row, dtype_place, operator_place
from conformance.reporting.table import Table, many
from conformance.reporting.tally import Tally, weakness_of
from conformance.reporting.terminal import ACCEPTS, LETTERS
from conformance.results.schema import STATUSES, VERIFIED, Record

WORST_FIRST = ("fail", "error", "waived", "pass", "unsupported", "unavailable")
"""A cell of the matrix is shown as the first of these that it holds."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A cell of the matrix: an implementation, an operator and a dtype (empty for cases that were not attempted)."""

    dtype: str
    counts: Counter[str]
    weak: str = ""
    """What contracts are weaker in than fp32."""

    @property
    def status(self) -> str:
        """The one that it is shown as."""
        return next(status for status in WORST_FIRST if self.counts[status])

    @property
    def cells(self) -> list[tuple[str, str]]:
        """Its counts as in other documents, each with its status."""
        return [(status, f"{self.counts[status]}{LETTERS[status]}") for status in STATUSES if self.counts[status]]

    @property
    def failing(self) -> int:
        return self.counts["fail"] + self.counts["error"]

    def label(self, implementation: str, operator: str) -> str:
        """What it is and holds, in words."""
        counts = ", ".join(f"{self.counts[status]:,} {status}" for status in STATUSES if self.counts[status])
        weak = f"; contract: {self.weak}" if self.weak else ""
        return f"{implementation}, {operator}, {self.dtype or 'not attempted'}: {counts}{weak}"


class Digest:
    """Everything that a report shows of some results."""

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
        """What the end of a run says, by these names."""
        for name, record in self.named:
            self.tally.add(record, name)
        self.totals = self.tally.totals
        """Cases by status."""
        self.cases = self.totals.total()
        self.verified = sum(self.totals[status] for status in VERIFIED)
        self.operators = sorted({v.record.operator for v in results.verdicts} - {""}, key=operator_place)

    def name(self, row: Row) -> str:
        """A row in one piece of text: with its device where the implementation ran on several machines, and with all
        of the machine where the devices have one name."""
        name, here = row
        machines = [machine for other, machine in self._places if other == name]
        if len(machines) < 2:
            return name
        return f"{name} on {here.label if sum(m.short == here.short for m in machines) > 1 else here.short}"

    @cached_property
    def exceeding(self) -> list[tuple[str, str]]:
        """Names of rows and dtypes of which an error exceeds the contract: their worst says nothing of precision."""
        found = {(n, r.dtype) for n, r in self.named for profile in r.profile.values() if not profile.share <= 1}
        return sorted(found, key=lambda pair: (pair[0], dtype_place(pair[1])))

    @cached_property
    def matrix(self) -> dict[tuple[Row, str], list[Tile]]:
        """(Row, operator) -> tiles by dtype."""
        counts: defaultdict[tuple[Row, str, str], Counter[str]] = defaultdict(Counter)
        weak: defaultdict[tuple[Row, str, str], set[str]] = defaultdict(set)
        for v in self.results.verdicts:
            place = v.row, v.record.operator, v.record.dtype
            counts[place][v.record.status] += v.record.cases
            weak[place] |= {weakness_of(v.record)} - {""}
        found: defaultdict[tuple[Row, str], list[Tile]] = defaultdict(list)
        for (row, operator, dtype), held in sorted(counts.items(), key=lambda item: dtype_place(item[0][2])):
            found[row, operator].append(Tile(dtype, held, "; ".join(sorted(weak[row, operator, dtype]))))
        return dict(found)

    def together(self, row: Row, operator: str = "") -> Tile | None:
        """All dtypes of an operator in one tile, or all cases of a row; none where there are none."""
        own = (tiles for (one, name), tiles in self.matrix.items() if one == row and operator in ("", name))
        counts = sum((tile.counts for tiles in own for tile in tiles), Counter())
        return Tile("all dtypes", counts) if counts else None

    @cached_property
    def groups(self) -> list[tuple[Row, list[Group]]]:
        """What failed on each row, grouped by cause."""
        held: defaultdict[Row, list[Record]] = defaultdict(list)
        for verdict in self.results.verdicts:
            held[verdict.row].append(verdict.record)
        return [(row, found) for row in sorted(held) if (found := group(held[row], self._evidence[row]))]

    @cached_property
    def _evidence(self) -> dict[Row, RunEvidence]:
        found: defaultdict[Row, RunEvidence] = defaultdict(RunEvidence)
        for verdict in self.results.verdicts:
            found[verdict.row].add(verdict.record)
        return found

    def where(self, row: Row, one: Group) -> str:
        """Under which condition a group of a row fails; empty where nothing is known."""
        return located(one, self._evidence[row])

    @cached_property
    def modules(self) -> Table | None:
        """A row for each torch module; None where there are none."""
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
        """Id of a failing record -> its group and that group's place among all."""
        every = enumerate(one for _, found in self.groups for one in found)
        return {id(record): (place, one) for place, one in every for record in one.records}

    def reasons(self, status: str, refused: bool = False) -> list[tuple[str, int, str]]:
        """(Row, cases, reason on one line) of a status, most cases first; refused at run time, or not."""
        found: Counter[tuple[str, str]] = Counter()
        for name, record in self.named:
            if record.status == status and record.refused == refused:
                found[name, record.headline] += record.cases
        return sorted(((n, count, why) for (n, why), count in found.items()), key=lambda r: (r[0], -r[1], r[2]))

    @cached_property
    def findings(self) -> list[Table]:
        """Reasons with the cases that they explain, outputs that are not verified, and invalid arguments."""
        accepted, unverified = (
            [(n, c, why) for n, held in sorted(found.items()) for why, c in sorted(held.items())]
            for found in (self.tally.accepted, self.tally.unverified)
        )
        kinds = {
            "Unsupported": self.reasons("unsupported"),
            "Not verified": unverified,
            "Refused at run time": self.reasons("unsupported", refused=True),
            "Waived": self.reasons("waived"),
            "Unavailable": self.reasons("unavailable"),
            ACCEPTS.capitalize(): accepted,
        }
        return [
            Table(title, ("implementation", "reason", "cases"), tuple((n, why, f"{c:,}") for n, c, why in rows), 2)
            for title, rows in kinds.items()
            if rows
        ]

    @property
    def machines(self) -> Table:
        """Machines with the implementations that ran there, and the versions that were found."""
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
        """The run in one sentence."""
        if not self.verified:
            return "Nothing was verified."
        bad = self.totals["fail"] + self.totals["error"]
        of = many(len({name for name, _ in self.rows}), "implementation")
        if bad:
            fail = "fails or raises an error" if bad == 1 else "fail or raise an error"
            return f"{bad:,} of {many(self.cases, 'case')} of {of} {fail}."
        verified, waived = many(self.verified, "verified case"), self.totals["waived"]
        if waived:
            passed = self.verified - waived
            fail = f"{waived:,} fail{'s' * (waived == 1)} as expected (waived)"
            return f"{passed:,} of {verified} of {of} pass{'es' * (passed == 1)}, {fail}."
        every = "" if self.verified == 1 or self.results.errors else "All "
        whole = f", but {many(len(self.results.errors), 'defect')} in the files" if self.results.errors else ""
        return f"{every}{verified} of {of} pass{'es' * (self.verified == 1)}{whole}."

    @property
    def generators(self) -> list[str]:
        """Generators of data and seeds, e.g. "splitmix64-v1, seed 0"."""
        found = {(record.generator, str(record.seed)) for _, record in self.named if record.seed is not None}
        return [f"{name or 'sampled images'}, seed {seed}" for name, seed in sorted(found)]

    @property
    def levels(self) -> list[str]:
        """What runs were asked for, the lowest first."""
        found = {record.run_level for _, record in self.named} - {""}
        return sorted(found, key=lambda name: (LEVELS.index(name) if name in LEVELS else len(LEVELS), name))


def profiles(digest: Digest) -> Table | None:
    """The accuracy profile, as at the end of a run, without what exceeds its contract."""
    rows = [row for row in accuracy.rows(digest.tally.profiles) if row[:2] not in digest.exceeding]
    rows.sort(key=lambda row: (row[0], dtype_place(row[1])))
    names = ", ".join(f"{name} {dtype}" for name, dtype in digest.exceeding)
    note = accuracy.NOTE + (f"; left out, because errors exceed the contract: {names}" if names else "")
    return Table("Accuracy profile", accuracy.HEADS, tuple(rows), 2, note) if rows else None
