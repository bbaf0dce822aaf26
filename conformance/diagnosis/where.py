"""Where a kernel fails: the condition that its failures have in common, decided by a few more problems.

If the known cases leave several conditions, a problem is run that separates them, as in BugDoc (Lourenco, Freire and
Shasha, SIGMOD 2020). If one is left, further problems test it: problems that should fail by it and share little else
with the failing cases, problems that differ from a failing one in one parameter, and sizes between those that pass and
those that fail.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

from conformance.diagnosis.conditions import (
    ENOUGH,
    LITERAL,
    Cluster,
    Condition,
    Literal,
    Passing,
    bits_of,
    clusters,
    common,
    conditions,
    holds,
    weight,
)
from conformance.diagnosis.nearby import NEAR, Tried, changed, flattened, hides, is_empty, kinds_of, plainest, toggled
from conformance.diagnosis.traits import Traits, assigned, of_geometry
from conformance.layouts import layouts_of
from conformance.problems import Variant
from conformance.problems.drawn import THIN, drawn
from conformance.problems.parameters import SIMPLEST, cost, parameters

FEWEST = 3
"""Least number of failing cases; with fewer no condition is given."""
SUPPORT = 2
"""Least number of failing cases for each literal of a condition: of four cases three literals hold by chance."""
SHOWN = 0.3
"""Least share of a condition's cases that must fail: a path for Q = K was reported as "stride of W 1: 14 of 53"."""
SEEN = 0.1
"""The same share if the problem says nothing (`_by_variant`): an overflow shows on few of the inputs that reach it."""
TOLD = 0.5
"""Largest share of the passing cases that a dtype, a layout or kind of inputs, given by itself, may hold for."""
TRIES = 30
"""Number of problems that are run for a kind of failure."""
PATIENCE = 3
"""Number of problems that may be tried for each that is run, as a kernel may not take some."""
POOL = 250
"""Number of problems that are drawn to choose from."""
SHOWABLE = 30
"""Number of failing cases that are compared with passing ones, to show a passing case with one parameter changed."""
MAX_WORK = 1 << 28
"""Limit of the floating-point operations and elements of the problems that are run for a kind of failure. It is not in
seconds: on a busy machine fewer problems were run, another condition was found, and the report had other words."""
TELLING = 0.1
"""Least share of the weight of the conditions that a problem must separate from the rest to be run for that."""


@dataclass(frozen=True, slots=True)
class Where:
    """A condition, and the evidence for it.

    cases      number of cases that it holds for, of which `fails` fail: a mistake does not show in all of them
    outside    number of other cases, of which `elsewhere` fail: they have another condition
    smallest   the smallest failing case that it holds for
    nearest    a passing case that differs from that one in one parameter; `differs` is such as "with stride of W = 1"
    storage    the operand and its kind of storage that these cases need to fail, such as b:transposed; may be empty
    """

    condition: Condition
    cases: int
    fails: int
    outside: int
    elsewhere: int
    smallest: Tried
    nearest: Tried | None = None
    differs: str = ""
    storage: str = ""

    def __str__(self) -> str:
        return " and ".join(filter(None, (self.storage, *map(str, self.condition))))

    def is_supported(self, share: float) -> bool:
        """Tell if enough cases fail for the number of literals, and at least this share of all cases."""
        return self.fails >= max(SUPPORT * weight(self.condition), share * self.cases)


def named(regions: Sequence[Where]) -> str:
    """Return the conditions in words; empty if there are none."""
    return "; and where ".join(map(str, regions))


def evidence_for(regions: Sequence[Where], smallest: str = "") -> str:
    """Return the evidence for conditions in a sentence. `smallest` is the descriptor of the case that is shown."""
    if len(regions) > 1:
        first, second = map(_counted, regions)
        return f"{first} similar cases that meet the first condition fail, and {second} that meet the second"
    (region,) = regions
    # "similar": cases on other inputs, on which the mistake may not show, are not counted
    text = f"{_counted(region)} similar cases that meet this condition fail"
    if region.outside:
        text += f", and {region.elsewhere:,}" if region.elsewhere else ", none"
        text += f" of the other {region.outside:,}"
    if region.differs:
        case = region.smallest.geometry.descriptor
        text += f"; {'the smallest case' if case == smallest else case} passes {region.differs}"
    return text


def said(regions: Sequence[Where], smallest: str = "") -> str:
    """Return the conditions and the evidence for them in one line; empty if there are none."""
    return f"fails where {named(regions)}: {evidence_for(regions, smallest)}" if regions else ""


def _counted(region: Where) -> str:
    return f"all {region.fails:,}" if region.fails == region.cases else f"{region.fails:,} of the {region.cases:,}"


Runs = Callable[[Any, Variant], bool | None]
"""Runs a problem and returns whether it fails in the way that is examined; None if that cannot be said of it."""


def where(cases: Iterable[Tried], runs: Runs | None = None, tries: int = TRIES) -> list[Where]:
    """Return the condition of some failures, or two if each failure has one of them; empty if the evidence names none.

    `cases` are those that failed in one way and those that passed, of one kernel; `runs` runs another problem.
    """
    tried = [*cases]
    for hidden in (is_empty, hides):
        if not any(case.failed and hidden(case.geometry) for case in tried):
            tried = [case for case in tried if not hidden(case.geometry)]
    if runs is not None:
        search = _Search(tried, runs)
        search.reduce(tries)
        search.contrast(tries)
        parts = max(1, len(search.clusters()))
        for place in range(parts):
            search.decide(place, tries // parts)
        tried = search.tried
    passing = Passing(case.traits for case in tried if not case.failed)
    failing = [case.traits for case in tried if case.failed]
    regions = [_region(_supported(cluster.conditions[0], tried), tried) for cluster in clusters(failing, passing)]
    supported = all(region.is_supported(SHOWN) for region in regions)
    return (regions if supported else []) or _by_variant(tried)


def _by_variant(tried: Sequence[Tried]) -> list[Where]:
    """Return the dtype, layout and inputs that all failing cases share as a condition, where no parameter separates the
    cases."""
    failing = [case for case in tried if case.failed]
    passing = [case for case in tried if not case.failed]
    if not failing or not passing:
        return []
    shared = frozenset.intersection(*(case.traits.features for case in failing))
    of_problems = frozenset.intersection(*(of_geometry(case.geometry).features for case in failing))

    def passes(literal: Literal) -> int:
        return sum(literal.holds(case.traits) for case in passing)

    literals = sorted(map(Literal, shared - of_problems), key=lambda literal: (passes(literal), str(literal)))
    condition, remaining = list[Literal](), passing
    for literal in literals:
        fewer = [case for case in remaining if literal.holds(case.traits)]
        if len(fewer) <= TOLD * len(remaining):
            condition.append(literal)
            remaining = fewer
    region = _region(tuple(condition), tried) if condition else None
    return [region] if region and region.is_supported(SEEN) else []


def _supported(condition: Condition, tried: Sequence[Tried]) -> Condition:
    """Drop sizes and multiples that exclude a single passing problem: they are an accident of that problem."""
    kept = [*condition]
    for literal in condition:
        rest = tuple(other for other in kept if other is not literal)
        passing = (case for case in tried if not case.failed and holds(rest, case.traits))
        excluded = {case.geometry for case in passing if not literal.holds(case.traits)}
        if rest and literal.is_accidental and len(excluded) < 2:
            kept.remove(literal)
    return tuple(kept)


def _region(condition: Condition, tried: Sequence[Tried]) -> Where:
    matching = [case for case in tried if holds(condition, case.traits)]
    failing = sorted((case for case in matching if case.failed), key=lambda case: case.size)
    passed = [(case, _described(case)) for case in tried if not case.failed]
    pairs = ((case, *near) for case in failing[:SHOWABLE] if (near := _nearest(case, passed)))
    smallest, passing, differs = next(pairs, (failing[0], None, ""))
    return Where(
        condition=tuple(_rounded(literal, condition, tried) for literal in condition),
        cases=len(matching),
        fails=len(failing),
        outside=len(tried) - len(matching),
        elsewhere=sum(case.failed for case in tried) - len(failing),
        smallest=smallest,
        nearest=passing,
        differs=differs,
    )


def _nearest(failing: Tried, passing: Iterable[tuple[Tried, dict[str, Any]]]) -> tuple[Tried, str] | None:
    """Return the smallest passing case that differs in one parameter, and that parameter with its value there."""
    failing_values, neighbours = _described(failing), list[tuple[Tried, str]]()
    for case, passing_values in passing:
        if case.geometry.rank == failing.geometry.rank:
            different = [name for name in failing_values if passing_values[name] != failing_values[name]]
            if len(different) == 1:
                neighbours.append((case, assigned(case.geometry, different[0], passing_values[different[0]])))
    return min(neighbours, key=lambda pair: pair[0].size, default=None)


def _described(case: Tried) -> dict[str, Any]:
    return parameters(case.geometry) | {part.name: getattr(case.variant, part.name) for part in fields(case.variant)}


def _rounded(literal: Literal, condition: Condition, tried: Iterable[Tried]) -> Literal:
    """Return the literal with a lower limit just above a power of two, if one is between passing and failing sizes."""
    if literal.least is None or literal.most is not None:
        return literal
    passes = _below(literal, condition, tried)
    powers = [1 << place for place in range(literal.least.bit_length()) if passes <= 1 << place < literal.least]
    return Literal(literal.name, powers[len(powers) // 2] + 1) if powers else literal


def _below(literal: Literal, condition: Condition, tried: Iterable[Tried]) -> int:
    """Return the largest passing size below a limit, among the cases that the rest of the condition holds for."""
    rest = tuple(other for other in condition if other is not literal)
    sizes = (t.traits.sizes.get(literal.name, 0) for t in tried if not t.failed and holds(rest, t.traits))
    return max((size for size in sizes if literal.least and size < literal.least), default=0)


class WorkLeft:
    """The rest of `MAX_WORK` for one kind of failure."""

    def __init__(self) -> None:
        self._left = MAX_WORK

    def covers(self, geometry: Any) -> bool:
        """Return whether a problem may still be run; if so, subtract its work."""
        work = sum(cost(geometry))
        if work > self._left:
            return False
        self._left -= work
        return True


class _Search:
    """The cases of a kind of failure, and more that are run because they separate conditions."""

    def __init__(self, tried: Iterable[Tried], runs: Runs) -> None:
        self.tried, self._runs = [*tried], runs
        self._passing = Passing(case.traits for case in self.tried if not case.failed)
        self._keys = {(case.geometry.descriptor, case.variant) for case in self.tried}
        self._dice = random.Random(0)

    def clusters(self) -> list[Any]:
        """Return the clusters of the cases so far, however little evidence there is for them yet."""
        return clusters([case.traits for case in self.tried if case.failed], self._passing, gain=None)

    def reduce(self, tries: int) -> None:
        """Make one parameter after the other of the smallest failing case plain, and keep it so if the case still
        fails: the parameters that are left are needed to fail, and a case that passed on the way lacks one of them
        (Zeller and Hildebrandt, IEEE TSE 28(2), 2002)."""
        failing = min((case for case in self.tried if case.failed), key=lambda case: case.size, default=None)
        if failing is None:
            return

        def fails(plainer: Tried | None) -> bool:
            nonlocal tries
            if plainer is None or hides(plainer.geometry) or self._has_run(plainer) or not tries:
                return False
            failed = self._run(plainer)
            tries -= failed is not None
            return bool(failed)

        for step in (
            lambda case: Tried(case.geometry, replace(case.variant, dtype="fp32"), failed=False),
            lambda case: Tried(
                case.geometry, replace(case.variant, layout=layouts_of(case.geometry.rank)[0]), failed=False
            ),
            flattened,
        ):
            failing = self.tried[-1] if fails(step(failing)) else failing
        smallest = failing.geometry
        goal = SIMPLEST[smallest.family, smallest.rank]
        for names in (*kinds_of(smallest), *([name] for name in parameters(smallest))):
            if fails(changed(failing, {name: goal[name] for name in names})):
                failing = self.tried[-1]
        halved = [*parameters(smallest)]
        while halved and tries:  # a row of 2,046 elements was shown where two are enough
            name = halved.pop(0)
            value = parameters(failing.geometry)[name]
            if value - goal[name] > 1 and fails(changed(failing, {name: (value + goal[name]) // 2})):
                failing, halved = self.tried[-1], [*halved, name]

    def contrast(self, tries: int) -> None:
        """If no condition is left, run problems that lack most of what the failing cases have in common."""
        near = plainest(case for case in self.tried if case.failed)
        pool = [case for case in self._drawn(near) if not hides(case.geometry)] if near else []
        while pool and tries:
            failing = [case.traits for case in self.tried if case.failed]
            if conditions(failing, self._passing, gain=None):
                return
            shared = common(failing)
            pool = [case for case in pool if not self._has_run(case)]
            pool.sort(key=lambda case: sum(literal.holds(case.traits) for literal in shared))
            tries -= bool(pool) and self._run(pool.pop(0)) is not None

    def decide(self, place: int, tries: int) -> None:
        """Run up to `tries` problems to decide the condition of one of the clusters."""
        current = self.clusters()
        if place >= len(current):
            return
        failing, candidates = [*current[place].failing], current[place].conditions
        near = plainest(case for case in self.tried if case.traits in failing)
        pool: list[Tried] = [*chain.from_iterable(map(self._toggled, near)), *self._drawn(near)]
        if not any(hides(case.geometry) for case in near):
            pool = [case for case in pool if not hides(case.geometry)]
        more = 0
        for turn in range(PATIENCE * tries):
            fresh = [case for case in pool if not self._has_run(case)]
            # by turns: some conditions cannot be separated, and trying that alone would never test the best one
            telling = self._telling(candidates, failing, fresh) if turn % 2 else None
            chosen = telling or self._doubting(candidates[0], failing, fresh, turn)
            if chosen is None:
                continue
            failed = self._run(chosen)
            if failed is None:
                continue
            tries -= 1
            if failed:
                failing.append(chosen.traits)
                more += 1
                # a case found between two sizes may be the plainest of few, and more cases like it are needed
                pool += self._toggled(chosen) if more <= NEAR else ()
            if failed and not holds(candidates[0], chosen.traits):  # it may have another defect
                parts = clusters(failing, self._passing, gain=None)
                failing, now = max(parts, key=lambda part: len(part.failing), default=Cluster(failing, []))
            else:
                now = conditions(failing, self._passing, gain=None)
            if not tries or (not now and len(failing) >= ENOUGH):
                return
            candidates = now or candidates  # no condition holds for few cases if a mistake hides in one

    def _has_run(self, case: Tried) -> bool:
        return (case.geometry.descriptor, case.variant) in self._keys

    def _run(self, chosen: Tried) -> bool | None:
        """Run a case and keep its verdict; return whether it fails, or None if that cannot be said."""
        self._keys.add((chosen.geometry.descriptor, chosen.variant))
        failed = self._runs(chosen.geometry, chosen.variant)
        if failed is not None:
            self.tried.append(Tried(chosen.geometry, chosen.variant, failed))
        if failed is False:
            self._passing.add(chosen.traits)
        return failed

    def _toggled(self, failing: Tried) -> Iterator[Tried]:
        return toggled(failing, {case.variant.dtype for case in self.tried})

    def _drawn(self, near: Sequence[Tried]) -> Iterator[Tried]:
        """Yield problems near failing ones, in their formats and in others of the cases, and unrelated problems."""
        choose = self._dice.choice
        formats: dict[int, list[Variant]] = {}
        for case in self.tried:
            formats.setdefault(case.geometry.rank, []).append(case.variant)
        family = near[0].geometry.family
        for place in range(POOL):
            case = choose(near)
            if place % 4 < 3:
                problem = drawn(family, choose, THIN, [parameters(case.geometry)], rank=case.geometry.rank)
                variant = case.variant if place % 4 < 2 else choose(formats[problem.rank])
            else:
                problem = drawn(family, choose, THIN, rank=choose([*formats]))
                variant = choose(formats[problem.rank])
            yield Tried(problem, variant, failed=False)

    def _telling(
        self, candidates: Sequence[Condition], failing: Sequence[Traits], fresh: Sequence[Tried]
    ) -> Tried | None:
        """Return the problem that best separates the conditions; those of fewer bits (`bits_of`) weigh more."""
        bits = {condition: bits_of(condition, failing, self._passing) for condition in candidates}
        weights = {condition: math.exp((bits[candidates[0]] - needed) / LITERAL) for condition, needed in bits.items()}
        total = sum(weights.values())
        literals = {literal for condition in candidates for literal in condition}
        shares = [(frozenset(condition), share) for condition, share in weights.items()]

        def parted(case: Tried) -> float:
            true = {literal for literal in literals if literal.holds(case.traits)}
            true_share = sum(share for condition, share in shares if condition <= true)
            return min(true_share, total - true_share)

        best = max(fresh, key=parted, default=None)
        return best if best is not None and parted(best) > TELLING * total else None

    def _doubting(
        self, condition: Condition, failing: Sequence[Traits], fresh: Sequence[Tried], turn: int
    ) -> Tried | None:
        """Return a problem that tests a condition, in turn: one that should fail and differs from a failing case in one
        respect, or shares little else with the failing cases; one that all of the condition holds for but one literal,
        each literal in turn; one with a size in the middle between passing and failing ones."""
        if turn % 3 == 0 or (turn % 3 == 2 and len(failing) < ENOUGH):
            holding = [case for case in fresh if holds(condition, case.traits)]
            if turn % 2 == 0:  # problems that differ in one respect come first
                return next(iter(holding), None)
            shared = frozenset.intersection(*(traits.features for traits in failing))
            return max(holding, key=lambda case: len(shared - case.traits.features), default=None)
        # a zero point may be negative, and no powers of two lie below it
        limits = [literal for literal in condition if (literal.least or 0) > 1 and literal.most is None]
        if turn % 3 == 1 and limits:
            return self._between(limits[0], condition, fresh)
        again, place = divmod(turn // 3, len(condition))
        doubted = condition[place]
        rest = tuple(literal for literal in condition if literal is not doubted)
        without = [case for case in fresh if holds(rest, case.traits) and not doubted.holds(case.traits)]
        # it may pass because it hides the mistake, which is unlikely with several outputs along every axis
        if again % 2:
            return max(without, key=lambda case: min(case.geometry.output_size, default=1), default=None)
        return next(iter(without), None)

    def _between(self, limit: Literal, condition: Condition, fresh: Iterable[Tried]) -> Tried | None:
        """Return a problem with a size between passing and failing ones, as near as possible to the middle of the
        powers of two: one that was drawn, or a failing one with a parameter made smaller."""
        rest, passes = tuple(other for other in condition if other is not limit), _below(limit, condition, self.tried)
        least = limit.least or 1
        middle = math.sqrt(max(1, passes) * least)

        def size(case: Tried) -> int:
            return case.traits.sizes.get(limit.name, 0)

        failing = sorted((case for case in self.tried if case.failed and holds(condition, case.traits)), key=size)[
            :NEAR
        ]
        smaller = (
            changed(case, {name: max(1, math.ceil(value * middle / size(case)))})
            for case in failing
            for name, value in parameters(case.geometry).items()
        )
        scaled = (case for case in smaller if case is not None and not self._has_run(case) and not hides(case.geometry))
        between = (case for case in chain(fresh, scaled) if holds(rest, case.traits) and passes < size(case) < least)
        return min(between, key=lambda case: abs(math.log(size(case) / middle)), default=None)
