"""What results amount to: counts, the matrix, findings, profiles, speed, memory, training."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from conformance.problems import LEVELS
from conformance.reporting import accuracy, traffic
from conformance.reporting.page.model import Clocked, Machine, Results, Row, Verdict, dtype_place, operator_place
from conformance.reporting.table import Table
from conformance.reporting.tally import Tally
from conformance.results.schema import STATUSES, VERIFIED, Record
from conformance.timing.measurement import baseline, means, ratios
from conformance.timing.table import figures

WORST_FIRST = ("fail", "error", "waived", "pass", "unsupported", "unavailable")
"""A cell of the matrix is shown as the first of these that it holds."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A cell of the matrix: an implementation, an operator and a dtype (empty for cases that were not attempted)."""

    dtype: str
    counts: Counter[str]

    @property
    def status(self) -> str:
        """The one that it is shown as."""
        return next(status for status in WORST_FIRST if self.counts[status])

    @property
    def words(self) -> str:
        """All of its counts."""
        return ", ".join(f"{self.counts[status]:,} {status}" for status in STATUSES if self.counts[status])


class Digest:
    """Everything that a report shows of some results."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.totals: Counter[str] = Counter()
        """Cases by status."""
        self.tallies: defaultdict[Machine, Tally] = defaultdict(Tally)
        """What the end of a run says, by machine."""
        for verdict in results.verdicts:
            self.totals[verdict.record.status] += verdict.record.cases
            self.tallies[verdict.machine].add(verdict.record)
        self.cases = self.totals.total()
        self.verified = sum(self.totals[status] for status in VERIFIED)
        self.rows = sorted({v.row for v in results.verdicts if v.record.operator})
        """Implementations on machines, without broken files."""
        self._places = frozenset({*self.rows, *(c.row for c in results.clocked)})
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
    def named(self) -> list[tuple[str, Record]]:
        """Every record, with the name of its row."""
        return [(self.name(verdict.row), verdict.record) for verdict in self.results.verdicts]

    @cached_property
    def matrix(self) -> dict[tuple[Row, str], list[Tile]]:
        """(Row, operator) -> tiles by dtype."""
        counts: defaultdict[tuple[Row, str, str], Counter[str]] = defaultdict(Counter)
        for v in self.results.verdicts:
            counts[v.row, v.record.operator, v.record.dtype][v.record.status] += v.record.cases
        found: defaultdict[tuple[Row, str], list[Tile]] = defaultdict(list)
        for (row, operator, dtype), held in sorted(counts.items(), key=lambda item: dtype_place(item[0][2])):
            found[row, operator].append(Tile(dtype, held))
        return dict(found)

    @property
    def failures(self) -> list[Verdict]:
        """Those that need somebody, failures first."""
        bad = [v for v in self.results.verdicts if v.record.status in ("fail", "error")]
        return sorted(bad, key=lambda v: v.record.status != "fail")

    def reasons(self, status: str) -> list[tuple[str, int, str]]:
        """(Row, cases, reason on one line) of a status, most cases first."""
        found: Counter[tuple[str, str]] = Counter()
        for name, record in self.named:
            if record.status == status:
                found[name, record.headline] += record.cases
        return sorted(((n, count, why) for (n, why), count in found.items()), key=lambda r: (r[0], -r[1], r[2]))

    @property
    def accepted(self) -> list[tuple[str, int, str]]:
        """(Row, times asked, invalid arguments that are accepted)."""
        return [
            (self.name((name, machine)), count, request)
            for machine, tally in sorted(self.tallies.items())
            for name, requests in sorted(tally.accepted.items())
            for request, count in sorted(requests.items())
        ]

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
    """The accuracy profile, as at the end of a run."""
    rows = _by_machine(digest, lambda tally: accuracy.rows(tally.profiles))
    rows.sort(key=lambda row: (row[0], dtype_place(row[1])))
    return Table("Accuracy profile", accuracy.HEADS, tuple(rows), 2, accuracy.NOTE) if rows else None


def moved(digest: Digest) -> Table | None:
    """What emulators counted, as at the end of a run."""
    rows = _by_machine(digest, lambda tally: traffic.rows(tally.moved))
    rows.sort(key=lambda row: (row[0], operator_place(row[1])))
    return Table("Traffic as counted by emulators", traffic.HEADS, tuple(rows), 2, traffic.NOTE) if rows else None


def _by_machine(digest: Digest, make: Callable[[Tally], Iterator[tuple[str, ...]]]) -> list[tuple[str, ...]]:
    return [
        (digest.name((name, machine)), *rest)
        for machine, tally in sorted(digest.tallies.items())
        for name, *rest in make(tally)
    ]


@dataclass(frozen=True, slots=True)
class Speed:
    """A time beside torch's on the same machine, where there is one."""

    clocked: Clocked
    ratio: float | None


def speeds(digest: Digest) -> list[Speed]:
    """All times with their ratios to torch."""
    found: list[Speed] = []
    by_machine: defaultdict[tuple[Machine, str, str], list[Clocked]] = defaultdict(list)
    for clocked in digest.results.clocked:
        by_machine[clocked.machine, clocked.dtype, clocked.layout].append(clocked)
    for (machine, *_), held in sorted(by_machine.items()):
        device = machine.device
        relative = ratios({(device, c.operator, c.problem, c.implementation): c.seconds for c in held if not c.finding})
        for c in held:
            own = 1.0 if c.implementation == baseline(device) else None
            ratio = relative.get((device, c.operator, c.problem, c.implementation), own)
            found.append(Speed(c, None if c.finding else ratio))
    return found


def speed_tables(digest: Digest, found: Sequence[Speed]) -> list[Table]:
    """By operator, problems by implementations: milliseconds, times torch, share of the roofline; then the means."""
    tables = [_grid(digest, name, [s for s in found if s.clocked.operator == name]) for name in _timed_operators(found)]
    return [*tables, *_doubted(digest, found), *_means(digest, found)]


def _timed_operators(found: Iterable[Speed]) -> list[str]:
    return sorted({s.clocked.operator for s in found}, key=operator_place)


def _grid(digest: Digest, operator: str, found: Sequence[Speed]) -> Table:
    names = sorted({s.clocked.row for s in found})
    cells = {(_problem(s), s.clocked.row): _cell(s) for s in found}
    rows = tuple((p, *(cells.get((p, n), "-") for n in names)) for p in dict.fromkeys(_problem(s) for s in found))
    note = "milliseconds; times torch on the same machine (higher is faster); share of the roofline, where known"
    return Table(f"{operator}, median of warm calls", ("problem", *map(digest.name, names)), rows, 1, note)


def _problem(speed: Speed) -> str:
    c = speed.clocked
    rest = "" if (c.dtype, c.layout) == ("fp32", "nchw") else f" {c.dtype} {c.layout}"
    return c.problem + rest


def _cell(speed: Speed) -> str:
    words = [f"{figures(speed.clocked.seconds * 1e3)} ms"]
    words += [] if speed.ratio in (None, 1.0) else [f"{figures(speed.ratio)}x"]
    words += [] if speed.clocked.share is None else [f"{speed.clocked.share:.0%} roof"]
    words += ["!"] if speed.clocked.finding else []
    return " · ".join(words)


def _doubted(digest: Digest, found: Sequence[Speed]) -> Iterator[Table]:
    """Times that are not to be believed, marked with ! above."""
    doubted = [s.clocked for s in found if s.clocked.finding]
    if doubted:
        rows = tuple((digest.name(c.row), c.operator, c.problem, c.finding) for c in doubted)
        yield Table(
            "Times marked with !, compared with nothing", ("implementation", "operator", "problem", "why"), rows, 4
        )


def _means(digest: Digest, found: Sequence[Speed]) -> Iterator[Table]:
    """Geometric means relative to torch, where there is a torch."""
    rows = geometric_means(found)
    names = sorted({row for row, _ in rows})
    operators = _timed_operators(s for s in found if s.ratio is not None)
    if names:
        table = tuple(
            (digest.name(n), *("{:.2f} of {}".format(*rows[n, o]) if (n, o) in rows else "-" for o in operators))
            for n in names
        )
        title = "Speed relative to torch, geometric mean over how many problems"
        yield Table(title, ("implementation", *operators), table)


def geometric_means(found: Iterable[Speed]) -> dict[tuple[Row, str], tuple[float, int]]:
    """(Row, operator) -> geometric mean of its ratios to torch, and over how many problems; without torch itself."""
    by_machine: defaultdict[Machine, dict[tuple[str, str, str, str], float]] = defaultdict(dict)
    for s in found:
        c = s.clocked
        if s.ratio is not None and c.implementation != baseline(c.machine.device):
            by_machine[c.machine][c.machine.device, c.operator, _problem(s), c.implementation] = s.ratio
    return {
        ((name, machine), operator): pair
        for machine, held in by_machine.items()
        for (operator, name), pair in means(held).items()
    }
