"""Draw cases among those that an implementation takes, verify them, tell failures apart and shrink each.

Cases come in rounds. A round begins with a new process of the kernel and depends on the seed and its own number alone,
so that each can be repeated, and a search goes on where another has stopped.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from typing import Any, NamedTuple

from conformance.dtypes import DTYPES, SUMS
from conformance.execution.status import Verdict
from conformance.execution.trial import Named, Trial
from conformance.execution.verify import verify
from conformance.explaining import explaining
from conformance.fuzzing.shrink import Rows, shrunk
from conformance.implementations.implementation import Implementation, ImplementationError, Unsupported
from conformance.layouts import layouts_of, rank_of
from conformance.operators import OPERATORS, GeometryError, takes
from conformance.operators.spatial import EVERY_RANK
from conformance.problems import PROBLEMS, Variant, of_family
from conformance.problems.case import Case
from conformance.problems.drawn import ALIKE, THIN, CostLimit, distribution, drawn, near, storage
from conformance.problems.parameters import SIMPLEST, Coverage, cost, features, geometry, parameters
from conformance.problems.table import applies, exact_distribution
from conformance.storage import repeats

ROUND = 128
"""Number of cases in one process."""
NOVELTY = 4
"""Draws for each case, of which the one with most features that are new to the round is taken."""
COMMON, RARE = THIN, CostLimit(1 << 24, 1 << 19)
"""Highest cost of seven cases of eight, and of the others."""
STORED = 4
"""One case in this many has operands that are views, where the framework has any."""
REPEATED = 4
"""One case in this many is the one before it with other parameters, of the same shapes if possible: kernels that cache
by too few of their parameters are wrong there."""
MAX_ATTEMPTS, MAX_RESTARTS = 800, 200
"""Verdicts for shrinking one failure, and the most of these that may need a process of their own."""
MAX_SECONDS = 60.0
"""Seconds for shrinking one failure."""
MAX_SHRUNK = 3
"""Failures of one kind that are shrunk to one that is known. Others of the kind are counted as that one if they pass
without the values that it needs."""


class Kind(NamedTuple):
    """How a case fails: the known mistakes that explain it, else the outputs that are wrong, or the error."""

    operator: str
    causes: frozenset[str]
    text: str

    def same(self, other: Kind) -> bool:
        """Return whether another failure may have the same cause. One cause in common is enough: on a small problem, a
        mistake may explain any failure by chance."""
        if self.causes:
            return self.operator == other.operator and bool(self.causes & other.causes)
        return (self.operator, self.text) == (other.operator, other.text)

    def __str__(self) -> str:
        return f"{self.operator}: {' or '.join(sorted(self.causes)[:3]) or self.text}"


def kind(operator: str, verdict: Verdict) -> Kind:
    """Return the kind of a verdict that is `fail` or `error`."""
    causes = frozenset(verdict.diagnosis.names if verdict.diagnosis else ())
    wrong = [judgement.output for judgement in verdict.judgements if not judgement.passed]
    assert verdict.failure is not None
    return Kind(operator, causes, f"wrong {', '.join(wrong)}" if wrong else verdict.failure.title[:200])


@dataclass(slots=True)
class ShrunkFailure:
    """A failure, shrunk. `rows` are the calls, of which the last fails; `original` is the case that was drawn."""

    kind: Kind
    rows: Rows
    original: Case
    verdict: Verdict
    command: str
    drawn: int
    """Number of cases up to the first that failed in this way."""
    seconds: float
    cases: int = 1
    reproduced: bool = True
    values: dict[str, set[Any]] = field(default_factory=dict)
    """Name -> the values of failures that were shrunk to this one, for each value that is not at its simplest in the
    last case."""

    def covers(self, failure_kind: Kind, row: Case) -> bool:
        """Return whether a failure is this one, as far as its parameters tell."""
        described = _described(row)
        return self.kind.same(failure_kind) and all(described[name] in values for name, values in self.values.items())

    def learn(self, row: Case) -> None:
        """Add the values of another failure that was shrunk to this one."""
        simplest, described = _simplest(row), _described(row)
        for name, value in _described(self.rows[-1]).items():
            if value != simplest[name]:
                self.values.setdefault(name, {value}).add(described[name])


def _described(row: Case) -> dict[str, Any]:
    return {
        **parameters(row.geometry),
        **{field.name: getattr(row.variant, field.name) for field in fields(row.variant)},
    }


def _simplest(row: Case) -> dict[str, Any]:
    first = OPERATORS[row.operator].dtypes[0], layouts_of(row.geometry.rank)[0]
    variant = Variant(*first, first_distribution(row.geometry.family))
    return SIMPLEST[row.geometry.family, row.geometry.rank] | {
        field.name: getattr(variant, field.name) for field in fields(variant)
    }


@cache
def first_distribution(family: str) -> str:
    """Return the distribution that a case is shrunk towards: that of the first case of the family's table."""
    return of_family(PROBLEMS, family)[0].variants[0].distribution


def _place(row: Case) -> str:
    """Return the name under which coverage is counted: operator and, unless it is 2, number of dimensions."""
    rank: int = row.geometry.rank
    return row.operator if rank in (0, 2) else f"{row.operator} {rank}-D"


class Search:
    """The state of a search: the cases that were drawn, their verdicts, the findings.

    restart   ends the process of the kernel, so that the next call has a new one
    operators names of the operators that the implementation has a kernel for
    """

    def __init__(
        self,
        implementation: Implementation,
        operators: Sequence[str],
        seed: int,
        *,
        restart: Callable[[], None] = lambda: None,
        named: Named | None = None,
    ) -> None:
        self.implementation, self.seed, self.restart, self.named = implementation, seed, restart, named
        self.operators = [name for name in operators if any(k.operator == name for k in implementation.kernels)]
        self._views, self._pages = implementation.arrays.views, implementation.arrays.pages
        self.findings: list[ShrunkFailure] = []
        self.statuses: Counter[str] = Counter()
        self.coverage: defaultdict[str, Coverage] = defaultdict(partial(Coverage, 3))
        self._merged: Counter[Kind] = Counter()
        self._tables = {
            (name, rank): [
                parameters(geometry) for geometry in near(OPERATORS[name].family, rank) if cost(geometry) <= COMMON
            ]
            for name in self.operators
            for rank in EVERY_RANK
        }
        self._ranks = {
            name: sorted({rank_of(la) for k in implementation.kernels if k.operator == name for la in k.layouts})
            for name in self.operators
        }
        """Operator -> numbers of dimensions that the implementation has layouts for; a single one is not drawn."""
        of_eight_bits = {(k.operator, dtype) for k in implementation.kernels for dtype in k.dtypes if dtype in SUMS}
        self._dtypes = {
            name: [dtype for dtype in OPERATORS[name].dtypes if dtype in DTYPES or (name, dtype) in of_eight_bits]
            for name in self.operators
        }

    @property
    def cases(self) -> int:
        return self.statuses.total()

    def remember(self, rows: Rows) -> None:
        """Add a finding of an earlier search, so that it is not reported anew, unless it no longer fails."""
        self.restart()
        if not all(map(self._takes, rows)):
            return
        for row in rows:
            verdict = self.verify(row)
        if verdict.status in ("fail", "error"):
            failure_kind, command = kind(rows[-1].operator, verdict), self.trial(rows[-1]).command
            finding = ShrunkFailure(failure_kind, rows, rows[-1], verdict, command, 0, 0.0, cases=0)
            finding.learn(rows[-1])
            self.findings.append(finding)

    def run(self, number: int, deadline: float) -> Iterator[ShrunkFailure]:
        """Run a round and yield its new findings. It ends early at the deadline, a time of `time.monotonic`."""
        began, history = time.monotonic(), list[Case]()
        self.restart()
        for row in self.drawn(number):
            if time.monotonic() > deadline:
                return
            history.append(row)
            verdict = self.verify(row)
            self.statuses[verdict.status] += 1
            self.coverage[_place(row)].add(features(row.geometry, row.variant))
            if verdict.status not in ("fail", "error") or (verdict.failure and verdict.failure.kind == "reference"):
                continue
            failure_kind = kind(row.operator, verdict)
            earlier = next((candidate for candidate in self.findings if candidate.covers(failure_kind, row)), None)
            if earlier is None and self._merged[failure_kind] >= MAX_SHRUNK:
                earlier = next(
                    (candidate for candidate in self.findings if self._needs(candidate, failure_kind, row)), None
                )
            if earlier is None:
                command, seconds = self.trial(row).command, time.monotonic() - began
                finding = ShrunkFailure(failure_kind, (row,), row, verdict, command, self.cases, seconds)
                with explaining(str(row)):
                    finding = self._shrunk(failure_kind, verdict, history, began)
                earlier = next((candidate for candidate in self.findings if candidate.rows == finding.rows), None)
                if earlier is None:
                    self.findings.append(finding)
                    yield finding
                    continue
                self._merged[failure_kind] += 1
                earlier.learn(row)
            earlier.cases += 1

    def drawn(self, number: int) -> Iterator[Case]:
        """Yield the cases of a round; they are the same whenever it is drawn."""
        dice, coverage = random.Random(f"{self.seed} {number}"), defaultdict[str, Coverage](Coverage)
        before: dict[str, Case] = {}
        for _ in range(ROUND):
            operator = dice.choice(self.operators)
            again = before.get(operator) if dice.randrange(REPEATED) == 0 else None
            draws = [case for _ in range(NOVELTY) if (case := self._draw(operator, dice, again)) is not None]
            if draws:
                described = [features(row.geometry, row.variant) for row in draws]
                inputs = OPERATORS[operator].inputs
                shapes = [again is not None and inputs(row.geometry) == inputs(again.geometry) for row in draws]
                new = [coverage[_place(row)].new(features) for row, features in zip(draws, described, strict=True)]
                place = max(range(len(draws)), key=lambda place: (shapes[place], new[place]))
                coverage[_place(draws[place])].add(described[place])
                before[operator] = draws[place]
                yield draws[place]

    def _draw(self, operator: str, dice: random.Random, again: Case | None) -> Case | None:
        """Return a case that a kernel is declared for; None after many draws without one."""
        family = OPERATORS[operator].family
        budget = RARE if again is not None or dice.randrange(8) == 0 else COMMON
        ranks = self._ranks[operator]
        rank = again.geometry.rank if again else dice.choice(ranks) if len(ranks) > 1 else ranks[0]
        near = [parameters(again.geometry)] if again else self._tables[operator, rank]
        for attempt_number in range(64):
            near_it = near if again or attempt_number % 2 else ()
            geometry = drawn(family, dice.choice, budget, near_it, sizes=again is None, rank=rank, padded=ALIKE)
            dtype, layout = dice.choice(self._dtypes[operator]), dice.choice(layouts_of(geometry.rank))
            variant = Variant(dtype, layout, distribution(family, dtype, dice.choice))
            if self._views and dice.randrange(STORED) == 0:
                text = storage(operator, geometry, layout, dice.choice, pages=self._pages)
                name = exact_distribution(family) if repeats(text) else variant.distribution
                variant = replace(variant, distribution=name, storage=text)
            row = Case.of(operator, geometry, variant, dice.choice((0, 0, 1, 2, 3)))
            if self._takes(row):
                return row
        return None

    def _needs(self, earlier: ShrunkFailure, failure_kind: Kind, row: Case) -> bool:
        """Return whether a failure of a known one's kind goes away where the values that the known one needs are the
        simplest."""
        if earlier.kind[::2] != failure_kind[::2]:
            return False
        changed = _described(row) | {name: _simplest(row)[name] for name in earlier.values}
        variant = Variant(**{field.name: changed.pop(field.name) for field in fields(Variant)})
        with suppress(GeometryError):
            without = Case.of(row.operator, geometry(row.geometry.family, changed), variant, row.seed)
            return not self._takes(without) or self.verify(without).status not in ("fail", "error")
        return True

    def _takes(self, row: Case) -> bool:
        v = row.variant
        try:
            kernel = self.implementation.find(row.operator, row.geometry, v.dtype, v.layout)
        except (Unsupported, ImplementationError):
            return False
        if not (takes(row.operator, row.geometry) and v.suits(row.operator, row.geometry)):
            return False
        return applies(v.distribution, v.dtype, v.storage) and not kernel.contract.exempts(v.distribution, v.dtype)

    def trial(self, row: Case) -> Trial:
        """Return the case that a run makes of a row."""
        return Trial.of(self.implementation, row, "drawn", named=self.named)

    def verify(self, row: Case) -> Verdict:
        """Return the verdict on a case. An unneeded waiver is not a failure of a case that was drawn by chance."""
        return verify(self.trial(row))

    def _shrunk(self, failure_kind: Kind, verdict: Verdict, history: list[Case], began: float) -> ShrunkFailure:
        """Return the smallest failure of the same kind: of the case alone, else with the cases before it in the
        process."""
        drawn, seconds = self.cases, time.monotonic() - began
        original = history[-1]
        last: dict[Rows, Verdict] = {(original,): verdict}
        attempts, deadline = 0, time.monotonic() + MAX_SECONDS

        def fails(rows: Rows, *, apart: bool = False) -> bool:
            nonlocal attempts
            attempts += MAX_ATTEMPTS // MAX_RESTARTS if apart else 1
            if attempts > MAX_ATTEMPTS or time.monotonic() > deadline or not all(map(self._takes, rows)):
                return False
            if apart:
                self.restart()
            for row in rows:
                now = self.verify(row)
            if now.status in ("fail", "error") and failure_kind.same(kind(rows[-1].operator, now)):
                last[rows] = now
                return True
            return False

        rows: Rows = (original,)
        reproduced = True
        if fails(rows, apart=True):
            rows = shrunk(rows, fails)
            attempts = 0
            if not fails(rows, apart=True):  # the shrunk case fails only after the calls made while shrinking
                rows = (original,)
        elif fails(tuple(history), apart=True):
            attempts = 0
            rows = shrunk(tuple(history), partial(fails, apart=True))
        else:
            reproduced = False
        verdict = last.get(rows, verdict)
        finding = ShrunkFailure(
            failure_kind, rows, original, verdict, self.trial(rows[-1]).command, drawn, seconds,
            reproduced=reproduced,
        )  # fmt: skip
        finding.learn(original)
        return finding
