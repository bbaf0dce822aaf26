"""The paths of a kernel, as far as features tell: cases that together show its behaviour on each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any

from conformance.implementations.implementation import BEHAVIOUR, Implementation, ImplementationError
from conformance.layouts import layouts_of, rank_of
from conformance.operators import OPERATORS, takes
from conformance.operators.spatial import RANKS
from conformance.problems import PROBLEMS, Problem, Variant, at_level
from conformance.problems.features import LARGE, SAME_AXIS, of_geometry, pairs
from conformance.problems.ranking import Row

MAX_WORK = 1 << 25
"""FLOPs of a case: a check calls it a hundred times."""
MAX_CHANNELS = 128
"""Of a case: XLA takes a minute for a hundred calls of a grouped convolution with hundreds."""
MAX_ELEMENTS = 1 << 19
"""Of a case, in all tensors: the exact statistics of more take seconds."""
MAX_EXTENT = 1024
"""The same along one axis: kernels that go along it in Python take minutes while threads interrupt their lines."""
MAX_WINDOW = 4096
"""The same of a window, whose taps more kernels go along in Python."""
MAX_PADDING = 16
"""Of a case: checks enlarge its batch, and with it the padded images that many kernels make."""
MAX_PATHS = {"smoke": 2, "standard": 8, "full": 24}
"""By level, the most cases of a kernel in two dimensions; in each other number a quarter of them."""
POOL = 64
"""Programs of the ranking that paths are chosen from."""

Path = tuple[Problem, Variant]
Wanted = Callable[[str, str], bool]
"""Whether a dtype and a layout are asked for."""


def paths(
    one: Implementation, operator: str, rows: Iterable[Row], most: int, wanted: Wanted = lambda dtype, layout: True
) -> list[Path]:
    """Of the first programs that an implementation takes, those that cover most pairs of features, with two dimensions
    first. One operand is beyond 2^16 elements, in fp32 if possible, as far as there is such a program.

    A predicate that raises takes a case, which reports it.
    """
    ranked = [(problem, variants) for problem, variants in rows if _is_small(operator, problem.geometry)]
    found = []
    for rank in sorted(RANKS, key=lambda rank: (rank != 2, rank)):
        room = most if rank == 2 else -(-most // 4)
        taken = _taken(one, operator, [row for row in ranked if row[0].geometry.rank == rank], wanted)
        every = [*islice(taken, POOL), *(path for path in taken if LARGE in of_geometry(path[0].geometry))]
        chosen = _covering(every, room)
        large = [path for path in every if LARGE in of_geometry(path[0].geometry)]
        if large and room > 2 and not any(path in large for path in chosen):
            chosen[-1] = next((path for path in large if path[1].dtype == "fp32"), large[0])
        found += chosen
    return found


def usual_paths(one: Implementation, operator: str) -> list[Path]:
    """Those of level standard, in every dtype and layout of the implementation."""
    return paths(one, operator, _standard(operator), MAX_PATHS["standard"])


@cache
def _standard(operator: str) -> tuple[Row, ...]:
    return tuple(row for row in at_level(PROBLEMS, "standard") if takes(operator, row[0].geometry))


@cache
def _is_small(operator: str, geometry: Any) -> bool:
    """Whether a check can call a problem a hundred times, and there is something to compute."""
    known = OPERATORS[operator]
    return (
        takes(operator, geometry)
        and 0 < known.flops(geometry) <= MAX_WORK
        and known.bytes(geometry, 1) <= MAX_ELEMENTS
        and geometry.c <= MAX_CHANNELS
        and max(geometry.n, *geometry.size, getattr(geometry, "k", 0)) <= MAX_EXTENT
        and math.prod(geometry.window) <= MAX_WINDOW
        and max(map(max, geometry.padding)) <= MAX_PADDING
    )


def _taken(one: Implementation, operator: str, rows: Sequence[Row], wanted: Wanted) -> Iterator[Path]:
    """Each problem once, as it is ranked or else in a dtype and layout that the implementation declares."""
    kernels = [kernel for kernel in one.kernels if kernel.operator == operator]
    declared = [
        *dict.fromkeys((dtype, la) for k in kernels for la in k.layouts for dtype in k.dtypes if wanted(dtype, la))
    ]
    seen = set[str]()
    for place, (problem, variants) in enumerate(rows):
        rank = problem.geometry.rank
        own = [(dtype, layout) for dtype, layout in declared if rank_of(layout) == rank]
        ranked = (variants[0].dtype, variants[0].layout)
        if problem.name in seen or not own:
            continue
        dtype, layout = ranked if ranked in own else own[place % len(own)]
        try:
            taken = one.supports(operator, problem.geometry, dtype, layout)
        except ImplementationError:
            taken = True
        if taken:
            seen.add(problem.name)
            yield problem, Variant(dtype, layout, BEHAVIOUR)


def _covering(every: Sequence[Path], most: int) -> list[Path]:
    """At most so many, each with most pairs of features that none before it has; the first of equal ones."""
    having = [(path, _pairs(*path)) for path in every]
    chosen: list[Path] = []
    covered = set[tuple[str, str]]()
    while having and len(chosen) < most:
        path, added = max(having, key=lambda one: len(one[1] - covered))
        if added <= covered:
            break
        covered |= added
        chosen.append(path)
    return chosen


def _pairs(problem: Problem, variant: Variant) -> set[tuple[str, str]]:
    single = {feature for feature in of_geometry(problem.geometry) if SAME_AXIS not in feature}
    last = variant.layout == layouts_of(problem.geometry.rank)[1]
    return {*pairs({*single, variant.dtype, "channels last" if last else variant.layout})}
