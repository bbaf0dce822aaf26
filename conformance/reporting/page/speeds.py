"""Times with their intervals, and beside torch's, with what can be said of them if the machine was not stable."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from conformance.reporting.page.model import NOT_JUDGED, Clocked, Machine, Row, operator_place
from conformance.reporting.page.tables import Digest
from conformance.reporting.table import Table, many
from conformance.timing.measurement import Ratio, baseline, means, ratio
from conformance.timing.table import FOLLOWS, bounded, figures

NOTE = (
    "milliseconds: median of rounds, [the interval that holds it with 95%], and min, the fastest round; x: times torch "
    "on the same machine, with its interval (higher is faster); roof: share of the roofline; what a file does not say "
    "is left out"
)


@dataclass(frozen=True, slots=True)
class Speed:
    """A time beside torch's on the same machine, if both may be compared.

    steady   whether the machine was steady for both, so that the ratio may be part of a mean
    """

    clocked: Clocked
    ratio: Ratio | None = None
    steady: bool = True

    @property
    def milliseconds(self) -> str:
        """Median with its interval."""
        low_high = self.clocked.interval
        shown = f" [{figures(low_high[0] * 1e3)}, {figures(low_high[1] * 1e3)}]" if low_high else ""
        return f"{figures(self.clocked.seconds * 1e3)} ms{shown}"

    @property
    def times_torch(self) -> str:
        if self.ratio is None:
            return ""
        value, _, rest = bounded(self.ratio.value, self.ratio.interval).partition(" ")
        return f"{value}x {rest}".rstrip()

    def cell(self, mixed: bool = False) -> str:
        """Return the time in words; with the machine's state if times of several states are shown."""
        c = self.clocked
        minimum = c.timing.minimum_s
        words = [self.milliseconds, "" if minimum is None else f"min {figures(minimum * 1e3)}", self.times_torch]
        words += [] if c.share is None else [f"{c.share:.0%} roof"]
        words += [("!" if c.impossible else "*") if c.finding else ""]
        words += [c.state if mixed else ""]
        return " · ".join(filter(None, words))


def speeds(digest: Digest) -> list[Speed]:
    """Return all times, with their ratios to torch if these can be believed."""
    clocked = digest.results.clocked
    torch = {(c.machine, c.operator, c.problem): c for c in clocked if c.implementation == baseline(c.machine.device)}
    result = []
    for time in clocked:
        base = torch.get((time.machine, time.operator, time.problem))
        to_torch = _ratio(base, time) if base and base is not time else None
        result.append(Speed(time, to_torch, time.steady and (base is None or base.steady)))
    return result


def _ratio(base: Clocked, time: Clocked) -> Ratio | None:
    """Return the ratio, visit by visit if both were timed in one run. Visits of two runs have nothing in common, so
    that their ratio has no interval."""
    if not (time.usable and base.usable):
        return None
    if base.run == time.run and base.visits and time.visits:
        return ratio(base.visits, time.visits)
    return Ratio(base.seconds / time.seconds)


@dataclass(frozen=True, slots=True)
class Banner:
    """A machine's state in words, with its reasons."""

    state: str
    text: str
    reasons: tuple[str, ...]


def banners(speeds: Iterable[Speed]) -> list[Banner]:
    """Return the states of the runs' machines, the worst first, and of several also the machine and number of times."""
    counts = Counter((s.clocked.timing.machine, s.clocked.machine) for s in speeds)
    order = ["unusable", "noisy", NOT_JUDGED, "stable"]
    result = []
    for (state, machine), count in counts.items():
        name = state.state if state else NOT_JUDGED
        follows = FOLLOWS[name] if state else " The files say nothing of it."
        where = f" ({machine.label}, {many(count, 'time')})" if len(counts) > 1 else ""
        result.append(Banner(name, f"machine: {name}{where}.{follows}", state.reasons if state else ()))
    return sorted(result, key=lambda banner: (order.index(banner.state), banner.text, banner.reasons))


def speed_tables(digest: Digest, speeds: Sequence[Speed]) -> list[Table]:
    """Return a table for each operator, of problems by implementations, the first with a note; then the findings about
    times, and the geometric means if torch was timed and the machine was stable."""
    tables: list[Table] = []
    mixed = len({s.clocked.state for s in speeds}) > 1
    for operator in sorted({s.clocked.operator for s in speeds}, key=operator_place):
        here = [s for s in speeds if s.clocked.operator == operator]
        names = sorted({s.clocked.row for s in here})
        cells = {(s.clocked.problem, s.clocked.row): s.cell(mixed) for s in here}
        rows = tuple(
            (p, *(cells.get((p, n), "-") for n in names)) for p in dict.fromkeys(s.clocked.problem for s in here)
        )
        tables.append(
            Table(f"{operator}, time of a call", ("problem", *map(digest.name, names)), rows, 1, "" if tables else NOTE)
        )
    titles = {True: "Times marked with !, compared with nothing", False: "Findings marked with *"}
    for impossible, title in titles.items():
        marked = [s.clocked for s in speeds if s.clocked.finding and s.clocked.impossible == impossible]
        if marked:
            lines = tuple((digest.name(c.row), c.operator, c.problem, c.finding) for c in marked)
            tables.append(Table(title, ("implementation", "operator", "problem", "reason"), lines, 4))
    if means := geometric_means(speeds):
        operators = sorted({operator for _, operator in means}, key=operator_place)
        rows = tuple(
            (
                digest.name(row),
                *("{:.2f} of {}".format(*means[row, o]) if (row, o) in means else "-" for o in operators),
            )
            for row in sorted({row for row, _ in means})
        )
        title = "Speed relative to torch, geometric mean over how many problems"
        tables.append(Table(title, ("implementation", *operators), rows))
    return tables


def geometric_means(speeds: Sequence[Speed]) -> dict[tuple[Row, str], tuple[float, int]]:
    """Return (row, operator) -> geometric mean of its ratios to torch, and the number of problems."""
    by_machine: defaultdict[Machine, dict[tuple[str, str, str, str], Ratio]] = defaultdict(dict)
    # a mean over the steady ratios would cover fewer problems than another implementation's
    left_out = {(s.clocked.row, s.clocked.operator) for s in speeds if not s.steady}
    for s in speeds:
        c = s.clocked
        if s.ratio is not None and (c.row, c.operator) not in left_out:
            by_machine[c.machine][c.machine.device, c.operator, s.clocked.problem, c.implementation] = s.ratio
    return {
        ((name, machine), operator): pair
        for machine, ratios in by_machine.items()
        for (operator, name), pair in means(ratios).items()
    }
