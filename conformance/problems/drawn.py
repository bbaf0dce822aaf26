"""Problems that stand in no table, drawn with weight on edges and thresholds.

Whoever draws says how one of several options is chosen, the simplest first: `random.Random.choice`, or a search.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple, Protocol, TypeVar

from conformance.dtypes import STORAGE
from conformance.operators import FAMILIES, OPERATORS, GeometryError
from conformance.problems import PROBLEMS
from conformance.problems.parameters import SIMPLEST, Coverage, Parameters, cost, features, geometry, parameters
from conformance.problems.table import DRAWN, LAYOUTS, Problem, Variant, applies, at_level

T = TypeVar("T")
CANDIDATES = 64
"""Problems that a run draws for an operator: an implementation gets the first ones that it takes."""
NOVELTY = 6
"""Draws, of which the one is kept that has most in it that no problem before it had."""

MAX_NEAR = 50
"""Draws near a problem, of which none may be within the budget."""

TINY = (1, 2, 3)
SMALL = (1, 2, 3, 4, 5, 6, 7, 8)
TAILS = (9, 11, 13, 15, 16, 17, 19, 23, 31, 32, 33)
LONG = (63, 64, 65, 127, 128, 129, 251, 255, 256, 257, 300, 511, 512, 513, 1021, 1024, 1025)
LONGEST = (2047, 2049, 4095, 4096, 4097, 8191, 16385, 32767, 32768, 32769, 65535, 65536, 65537, 131071, 131072)
"""Primes, powers of two and their neighbours."""
SPECIAL = {
    "affine": (1, 0),
    "run": (1, 0),
    "eps": (5, 3, 1, 7, 9),
    "outside": (0, 1),
    "mom": (10, 0, 1, 30, 50, 99, 100),
    "b": (0, 1),
    "ceil": (0, 1),
    "valid": (1, 0),
    "div": (0, 0, 0, 1, 2, 3, 5, 8, 24),
}
"""Options of a family, and the values that they are drawn from."""


class Choose(Protocol):
    """One of the options."""

    def __call__(self, options: Sequence[T], /) -> T: ...


class Budget(NamedTuple):
    """What a case may cost: FLOPs, and elements of all of its tensors."""

    flops: int
    elements: int


THIN = Budget(1 << 20, 1 << 16)
"""Of what a run draws: milliseconds."""


def draw(family: str, choose: Choose) -> Parameters:
    """The parameters of a problem, which may not exist. At most one axis is long; then the others are short."""
    names = SIMPLEST[family]
    long = choose(["", "", "", "", *(name for name in "nchwkrs" if name in names)])

    def size(name: str, usual: Sequence[int] = SMALL) -> int:
        if name == long:
            return choose(choose((TAILS, LONG, LONG, LONGEST)))
        return choose(choose((TINY, TINY, usual))) if long else choose(choose((usual, usual, usual, TAILS)))

    def axis(letter: str, window: str) -> tuple[int, ...]:
        taps, stride = size(window, SMALL[:5]), choose((1, 1, 1, 2, 2, 3, 4, 5))
        dilation = choose((1, 1, 1, 2, 3, 4)) if "d0" in names else 1
        extent = dilation * (taps - 1) + 1
        before = choose((0, 0, 0, 1, 2, taps // 2, extent - 1, extent))
        after = choose((before, before, before, 0, 1, 2, extent - 1))
        fits = max(1, extent - before - after)  # the window lies in the padded image exactly once
        image = size(letter) if letter == long else choose((size(letter), size(letter), extent, fits, extent + stride))
        return taps, stride, dilation, before, after, max(image, fits)

    found = {name: choose(SPECIAL[name]) for name in names if name in SPECIAL}
    found |= {"n": size("n", TINY), "c": size("c")}
    if "g" in names:
        grouping = choose(("dense", "dense", "groups", "depthwise"))
        found |= {"k": size("k"), "g": 1}
        if grouping == "depthwise":
            found |= {"g": found["c"], "c": 1, "k": choose((1, 1, 2, 3))}
        elif grouping == "groups":
            found["g"] = choose((2, 3, 4, 5, 7, 8))
    rows = axis("h", "r")
    columns = axis("w", "s")
    if long not in ("h", "w", "r", "s"):
        columns = tuple(choose((row, row, column)) for row, column in zip(rows, columns, strict=True))
    for place, letters in enumerate(("rs", "u0 u1", "d0 d1", "p0 p2", "p1 p3", "hw")):
        parts = letters.split() if " " in letters else [*letters]
        found |= {part: values[place] for part, values in zip(parts, (rows, columns), strict=True) if part in names}
    return found


def drawn(family: str, choose: Choose, budget: Budget, near: Sequence[Parameters] = (), sizes: bool = True) -> Any:
    """A geometry within a budget; with `near` one of these, of which a few parameters are drawn anew, or only such that
    are no sizes. Where none of these fits the budget, from nothing."""
    tries = 0
    while True:
        tries += 1
        found = draw(family, choose)
        if near and tries <= MAX_NEAR:
            kept, names = choose(near), [name for name in found if sizes or name not in "nchwkrsg"]
            found = kept | {name: found[name] for name in {choose(names) for _ in range(choose((1, 2, 3, 4)))}}
        try:
            made = geometry(family, found)
            flops, elements = cost(made)
        except GeometryError:
            continue
        if flops <= budget.flops and elements <= budget.elements and made.r * made.s <= LONG[-1]:
            return made


def distribution(family: str, dtype: str, choose: Choose) -> str:
    """One of the family's, those that reach every element twice as often."""
    known = [name for name in FAMILIES[family].distributions if applies(name, dtype)]
    return choose([*known, *(name for name in known if name in ("fixed", "integer"))])


@cache
def _known(family: str) -> tuple[list[Parameters], frozenset[str], list[list[tuple[str, Any]]]]:
    """Of the tables up to `standard`: parameters of what is small enough, all descriptors, all features."""
    found = [p.geometry for p, _ in at_level(PROBLEMS, "standard") if p.geometry.family == family]
    small = [g for g in found if cost(g) <= THIN]
    return [parameters(g) for g in small], frozenset(g.descriptor for g in found), [features(g) for g in found]


def candidates(operator: str, seed: int) -> Iterator[tuple[Problem, tuple[Variant, ...]]]:
    """Problems for a run of this seed, each with variants in the order in which they are to be tried.

    In turn from nothing and near a problem of the tables, where kernels that take little find something too. The same
    in every process.
    """
    family = OPERATORS[operator].family
    dice = random.Random(f"{seed} {operator}")
    near, known, table = _known(family)
    coverage = Coverage()
    for found in table:
        coverage.add(found)
    taken = set(known)
    for place in range(CANDIDATES):
        draws = [drawn(family, dice.choice, THIN, near if place % 2 else ()) for _ in range(NOVELTY)]
        best = max(draws, key=lambda one: (one.descriptor not in taken, coverage.new(features(one))))
        if best.descriptor in taken:
            continue
        taken.add(best.descriptor)
        coverage.add(features(best))
        formats = dice.sample([*product(STORAGE, LAYOUTS)], len(STORAGE) * len(LAYOUTS))
        offered = (Variant(d, layout, distribution(family, d, dice.choice)) for d, layout in formats)
        variants = tuple(variant for variant in offered if variant.suits(operator, best))
        yield Problem(DRAWN + best.descriptor.replace(" ", "_"), best, "standard", variants), variants
