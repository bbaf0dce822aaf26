"""Conditions that tell the cases on which a kernel fails from those that it passes.

Verdicts are exact and the same every time, so that a case that passes is evidence as good as one that fails. What is
looked for is a minimal failure-causing schema (Nie and Leung, ACM TOSEM 20(4), 2011): few literals that hold of every
failing case, and all together of no passing one, or of few: a mistake does not show in every case that it is made in.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_, itemgetter
from typing import NamedTuple

import numpy as np

from conformance.diagnosis.traits import GROUPED, NAMES_OF_TWO, WIDER, Traits
from conformance.problems.features import SAME_AXIS

MOST, LONGEST = 3, 6
"""Literals of a condition that are combined, two features of the same axis being two; and with those that are added to
the best one, one after the other."""
ENOUGH = 5
"""Failing cases from which on a condition may hold of passing ones."""
HELD = 0.75
"""Share of the passing cases that a condition may hold of: of what holds of nearly every case nothing is told."""
GAIN = 8.0
"""Bits that a condition must save of those that it takes to say which cases fail without one."""
SECOND = EXCEPTION = 15.0
"""The same of a second condition, and of a failing case that is left out: which one it is, and what that must save."""
ENOUGH_OTHERS = 10
"""Failing cases for each one that may be left out."""
LITERAL = 7.0
"""Bits of a literal: one of about a hundred that hold of all failing cases."""
FEW = ("window", "stride", "dilation", "groups")
"""How the names of sizes begin that have few values, for one of which a kernel may have a path of its own."""
COUNTS = ("elements", "outputs of an image", "taps", "N*")
"""The same of sizes that are counts of elements."""
UNLIMITED = ("padding", "dilation", "momentum", WIDER)
"""The same of sizes up to which no kernel has a path of its own: that failing cases have little of them is chance."""
SMALL, SMALL_WINDOW = 128, 16
"""Sizes up to which a kernel may have a path of its own; that it fails up to a larger one is hardly half of a
condition."""
FEW_ELEMENTS = 16
ONE_SIDE = ("padding before", "padding after")
"""How the names of features begin that say more than others: padding is rarely wrong on one side."""
SURE, HIDDEN = 0.9, 0.2
"""Cases of each of two conditions that must fail, as a share; cases that pass for each of those that fail by it
alone."""
PLAIN = 40.0
"""Bits of a condition below which two are not looked for: they take as many literals each."""
PARTED = 16
"""Features by which failing cases are parted in two, to look for two conditions."""
KEPT, MARGIN = 64, 30.0
"""Conditions that are kept, the best ones, and the bits that these may take more than the best."""
WIDENED = 400
"""Pairs of literals that a third is added to, those first that hold of the fewest passing cases."""


class Literal(NamedTuple):
    """A feature, or a size within limits."""

    name: str
    least: int | None = None
    most: int | None = None

    @property
    def is_size(self) -> bool:
        return self.least is not None or self.most is not None

    @property
    def is_accidental(self) -> bool:
        """Whether it may hold of failing cases by the accident of their sizes."""
        return self.is_size or "multiple of" in self.name

    @property
    def weight(self) -> float:
        """How many things it says; of two that say the same of all cases, a feature is plainer than a size, and a size
        that is always the same plainer than a limit. A kernel fails from some size on rather than up to it."""
        if not self.is_size:
            if self.name.endswith(" odd"):
                return 1.3  # a window of one tap is odd too
            rare = (
                self.name in GROUPED
                or self.name in NAMES_OF_TWO
                or self.name.startswith(ONE_SIDE)
                or "multiple of" in self.name
            )
            return 2.05 if SAME_AXIS in self.name else 1.1 if rare else 1.0
        if self.least == self.most:
            return 1.2
        if self.most is None:
            return 1.3 if self.least == 2 else 1.5 if self.name == WIDER else 1.4  # more than one of something
        small = SMALL_WINDOW if "window" in self.name else SMALL
        return 1.9 if self.most <= small else 3.1

    def holds(self, traits: Traits) -> bool:
        """Whether it is so in a case; a size that the case does not have is within no limits."""
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
        if self.least is None:
            return f"{self.name} <= {self.most}"
        below = self.least - 1
        return f"{self.name} > {below}" if below > 1 and below & (below - 1) == 0 else f"{self.name} >= {self.least}"


Condition = tuple[Literal, ...]


class Passing:
    """Cases that pass, as the bits of numbers: which of them a literal holds of."""

    def __init__(self, cases: Iterable[Traits] = ()) -> None:
        self.cases: list[Traits] = []
        self._features: defaultdict[str, int] = defaultdict(int)
        self._sizes: dict[Literal, int] = {}
        for traits in cases:
            self.add(traits)

    @property
    def everything(self) -> int:
        return (1 << len(self.cases)) - 1

    def add(self, traits: Traits) -> None:
        bit = 1 << len(self.cases)
        self.cases.append(traits)
        for name in traits.features:
            self._features[name] |= bit
        for literal in self._sizes:
            self._sizes[literal] |= bit if literal.holds(traits) else 0

    def mask(self, literal: Literal) -> int:
        """The cases that a literal holds of."""
        if not literal.is_size:
            return self._features.get(literal.name, 0)
        if literal not in self._sizes:
            self._sizes[literal] = sum(1 << place for place, traits in enumerate(self.cases) if literal.holds(traits))
        return self._sizes[literal]

    def having(self, condition: Condition) -> int:
        """The cases that have all of a condition."""
        return reduce(and_, map(self.mask, condition), self.everything)


class Cluster(NamedTuple):
    """Failing cases that one condition may tell, and the conditions that do, the best first."""

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
            # a few elements or more are hardly a path of a kernel: in fewer mistakes hide
            found += [Literal(name, least=least)] if least > FEW_ELEMENTS or not name.startswith(COUNTS) else []
            found += [Literal(name, most=most)] if not name.startswith(UNLIMITED) else []
            # a size that few cases have by chance is no path of a kernel
            found += [Literal(name, least, most)] if least == most and name.startswith(FEW) else []
    return sorted(found, key=lambda one: (one.weight, one.name, str(one)))


def conditions(
    failing: Sequence[Traits],
    passing: Passing,
    most: float = MOST,
    hidden: float | None = None,
    gain: float | None = GAIN,
) -> list[Condition]:
    """What holds of all failing cases and of few passing ones, the best first: plain, and of few. How many that may be
    the saving decides, unless a share of the failing ones is given: padding that is ignored shows in no case whose
    padding no window with an output reaches, which most are.

    Of literals that say the same of all passing cases only the plainest is looked at. `gain` is what the best must
    save, in bits; None where more cases will be seen.
    """
    held = int((HELD if gain is not None else 1) * len(passing.cases))
    allowed = held if hidden is None else round(hidden * len(failing))
    allowed = allowed if len(failing) >= ENOUGH else 0
    kept: dict[int, Literal] = {}
    for literal in common(failing):
        kept.setdefault(passing.mask(literal), literal)
    literals = [(mask, literal) for mask, literal in kept.items() if mask != passing.everything]
    bits = np.array([_bits(len(failing), passes) for passes in range(len(passing.cases) + 1)])
    combined = _combined(literals, len(passing.cases), most)
    cost = LITERAL * combined.weights + bits[combined.passes]
    # where the best of all holds of too many, others hold of fewer by more literals, which do so by chance
    if cost.size and gain is not None:
        best = int(np.argmin(cost))
        if combined.passes[best] > allowed or cost[best] > bits[-1] - (gain if hidden is None else 0):
            return []
    near = (cost <= np.minimum.accumulate(cost) + MARGIN) & (combined.passes <= allowed)
    (places,) = np.nonzero(near)
    places = places[np.argsort(cost[places], kind="stable")][:KEPT]
    kept_ones = [(cost[place], tuple(literals[one][1] for one in combined.of(int(place)))) for place in places]
    found = [one for _, one in sorted(kept_ones, key=lambda one: (one[0], sorted(map(str, one[1]))))]
    longer = [one for one in found[:1] if len(one) >= MOST - 1 and most >= MOST]
    return [*(_extended(one, failing, passing, kept.values()) for one in longer), *found[len(longer) :]]


def _extended(
    condition: Condition, failing: Sequence[Traits], passing: Passing, literals: Iterable[Literal]
) -> Condition:
    """A condition with more literals, each of which saves bits enough: a path for 3x3 windows without stride, dilation
    or groups takes more than are combined."""
    while len(condition) < LONGEST:
        names = {literal.name for literal in condition}
        longer = [(*condition, one) for one in literals if one.name not in names and one.weight < 2]
        costs = [bits_of(one, failing, passing) for one in longer]
        if not costs or min(costs) > bits_of(condition, failing, passing) - GAIN:
            break
        condition = longer[costs.index(min(costs))]
    return condition


def bits_of(condition: Condition, failing: Sequence[Traits], passing: Passing) -> float:
    """The bits that it takes to say a condition, and which cases of it fail."""
    return LITERAL * weight(condition) + _bits(len(failing), passing.having(condition).bit_count())


def _bits(failing: int, passing: int) -> float:
    """What it takes to say which of the cases of a condition fail, if it does not say so by itself: the shortest
    description is the best (Rissanen, Automatica 14(5), 1978)."""
    cases = failing + passing
    return sum(count * math.log2(cases / count) for count in (failing, passing) if count)


class Combined(NamedTuple):
    """One, two and three literals, each of which takes passing cases away: their places, -1 for none, how much they say
    and how many passing cases are left. Arrays of the same length; the places [..., 3]."""

    places: np.ndarray
    weights: np.ndarray
    passes: np.ndarray

    def of(self, place: int) -> list[int]:
        """Return the places of the literals of one."""
        return [int(one) for one in self.places[place] if one >= 0]


def _combined(literals: Sequence[tuple[int, Literal]], cases: int, most: float) -> Combined:
    """Combine literals, of which each comes with its passing cases as bits of a number, as far as they say less than
    `most` and one more. All pairs are counted by one product of matrices: in Python a search took seconds."""
    each = np.array([place for place, (_, one) in enumerate(literals) if one.weight < most + 1], int)
    weights = np.array([literals[place][1].weight for place in each])
    _, names = np.unique([literals[place][1].name for place in each], return_inverse=True)
    held = np.array([_unpacked(literals[place][0], cases) for place in each]).reshape(len(each), cases)
    left = held.sum(axis=1).astype(int)

    first, second = np.triu_indices(len(each), 1)
    both = np.rint(held @ held.T).astype(int)[first, second]
    says = weights[first] + weights[second]
    fewer = (both < left[first]) & (both < left[second])
    chosen = (says < most + 1) & fewer & (names[first] != names[second])
    first, second, both, says = first[chosen], second[chosen], both[chosen], says[chosen]

    (pairs,) = np.nonzero((both > 0) & (says < most))
    pairs = pairs[np.argsort(both[pairs], kind="stable")][:WIDENED]
    of_pairs = held[first[pairs]] * held[second[pairs]]
    (thirds,) = np.nonzero(weights < 2)
    all_three = np.rint(of_pairs @ held[thirds].T).astype(int)
    others = (names[thirds] != names[first[pairs], None]) & (names[thirds] != names[second[pairs], None])
    pair, third = np.nonzero((all_three < both[pairs, None]) & others)

    def placed(*columns: np.ndarray) -> np.ndarray:
        none = np.full(len(columns[0]), -1)
        return np.stack([each[column] for column in columns] + [none] * (3 - len(columns)), axis=1)

    return Combined(
        np.concatenate(
            [
                placed(np.arange(len(each))),
                placed(first, second),
                placed(first[pairs[pair]], second[pairs[pair]], thirds[third]),
            ]
        ),
        np.concatenate([weights, says, says[pairs[pair]] + weights[thirds[third]]]),
        np.concatenate([left, both, all_three[pair, third]]),
    )


def _unpacked(mask: int, cases: int) -> np.ndarray:
    """Return the bits of a number, one for each case: float32, which holds counts of as many as there can be."""
    packed = np.frombuffer(mask.to_bytes(-(-cases // 8), "little"), np.uint8)
    return np.unpackbits(packed, count=cases, bitorder="little").astype(np.float32)


def clusters(failing: Sequence[Traits], passing: Passing, gain: float | None = GAIN) -> list[Cluster]:
    """The failing cases with the conditions that tell them from the passing ones; in two parts, or without one or two
    that have something else, where that takes fewer bits. Empty where there is no such condition."""
    if not failing or not passing.cases:
        return []
    one = conditions(failing, passing, gain=gain)
    bits = bits_of(one[0], failing, passing) if one else math.inf
    if bits < PLAIN:
        return [Cluster([*failing], one)]
    parted = [parts for name in _telling(failing, passing) if (parts := _parted(name, failing, passing))]
    costs = [_bits_of_parts([part.conditions[0] for part in parts], failing, passing) for parts in parted]
    cost, parts = min(zip(costs, parted, strict=True), key=itemgetter(0), default=(math.inf, list[Cluster]()))
    if cost < min(bits, _bits(len(failing), len(passing.cases))):
        return parts
    return [Cluster([*failing], one)] if one else []


def _bits_of_parts(parts: Sequence[Condition], failing: Sequence[Traits], passing: Passing) -> float:
    """The bits that it takes to say one or two conditions, which cases of the first fail, which others of the second,
    and the failing cases that have none."""
    bits, left, told = SECOND * (len(parts) - 1), [*failing], 0
    for condition in parts:
        others = [one for one in left if not holds(condition, one)]
        passes = passing.having(condition) & ~told
        bits += LITERAL * weight(condition) + _bits(len(left) - len(others), passes.bit_count())
        left, told = others, told | passes
    return bits + EXCEPTION * len(left)


def _telling(failing: Sequence[Traits], passing: Passing) -> list[str]:
    """Features that some failing cases have and others have not, one of those that part them alike: those that tell
    most of which cases fail; two of the same axis are too many to try."""
    often = Counter(name for one in failing for name in one.features if SAME_AXIS not in name)

    def left(name: str) -> float:
        """Bits that it takes to say which cases fail if it is known which have the feature."""
        fails, passes = often[name], passing.mask(Literal(name)).bit_count()
        return _bits(fails, passes) + _bits(len(failing) - fails, len(passing.cases) - passes)

    names = sorted((name for name, times in often.items() if times < len(failing)), key=lambda name: (left(name), name))
    parts = {tuple(name in one.features for one in failing): name for name in reversed(names)}
    return sorted(parts.values(), key=names.index)[:PARTED]


def _parted(name: str, failing: Sequence[Traits], passing: Passing) -> list[Cluster]:
    """One condition for those that have a feature, and one for all that this does not hold of; two cases at least are
    evidence for each. One or two of many are left out: a kernel can have a second defect that few cases meet."""
    mine = [one for one in failing if name in one.features]
    if len(mine) < 2 or not (first := _sure(mine, failing, passing)):
        return []
    others = [one for one in failing if not holds(first[0], one)]
    second = _sure(others, failing, passing) if len(others) > 1 else []
    if second:
        return [Cluster(mine, first), Cluster(others, second)]
    few = len(others) <= min(2, len(failing) // ENOUGH_OTHERS)
    return [Cluster([one for one in failing if holds(first[0], one)], first)] if few else []


def _sure(some: Sequence[Traits], failing: Sequence[Traits], passing: Passing) -> list[Condition]:
    """Conditions of some failing cases, of whose other cases nearly all fail too."""

    def share(condition: Condition) -> float:
        fails = sum(holds(condition, one) for one in failing)
        return fails / (fails + passing.having(condition).bit_count())

    return [one for one in conditions(some, passing, MOST - 1, HIDDEN) if share(one) >= SURE]
