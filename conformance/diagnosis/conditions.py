"""Conditions that tell the cases on which a kernel fails from those that it passes.

Verdicts are exact and the same every time, so that a case that passes is evidence as good as one that fails. What is
looked for is a minimal failure-causing schema (Nie and Leung, ACM TOSEM 20(4), 2011): few literals that hold of every
failing case, and all together of no passing one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice
from typing import NamedTuple

from conformance.diagnosis.traits import Traits
from conformance.problems.features import SAME_AXIS

MOST = 3
"""Literals of a condition; two features of the same axis are two."""
HIDDEN = 0.35
ENOUGH = 200
"""Conditions of three literals that are collected; where so many are left, only further problems can tell."""


class Literal(NamedTuple):
    """A feature, or a size within limits."""

    name: str
    least: int | None = None
    most: int | None = None

    @property
    def is_size(self) -> bool:
        return self.least is not None or self.most is not None

    @property
    def weight(self) -> float:
        """How many things it says; of two that say the same of all cases, a feature is plainer than a size, a size
        that is always the same plainer than a limit."""
        if not self.is_size:
            return 2.0 if SAME_AXIS in self.name else 1.0
        return 1.2 if self.least == self.most else 1.4

    def holds(self, traits: Traits) -> bool:
        if not self.is_size:
            return self.name in traits.features
        value = traits.sizes.get(self.name)
        if value is None:
            return False
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        if not self.is_size:
            return self.name
        if self.least == self.most:
            return f"{self.name} {self.least}"
        return f"{self.name} <= {self.most}" if self.least is None else f"{self.name} >= {self.least}"


Condition = tuple[Literal, ...]
_Pair = tuple[int, int, int, int, Literal, Literal]


class Passing:
    """Cases that pass, as the bits of numbers: which of them a literal holds of."""

    def __init__(self, cases: Sequence[Traits]) -> None:
        self.cases = cases
        self.everything = (1 << len(cases)) - 1
        self._masks: defaultdict[Literal, int] = defaultdict(int)
        for place, traits in enumerate(cases):
            for name in traits.features:
                self._masks[Literal(name)] |= 1 << place

    def mask(self, literal: Literal) -> int:
        """The cases that a literal holds of."""
        if literal.is_size and literal not in self._masks:
            self._masks[literal] = sum(1 << n for n, traits in enumerate(self.cases) if literal.holds(traits))
        return self._masks.get(literal, 0)


class Cluster(NamedTuple):
    """Failing cases that one condition may tell, and the conditions that do, the plainest first."""

    failing: list[Traits]
    conditions: list[Condition]


def holds(condition: Condition, traits: Traits) -> bool:
    """Whether a case has all that a condition asks for."""
    return all(literal.holds(traits) for literal in condition)


def weight(condition: Condition) -> float:
    """How much a condition says."""
    return sum(literal.weight for literal in condition)


def common(failing: Sequence[Traits]) -> list[Literal]:
    """All that holds of every failing case, the plainest first."""
    found = [Literal(name) for name in frozenset.intersection(*(one.features for one in failing))]
    for name in failing[0].sizes:
        values = [one.sizes[name] for one in failing if name in one.sizes]
        if len(values) == len(failing):
            least, most = min(values), max(values)
            found += [Literal(name, least=least), Literal(name, most=most)]
            found += [Literal(name, least, most)] if least == most else []
    return sorted(found, key=lambda one: (one.weight, one.name, str(one)))


def consistent(failing: Sequence[Traits], passing: Passing, most: float = MOST) -> list[Condition]:
    """The minimal conditions that hold of all failing cases and of no passing one, the plainest first.

    Of literals that say the same of all passing cases only the plainest is looked at. Three literals are tried where no
    two do.
    """
    kept: dict[int, Literal] = {}
    for literal in common(failing):
        kept.setdefault(passing.mask(literal), literal)
    found: list[Condition] = [(kept[0],)] if 0 in kept else []
    rest = [(mask, literal) for mask, literal in kept.items() if mask not in (0, passing.everything)]
    wider = []
    for (place, (mask, one)), (second, (other_mask, other)) in combinations(enumerate(rest), 2):
        both = mask & other_mask
        if one.name == other.name or one.weight + other.weight >= most + 1:
            continue
        if not both:
            found.append((one, other))
        elif place < second and both not in (mask, other_mask) and one.weight + other.weight < most:
            wider.append((both, mask, other_mask, second, one, other))
    if not found:
        found = [*islice(_of_three(rest, wider), ENOUGH)]
    return sorted(found, key=lambda condition: (weight(condition), sorted(map(str, condition))))


def nearly(failing: Sequence[Traits], passing: Passing) -> list[Condition]:
    """Conditions that hold of all failing cases and of few passing ones, the best first: a mistake does not show in
    every case that it is made in."""
    kept: dict[int, Literal] = {}
    for literal in common(failing):
        kept.setdefault(passing.mask(literal), literal)
    allowed = int(HIDDEN * len(failing))
    rest = [(mask, literal) for mask, literal in kept.items() if mask != passing.everything]
    found = [(mask.bit_count(), (one,)) for mask, one in rest if mask.bit_count() <= allowed]
    wider = []
    for (place, (mask, one)), (second, (other_mask, other)) in combinations(enumerate(rest), 2):
        both = mask & other_mask
        if one.name == other.name or one.weight + other.weight >= MOST + 1 or both in (mask, other_mask):
            continue
        if both.bit_count() <= allowed:
            found.append((both.bit_count(), (one, other)))
        elif one.weight + other.weight < MOST:
            wider.append((both, second, one, other))
    for both, second, one, other in sorted(wider, key=lambda w: w[0].bit_count())[:400]:
        for third_mask, third in rest[second + 1 :]:
            if (both & third_mask).bit_count() <= allowed:
                found.append(((both & third_mask).bit_count(), (one, other, third)))
    return [c for _, c in sorted(found, key=lambda f: (weight(f[1]) + 12 * f[0] / len(failing), sorted(map(str, f[1]))))]


def _of_three(rest: Sequence[tuple[int, Literal]], wider: Iterable[_Pair]) -> Iterator[Condition]:
    """Those of three literals that no two of them make, and no passing case has."""
    for both, mask, other_mask, second, one, other in wider:
        for third_mask, third in rest[second + 1 :]:
            if not both & third_mask and mask & third_mask and other_mask & third_mask:
                yield one, other, third


def clusters(failing: Sequence[Traits], passed: Sequence[Traits]) -> list[Cluster]:
    """The failing cases with the conditions that tell them from the passing ones; in two parts where no condition holds
    of all. Empty where there is no such condition, or nothing to contrast with."""
    if not failing or not passed:
        return []
    passing = Passing(passed)
    exact = consistent(failing, passing)
    if len(failing) >= 5 and (near := nearly(failing, passing)):
        def score(c):
            p = passing.everything
            for l in c: p &= passing.mask(l)
            return weight(c) + 12 * p.bit_count() / len(failing)
        best = [*exact[:20], *near[:20]]
        best.sort(key=score)
        return [Cluster([*failing], best)]
    if exact:
        return [Cluster([*failing], exact)]
    parted = [two for name in _telling(failing) if (two := _parted(name, failing, passing))]
    return min(parted, key=lambda two: sum(weight(one.conditions[0]) for one in two), default=[])


def _telling(failing: Iterable[Traits]) -> list[str]:
    """Features that some failing cases have and others have not; two of the same axis are too many to try."""
    each = [one.features for one in failing]
    names = frozenset.union(*each) - frozenset.intersection(*each)
    return sorted(name for name in names if SAME_AXIS not in name)


def _parted(name: str, failing: Sequence[Traits], passing: Passing) -> list[Cluster]:
    """One condition for those that have a feature, and one for all that this does not hold of; two cases at least are
    evidence for each."""
    mine = [one for one in failing if name in one.features]
    if len(mine) < 2 or not (first := consistent(mine, passing, MOST - 1)):
        return []
    others = [one for one in failing if not holds(first[0], one)]
    if len(others) < 2 or not (second := consistent(others, passing, MOST - 1)):
        return []
    return [Cluster(mine, first), Cluster(others, second)]
