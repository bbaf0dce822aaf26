"""What results amount to: counts, the matrix, findings, profiles, speed, memory, training."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from conformance.problems import LEVELS
from conformance.reporting import accuracy, traffic
from conformance.reporting.page.model import Clocked, Machine, Results, Row, Verdict, dtype_place, operator_place
from conformance.reporting.tally import STATUSES, VERIFIED, Tally
from conformance.timing.relative import Timing, baseline, means, ratios
from conformance.timing.table import figures

WORST_FIRST = ("fail", "error", "waived", "pass", "unsupported", "unavailable")
"""A cell of the matrix is shown as the first of these that it holds."""


@dataclass(frozen=True, slots=True)
class Table:
    """Headings, rows of text, and how many columns of names come first; the others are numbers, flush right."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1
    note: str = ""


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
        for verdict in results.verdicts:
            self.totals[verdict.status] += verdict.cases

    @cached_property
    def cases(self) -> int:
        """All that were due."""
        return sum(self.totals.values())

    @cached_property
    def verified(self) -> int:
        """Those whose results were compared."""
        return sum(self.totals[status] for status in VERIFIED)

    @cached_property
    def rows(self) -> list[Row]:
        """Implementations on machines, without broken files."""
        return sorted({v.row for v in self.results.verdicts if v.record["operator"]})

    @cached_property
    def _places(self) -> frozenset[Row]:
        return frozenset({*self.rows, *(c.row for c in self.results.clocked)})

    @cached_property
    def _several(self) -> frozenset[str]:
        counts = Counter(name for name, _ in self._places)
        return frozenset(name for name, count in counts.items() if count > 1)

    def name(self, row: Row) -> str:
        """A row in one piece of text: with its device where the implementation ran on several machines, and with all
        of the machine where the devices are alike."""
        if row[0] not in self._several:
            return row[0]
        alike = sum((name, machine.short) == (row[0], row[1].short) for name, machine in self._places) > 1
        return f"{row[0]} on {row[1].label if alike else row[1].short}"

    @cached_property
    def operators(self) -> list[str]:
        """Columns of the matrix."""
        return sorted({v.record["operator"] for v in self.results.verdicts} - {""}, key=operator_place)

    @cached_property
    def matrix(self) -> dict[tuple[Row, str], list[Tile]]:
        """(Row, operator) -> tiles by dtype."""
        counts: defaultdict[tuple[Row, str, str], Counter[str]] = defaultdict(Counter)
        for v in self.results.verdicts:
            counts[v.row, v.record["operator"], v.text("dtype")][v.status] += v.cases
        found: defaultdict[tuple[Row, str], list[Tile]] = defaultdict(list)
        for (row, operator, dtype), held in sorted(counts.items(), key=lambda item: dtype_place(item[0][2])):
            if held.total():
                found[row, operator].append(Tile(dtype, held))
        return dict(found)

    @cached_property
    def tallies(self) -> dict[Machine, Tally]:
        """What the end of a run says, by machine."""
        found: defaultdict[Machine, Tally] = defaultdict(Tally)
        for verdict in self.results.verdicts:
            found[verdict.machine].add(verdict.record)
        return dict(found)

    @property
    def failures(self) -> list[Verdict]:
        """Those that need somebody, failures first."""
        bad = [v for v in self.results.verdicts if v.status in ("fail", "error")]
        return sorted(bad, key=lambda v: v.status != "fail")

    def reasons(self, status: str) -> list[tuple[str, int, str]]:
        """(Row, cases, first line of the reason) of a status, most cases first."""
        found: Counter[tuple[str, str]] = Counter()
        for v in self.results.verdicts:
            if v.status == status:
                found[self.name(v.row), v.record["reason"].partition("\n")[0].removeprefix("waived: ")] += v.cases
        return sorted(((n, count, why) for (n, why), count in found.items()), key=lambda r: (r[0], -r[1], r[2]))

    @property
    def answered(self) -> list[tuple[str, int, str]]:
        """(Row, times asked, request) of what should have been refused."""
        return [
            (self.name((name, machine)), count, request)
            for machine, tally in sorted(self.tallies.items())
            for name, requests in sorted(tally.answered.items())
            for request, count in sorted(requests.items())
        ]

    @property
    def generators(self) -> list[str]:
        """Generators of data and seeds, e.g. "splitmix64-v1, seed 0"."""
        found = {(v.text("generator"), v.text("seed")) for v in self.results.verdicts if "seed" in v.record}
        return [f"{name or 'sampled images'}, seed {seed}" for name, seed in sorted(found)]

    @property
    def levels(self) -> list[str]:
        """What runs were asked for, the least first."""
        found = {v.text("run_level") for v in self.results.verdicts} - {""}
        return sorted(found, key=lambda name: (LEVELS.index(name) if name in LEVELS else len(LEVELS), name))


def profiles(digest: Digest) -> Table | None:
    """The accuracy profile, as at the end of a run."""
    rows: list[tuple[str, ...]] = []
    for machine, tally in sorted(digest.tallies.items()):
        lines = list(accuracy.table(tally.profiles))[1:]
        rows += [(digest.name((name, machine)), *rest) for name, *rest in lines]
    rows.sort(key=lambda row: (row[0], dtype_place(row[1])))
    note = (
        "bits: input precision that the worst error of a plain sum leaves; error: the worst, as a share of what the "
        "contract allows; rms, gain, offset: statistics of whole tensors; repeats: whether calls repeat to the bit"
    )
    return Table("Accuracy profile", accuracy.HEADINGS, tuple(rows), 2, note) if rows else None


def moved(digest: Digest) -> Table | None:
    """What emulators counted, as at the end of a run."""
    rows: list[tuple[str, ...]] = []
    for machine, tally in sorted(digest.tallies.items()):
        rows += [(digest.name((name, machine)), *rest) for name, *rest in list(traffic.table(tally.moved))[1:]]
    rows.sort(key=lambda row: (row[0], operator_place(row[1])))
    return Table("Traffic as counted by emulators", traffic.HEAD, tuple(rows), 2, traffic.LEGEND) if rows else None


def memory(digest: Digest) -> list[Table]:
    """What is kept for backward, by problem; what a training step takes."""
    kept = [v for v in digest.results.verdicts if v.record.get("kept")]
    problems = sorted({v.text("descriptor") for v in kept})
    steps = [(v, row) for v in digest.results.verdicts for row in v.record.get("trained", ())]
    tables = [_kept(digest, problem, [v for v in kept if v.text("descriptor") == problem]) for problem in problems]
    return [*tables, *([_steps(digest, steps)] if steps else [])]


def _kept(digest: Digest, problem: str, verdicts: Sequence[Verdict]) -> Table:
    rows = (
        (digest.name(v.row), row["form"], v.text("dtype"), *_sizes(row, "activation_bytes", "buffers", *_MORE))
        for v in verdicts
        for row in v.record["kept"]
    )
    heads = ("implementation", "form", "dtype", "activation bytes", "buffers", "parameter bytes", "per channel")
    return Table(f"Kept for backward, {problem}", heads, tuple(sorted(rows)), 3)


def _steps(digest: Digest, steps: Sequence[tuple[Verdict, dict[str, int]]]) -> Table:
    rows = (
        (digest.name(v.row), str(row["form"]), *_sizes(row, "batch", "peak_bytes", "forward_bytes")) for v, row in steps
    )
    heads = ("implementation", "form", "batch", "peak bytes", "bytes after forward")
    return Table("A training step of two pairs", heads, tuple(sorted(rows)), 2)


_MORE = ("parameter_bytes", "vector_bytes")


def _sizes(row: dict[str, int], *names: str) -> Iterator[str]:
    return (f"{row[name]:,}" for name in names)


TRAINED = (
    "implementation", "network", "verdict", "steps", "first loss", "last loss", "right", "test loss", "test right",
    "guess", "judged", "worst error", "s",
)  # fmt: skip


def training(digest: Digest) -> Table | None:
    """How networks trained through their convolutions."""
    rows = [_trained(digest, v) for v in digest.results.verdicts if v.record.get("training", {}).get("scores")]
    note = (
        "right: share of right answers; guess: share of the commonest one in the test; judged: tensors compared with "
        "their bound; worst error: as a share of it"
    )
    return Table("Networks trained through their convolutions", TRAINED, tuple(rows), 3, note) if rows else None


def _trained(digest: Digest, verdict: Verdict) -> tuple[str, ...]:
    run = verdict.record["training"]
    scores = {name: float(score) for name, score in run["scores"].items()}
    pairs = [pair for checks in verdict.record.get("checks", {}).values() for pair in checks.values()]
    worst = max((float(value) for value, _ in pairs), default=math.nan)
    return (
        digest.name(verdict.row), run["network"], verdict.status, f"{run['steps']:,}",
        *(f"{scores[name]:.3f}" for name in ("first loss", "last loss")), f"{scores['accuracy']:.0%}",
        f"{scores['test loss']:.3f}", f"{scores['test accuracy']:.0%}", f"{scores['commonest']:.0%}",
        f"{run['judged']:,}", f"{worst:.0%}", f"{verdict.record.get('seconds', {}).get('total', math.nan):.1f}",
    )  # fmt: skip


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
        relative = ratios(_timing(c) for c in held if not c.finding)
        for c in held:
            own = 1.0 if c.implementation == baseline(machine.device) else None
            ratio = relative.get((c.operator, c.problem, c.implementation), own)
            found.append(Speed(c, None if c.finding else ratio))
    return found


def _timing(c: Clocked) -> Timing:
    return Timing(c.machine.device, c.operator, c.problem, c.implementation, c.seconds, c.share)


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
    by_machine: defaultdict[Machine, dict[tuple[str, str, str], float]] = defaultdict(dict)
    for s in found:
        c = s.clocked
        if s.ratio is not None and c.implementation != baseline(c.machine.device):
            by_machine[c.machine][c.operator, _problem(s), c.implementation] = s.ratio
    return {
        ((name, machine), operator): pair
        for machine, held in by_machine.items()
        for (operator, name), pair in means(held).items()
    }
