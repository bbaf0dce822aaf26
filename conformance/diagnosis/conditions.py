"""Conditions that separate the cases on which a kernel fails from the cases that it passes.

Verdicts are exact and the same every time, so a case that passes is as good evidence as one that fails. The search is
for a minimal failure-causing schema (Nie and Leung, ACM TOSEM 20(4), 2011): a few literals that hold for every failing
case, and all together for no passing case, or for few: a mistake does not show in every case in which it is made.
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
"""Largest number of literals that are combined into a condition, two features of the same axis counting as two; and
with the literals that are then added to the best condition, one after the other."""
ENOUGH = 5
"""Number of failing cases from which a condition may hold for passing cases too."""
HELD = 0.75
"""Largest share of the passing cases that a condition may hold for: if it holds for nearly all, it says nothing."""
GAIN = 8.0
"""Bits that a condition must save of the bits needed to say which cases fail without it."""
SECOND = EXCEPTION = 15.0
"""Bits that a second condition must save, and bits for a failing case that is left out: for which case it is, and as
the saving that leaving it out requires."""
ENOUGH_OTHERS = 10
"""Number of failing cases for each one that may be left out."""
LITERAL = 7.0
"""Bits of a literal: it is one of about a hundred that hold for all failing cases."""
FEW = ("window", "stride", "dilation", "groups")
"""First words of the names of sizes that have few values, for one of which a kernel may have a path of its own."""
COUNTS = ("elements", "outputs of an image", "taps", "N*")
"""First words of the names of sizes that count elements."""
UNLIMITED = ("padding", "dilation", "momentum", WIDER)
"""First words of the names of sizes that get no upper limit: no kernel has a path of its own for small ones, so failing
cases have small ones by chance."""
SMALL, SMALL_WINDOW = 128, 16
"""Upper limits of sizes, and of sizes of windows, below which a kernel may have a path of its own; a larger upper limit
is hardly ever part of a condition."""
FEW_ELEMENTS = 16
ONE_SIDE = ("padding before", "padding after")
"""First words of the names of features that say more than others: padding is rarely wrong on one side alone."""
SURE, HIDDEN = 0.9, 0.2
"""Least share of the cases of each of two conditions that must fail; passing cases that a condition may hold for, for
each failing case that it alone holds for."""
PLAIN = 40.0
"""Bits of a condition below which no two conditions are looked for: these take as many literals each."""
PARTED = 16
"""Number of features by which failing cases are split in two, to search for two conditions."""
KEPT, MARGIN = 64, 30.0
"""Number of best conditions that are kept, and bits that they may take more than the best."""
WIDENED = 400
"""Number of pairs of literals that a third is added to; pairs that hold for the fewest passing cases come first."""


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
        """True if it may hold for failing cases by the accident of their sizes."""
        return self.is_size or "multiple of" in self.name

    @property
    def weight(self) -> float:
        """Weight of the literal in a condition, 1 for a feature. Of two literals that hold for the same cases, a
        feature is plainer than a size, and a fixed size plainer than a limit. A kernel fails from some
        size on rather than up to it."""
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
        several = 0.05 if "*" in self.name or self.name.startswith(COUNTS) else 0.0  # N >= 2 was called M*N >= 2
        if self.most is None:
            return several + (
                1.3 if self.least == 2 else 1.5 if self.name == WIDER else 1.4
            )  # more than one of something
        small = SMALL_WINDOW if "window" in self.name else SMALL
        return several + (1.9 if self.most <= small else 3.1)

    def holds(self, traits: Traits) -> bool:
        """Return whether the literal holds for a case; a size that the case does not have is outside all limits."""
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
    """Passing cases as the bits of numbers: for each literal, the cases that it holds for."""

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
        """Return the cases that a literal holds for, as bits."""
        if not literal.is_size:
            return self._features.get(literal.name, 0)
        if literal not in self._sizes:
            self._sizes[literal] = sum(1 << place for place, traits in enumerate(self.cases) if literal.holds(traits))
        return self._sizes[literal]

    def having(self, condition: Condition) -> int:
        """Return the cases that every literal of a condition holds for, as bits."""
        return reduce(and_, map(self.mask, condition), self.everything)


class Cluster(NamedTuple):
    """Failing cases that one condition may separate from passing cases, and the conditions that do, the best first."""

    failing: list[Traits]
    conditions: list[Condition]


def holds(condition: Condition, traits: Traits) -> bool:
    """Return whether every literal of a condition holds for a case."""
    return all(literal.holds(traits) for literal in condition)


def weight(condition: Condition) -> float:
    """Return the weight of a condition, the sum of those of its literals."""
    return sum(literal.weight for literal in condition)


def common(failing: Sequence[Traits]) -> list[Literal]:
    """Return every literal that holds for all failing cases, the plainest first."""
    literals = [Literal(name) for name in frozenset.intersection(*(traits.features for traits in failing))]
    for name in failing[0].sizes:
        values = [traits.sizes[name] for traits in failing if name in traits.sizes]
        if len(values) == len(failing):
            least, most = min(values), max(values)
            # a lower limit of a few elements is hardly a path of a kernel: mistakes hide in fewer elements
            if least > FEW_ELEMENTS or not name.startswith(COUNTS):
                literals.append(Literal(name, least=least))
            if not name.startswith(UNLIMITED):
                literals.append(Literal(name, most=most))
            # only sizes with few values get a fixed one: a kernel has no path for any other value
            if least == most and name.startswith(FEW):
                literals.append(Literal(name, least, most))
    return sorted(literals, key=lambda literal: (literal.weight, literal.name, str(literal)))


def conditions(
    failing: Sequence[Traits],
    passing: Passing,
    most: float = MOST,
    hidden: float | None = None,
    gain: float | None = GAIN,
) -> list[Condition]:
    """Return the conditions that hold for all failing cases and for few passing cases, the best first: of few and plain
    literals, and for the fewest passing cases. The saving decides how many passing cases are allowed, unless `hidden`
    gives them as a share of the failing cases: ignored padding does not show if no window with an output reaches the
    padding, as in most cases.

    Of literals that hold for the same passing cases only the plainest is considered. `gain` is the number of bits that
    the best condition must save; None if more cases will follow.
    """
    limit = int((HELD if gain is not None else 1) * len(passing.cases))
    allowed = limit if hidden is None else round(hidden * len(failing))
    allowed = allowed if len(failing) >= ENOUGH else 0
    kept: dict[int, Literal] = {}
    for literal in common(failing):
        kept.setdefault(passing.mask(literal), literal)
    literals = [(mask, literal) for mask, literal in kept.items() if mask != passing.everything]
    bits = np.array([_bits(len(failing), passes) for passes in range(len(passing.cases) + 1)])
    combined = _combined(literals, len(passing.cases), most)
    cost = LITERAL * combined.weights + bits[combined.passes]
    # if the best of all holds for too many passing cases, longer conditions hold for fewer only by chance
    if cost.size and gain is not None:
        best = int(np.argmin(cost))
        if combined.passes[best] > allowed or cost[best] > bits[-1] - (gain if hidden is None else 0):
            return []
    near = (cost <= np.minimum.accumulate(cost) + MARGIN) & (combined.passes <= allowed)
    (places,) = np.nonzero(near)
    places = places[np.argsort(cost[places], kind="stable")][:KEPT]
    ranked = [(cost[place], tuple(literals[index][1] for index in combined.of(int(place)))) for place in places]
    ranked.sort(key=lambda pair: (pair[0], sorted(map(str, pair[1]))))
    best_first = [condition for _, condition in ranked]
    if most >= MOST and best_first and len(best_first[0]) >= MOST - 1:
        best_first[0] = _extended(best_first[0], failing, passing, kept.values())
    return best_first


def _extended(
    condition: Condition, failing: Sequence[Traits], passing: Passing, literals: Iterable[Literal]
) -> Condition:
    """Return a condition with more literals, each of which saves enough bits: a path for 3x3 windows without stride,
    dilation or groups takes more literals than are combined."""
    while len(condition) < LONGEST:
        names = {literal.name for literal in condition}
        longer = [(*condition, literal) for literal in literals if literal.name not in names and literal.weight < 2]
        costs = [bits_of(candidate, failing, passing) for candidate in longer]
        if not costs or min(costs) > bits_of(condition, failing, passing) - GAIN:
            break
        condition = longer[costs.index(min(costs))]
    return condition


def bits_of(condition: Condition, failing: Sequence[Traits], passing: Passing) -> float:
    """Return the bits needed to state a condition, and to say which of the cases that it holds for fail."""
    return LITERAL * weight(condition) + _bits(len(failing), passing.having(condition).bit_count())


def _bits(failing: int, passing: int) -> float:
    """Return the bits needed to say which cases of a condition fail, if the condition does not say so by itself: the
    shortest description is the best (Rissanen, Automatica 14(5), 1978)."""
    cases = failing + passing
    return sum(count * math.log2(cases / count) for count in (failing, passing) if count)


class Combined(NamedTuple):
    """Combinations of one, two or three literals, each of which excludes passing cases.

    places   indices of the literals, -1 for none [combinations, 3]
    weights  weight of each combination [combinations]
    passes   number of passing cases that each holds for [combinations]
    """

    places: np.ndarray
    weights: np.ndarray
    passes: np.ndarray

    def of(self, place: int) -> list[int]:
        """Return the places of the literals of one combination."""
        return [int(index) for index in self.places[place] if index >= 0]


def _combined(literals: Sequence[tuple[int, Literal]], cases: int, most: float) -> Combined:
    """Combine literals, each given with the passing cases that it holds for as bits, up to a weight that is less than
    `most` + 1. All pairs are counted by one product of matrices: in Python a search took seconds."""
    usable = np.array([place for place, (_, literal) in enumerate(literals) if literal.weight < most + 1], int)
    weights = np.array([literals[place][1].weight for place in usable])
    _, names = np.unique([literals[place][1].name for place in usable], return_inverse=True)
    holding = np.array([_unpacked(literals[place][0], cases) for place in usable]).reshape(len(usable), cases)
    counts = holding.sum(axis=1).astype(int)

    first, second = np.triu_indices(len(usable), 1)
    both = np.rint(holding @ holding.T).astype(int)[first, second]
    says = weights[first] + weights[second]
    fewer = (both < counts[first]) & (both < counts[second])
    chosen = (says < most + 1) & fewer & (names[first] != names[second])
    first, second, both, says = first[chosen], second[chosen], both[chosen], says[chosen]

    (pairs,) = np.nonzero((both > 0) & (says < most))
    pairs = pairs[np.argsort(both[pairs], kind="stable")][:WIDENED]
    of_pairs = holding[first[pairs]] * holding[second[pairs]]
    (thirds,) = np.nonzero(weights < 2)
    all_three = np.rint(of_pairs @ holding[thirds].T).astype(int)
    distinct = (names[thirds] != names[first[pairs], None]) & (names[thirds] != names[second[pairs], None])
    pair, third = np.nonzero((all_three < both[pairs, None]) & distinct)

    def placed(*columns: np.ndarray) -> np.ndarray:
        none = np.full(len(columns[0]), -1)
        return np.stack([usable[column] for column in columns] + [none] * (3 - len(columns)), axis=1)

    return Combined(
        np.concatenate(
            [
                placed(np.arange(len(usable))),
                placed(first, second),
                placed(first[pairs[pair]], second[pairs[pair]], thirds[third]),
            ]
        ),
        np.concatenate([weights, says, says[pairs[pair]] + weights[thirds[third]]]),
        np.concatenate([counts, both, all_three[pair, third]]),
    )


def _unpacked(mask: int, cases: int) -> np.ndarray:
    """Return the bits of a number, one for each case, in float32: products of matrices then count cases exactly."""
    packed = np.frombuffer(mask.to_bytes(-(-cases // 8), "little"), np.uint8)
    return np.unpackbits(packed, count=cases, bitorder="little").astype(np.float32)


def clusters(failing: Sequence[Traits], passing: Passing, gain: float | None = GAIN) -> list[Cluster]:
    """Return the failing cases with the conditions that separate them from the passing cases; in two clusters, or
    without one or two cases that have another defect, if that takes fewer bits. Empty if there is no such condition."""
    if not failing or not passing.cases:
        return []
    candidates = conditions(failing, passing, gain=gain)
    bits = bits_of(candidates[0], failing, passing) if candidates else math.inf
    if bits < PLAIN:
        return [Cluster([*failing], candidates)]
    parted = [parts for name in _telling(failing, passing) if (parts := _parted(name, failing, passing))]
    costs = [_bits_of_parts([part.conditions[0] for part in parts], failing, passing) for parts in parted]
    cost, parts = min(zip(costs, parted, strict=True), key=itemgetter(0), default=(math.inf, list[Cluster]()))
    if cost < min(bits, _bits(len(failing), len(passing.cases))):
        return parts
    return [Cluster([*failing], candidates)] if candidates else []


def _bits_of_parts(parts: Sequence[Condition], failing: Sequence[Traits], passing: Passing) -> float:
    """Return the bits needed to state one or two conditions, to say which of their cases fail, and to list the failing
    cases that neither holds for."""
    bits, unexplained, covered = SECOND * (len(parts) - 1), [*failing], 0
    for condition in parts:
        rest = [traits for traits in unexplained if not holds(condition, traits)]
        passes = passing.having(condition) & ~covered
        bits += LITERAL * weight(condition) + _bits(len(unexplained) - len(rest), passes.bit_count())
        unexplained, covered = rest, covered | passes
    return bits + EXCEPTION * len(unexplained)


def _telling(failing: Sequence[Traits], passing: Passing) -> list[str]:
    """Return features by which the failing cases can be split in two, those that say most about failure first. Of
    features that split the cases alike only one is returned. Pairs of features on the same axis are too many to try."""
    often = Counter(name for traits in failing for name in traits.features if SAME_AXIS not in name)

    def remaining_bits(name: str) -> float:
        """Return the bits needed to say which cases fail once it is known which of them have a feature."""
        fails, passes = often[name], passing.mask(Literal(name)).bit_count()
        return _bits(fails, passes) + _bits(len(failing) - fails, len(passing.cases) - passes)

    names = sorted(
        (name for name, times in often.items() if times < len(failing)), key=lambda name: (remaining_bits(name), name)
    )
    parts = {tuple(name in traits.features for traits in failing): name for name in reversed(names)}
    return sorted(parts.values(), key=names.index)[:PARTED]


def _parted(name: str, failing: Sequence[Traits], passing: Passing) -> list[Cluster]:
    """Return a cluster of the failing cases that have a feature, and one of the failing cases that its condition does
    not hold for; each needs two cases at least as evidence. One or two cases of many are left out instead: a kernel can
    have a second defect that few cases meet."""
    part = [traits for traits in failing if name in traits.features]
    if len(part) < 2 or not (first := _sure(part, failing, passing)):
        return []
    rest = [traits for traits in failing if not holds(first[0], traits)]
    second = _sure(rest, failing, passing) if len(rest) > 1 else []
    if second:
        return [Cluster(part, first), Cluster(rest, second)]
    few = len(rest) <= min(2, len(failing) // ENOUGH_OTHERS)
    return [Cluster([traits for traits in failing if holds(first[0], traits)], first)] if few else []


def _sure(part: Sequence[Traits], failing: Sequence[Traits], passing: Passing) -> list[Condition]:
    """Return the conditions of a part of the failing cases for which nearly all cases fail that they hold for."""

    def share(condition: Condition) -> float:
        fails = sum(holds(condition, traits) for traits in failing)
        return fails / (fails + passing.having(condition).bit_count())

    return [condition for condition in conditions(part, passing, MOST - 1, HIDDEN) if share(condition) >= SURE]
