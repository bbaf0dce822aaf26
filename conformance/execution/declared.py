"""Declarations of an implementation for one operator, each asked for once, however many cases depend on it; and the
code paths of its kernels, as far as features of problems tell them apart: cases that together cover every path."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, reduce
from itertools import combinations
from operator import or_
from typing import Any

from conformance.dtypes import FILTERS
from conformance.execution.invocation import require_storage
from conformance.execution.remote import Condition
from conformance.failure import Undeclared
from conformance.implementations.implementation import (
    BEHAVIOUR,
    Implementation,
    ImplementationError,
    Kernel,
    NotDeclared,
    Unsupported,
)
from conformance.layouts import is_optional, rank_of
from conformance.operators import OPERATORS, Geometry, takes
from conformance.operators.spatial import EVERY_RANK
from conformance.problems import PROBLEMS, Problem, Variant, at_level, of_family
from conformance.problems.features import AXES, LARGE, OF_PROBLEM, is_large, options

MAX_WORK = 1 << 25
"""Most FLOPs of a case of a behaviour check, which calls it a hundred times."""
MAX_CHANNELS, MAX_TERMS = 128, 4096
"""Most channels of a check's case: XLA takes a minute for a hundred calls of a grouped convolution with hundreds. Most
terms of a matrix product: a race of kernels that divide sums passed, as all cases had 16."""
LONG_SUM = 256
"""Terms of a matrix product that kernels divide."""
MAX_ELEMENTS = 1 << 19
"""Most elements of a check's case, in all tensors: the exact statistics of more take seconds."""
MAX_EXTENT = 1024
"""Longest axis of a check's case: kernels that loop along it in Python take minutes if threads interrupt them."""
MAX_WINDOW = 4096
"""Most taps of the window of a check's case: more kernels loop over taps in Python."""
MAX_PADDING = 16
"""Most padding of a check's case: checks enlarge its batch, and with it the padded images that many kernels make."""
MAX_PATHS = {"smoke": 2, "standard": 8, "full": 24}
"""Level -> the most cases of a kernel in two dimensions; a quarter of them in each other number of dimensions."""
SPREAD = {"smoke": 8, "standard": 16, "full": 24}
"""Level -> the most cases for checks that are each made on only a few of them."""
MANY_TAPS = "window of 25 taps or more"
"""Feature of windows that kernels no longer unroll; some kernels share a buffer for the taps among threads."""
WINDOWS = ("pointwise", "window 3 on every axis", "window = image on every axis")
GROUPS = ("groups = channels", "groups > 1")
"""Features of which the first that holds may decide a kernel's path, beside padding, strides, dilations and options."""

Path = tuple[Problem, Variant]
Wanted = Callable[[str, str], bool]
"""Function of a dtype and a layout that returns whether these are asked for."""


class Declared:
    """Kernels of an implementation for an operator. Their predicates are asked about some `geometries` beforehand."""

    def __init__(self, implementation: Implementation, operator: str, geometries: Sequence[Any] = ()) -> None:
        self.implementation, self.operator = implementation, operator
        self.kernels = [kernel for kernel in implementation.kernels if kernel.operator == operator]
        self.pairs = tuple(dict.fromkeys((d, la) for k in self.kernels for la in k.layouts for d in k.dtypes))
        """Dtypes and layouts for which the implementation has a kernel."""
        self.layouts = tuple(dict.fromkeys(layout for kernel in self.kernels for layout in kernel.layouts))
        self._found: dict[tuple[str, str, str], Kernel | Unsupported | ImplementationError] = {}
        self._stored: dict[tuple[str, str], Unsupported | None] = {}
        self.learn(geometries)

    def learn(self, geometries: Sequence[Any]) -> None:
        """Ask the predicates of kernels in another process about many problems in one exchange."""
        for kernel in self.kernels:
            if isinstance(kernel.when, Condition):
                ranks = {rank_of(layout) for layout in kernel.layouts}
                kernel.when.learn(geometry for geometry in geometries if geometry.rank in ranks)

    def kernel(self, geometry: Geometry, dtype: str, layout: str) -> Kernel:
        """Return the kernel for a problem. Raises Unsupported with the reason if there is none, and ImplementationError
        if a predicate raises."""
        key = geometry.descriptor, dtype, layout
        if key not in self._found:
            try:
                self._found[key] = self.implementation.find(self.operator, geometry, dtype, layout)
            except (Unsupported, ImplementationError) as refusal:
                self._found[key] = refusal.with_traceback(None)
        outcome = self._found[key]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def takes(self, problem: Problem, variant: Variant) -> bool:
        """Return whether a kernel declares that it can be verified on a case; False if a predicate raises, which the
        case itself reports."""
        try:
            kernel = self.kernel(problem.geometry, variant.dtype, variant.layout)
        except (Unsupported, ImplementationError):
            return False
        return not kernel.contract.exempts(variant.distribution, variant.dtype)

    def lacks(self, variant: Variant) -> Unsupported | None:
        """Return why the implementation has no case in a variant's layout and storage on any problem, if so: it does
        not declare a layout that is run only where it is declared, or its framework has no such storage."""
        key = variant.layout, variant.storage
        if key not in self._stored:
            try:
                if is_optional(variant.layout) and variant.layout not in self.layouts:
                    undeclared = Undeclared(kind="layout", what=variant.layout)
                    raise NotDeclared(f"layout {variant.layout} is not declared", undeclared)
                require_storage(self.implementation.arrays, variant.storage)
                self._stored[key] = None
            except Unsupported as absence:
                self._stored[key] = absence
        return self._stored[key]


def candidates(
    declared: Declared, problems: Iterable[Problem], wants: Wanted = lambda dtype, layout: True
) -> dict[int, list[Path]]:
    """Return the programs that an implementation takes and that kernels may choose a path for, small ones first, by
    their number of dimensions: two before others. Problems of which tables have only cases in dtypes with filters of
    their own are for kernels that declare one of these.

    A case whose predicate raises is included; running the case reports the error.
    """
    operator = declared.operator
    dtypes = {dtype for dtype, _ in declared.pairs}
    takes_filters = not dtypes.isdisjoint(FILTERS)
    listed = (p for p in problems if takes_filters or not p.variants or {v.dtype for v in p.variants} - FILTERS.keys())
    ranked = [problem for problem in listed if _is_small(operator, problem.geometry)]
    ranked.sort(key=lambda problem: (_is_thin(problem.geometry), OPERATORS[operator].on(problem.geometry).bytes(1)))
    ranks = sorted(EVERY_RANK, key=lambda rank: (rank != 2, rank))
    return {rank: _taken(declared, [p for p in ranked if p.geometry.rank == rank], wants) for rank in ranks}


def paths(programs: Mapping[int, Sequence[Path]], most: int) -> list[Path]:
    """Return the `candidates` that cover most pairs of features by which kernels choose a path. One has an operand of
    more than 2^16 elements, in fp32 if possible, and one of two has a window of many taps."""
    cover = []
    for rank, of_rank in programs.items():
        room = most if rank in (0, 2) else -(-most // 4)
        chosen = _covering(of_rank, room)
        many = [path for path in of_rank if has_many_taps(path[0].geometry)]
        if many and len(chosen) > 1 and not any(path in many for path in chosen):
            chosen[1:2] = _covering(many, 1)
        large = [path for path in of_rank if is_large(path[0].geometry)]
        if large and room > 2 and not any(path in large for path in chosen):
            chosen[-1] = next((path for path in large if path[1].dtype == "fp32"), large[0])
        cover += chosen
    return cover


def has_many_taps(geometry: Any) -> bool:
    """Return whether windows are so large, or the sums of a matrix product so long, that kernels divide them."""
    return bool(math.prod(geometry.window) >= 25 or (not geometry.rank and geometry.c // geometry.groups >= LONG_SUM))


def usual_paths(implementation: Implementation, operator: str) -> Sequence[Path]:
    """Return the paths of level standard, in every dtype and layout of the implementation."""
    usual: list[Path] | None = implementation.usual_paths.get(operator)
    if usual is None:
        programs = candidates(Declared(implementation, operator), _standard(operator))
        usual = implementation.usual_paths[operator] = paths(programs, MAX_PATHS["standard"])
    return usual


@cache
def _standard(operator: str) -> tuple[Problem, ...]:
    rows = at_level(of_family(PROBLEMS, OPERATORS[operator].family), "standard")
    return tuple(problem for problem, _ in rows if takes(operator, problem.geometry))


def _is_thin(geometry: Any) -> bool:
    """Return whether a problem has an axis of one element, which cannot be in a wrong order or grow; other problems are
    preferred to it as cases of a path."""
    return bool(min(geometry.n, geometry.c, *geometry.size, *geometry.output_size) == 1)


@cache
def _is_small(operator: str, geometry: Any) -> bool:
    """Return whether a problem is small enough for a check to call it a hundred times, and has something to compute."""
    workload = OPERATORS[operator].on(geometry)
    return (
        takes(operator, geometry)
        and 0 < workload.flops <= MAX_WORK
        and workload.bytes(1) <= MAX_ELEMENTS
        and geometry.c <= (MAX_CHANNELS if geometry.rank else MAX_TERMS)
        and max(geometry.n, *geometry.size, getattr(geometry, "k", 0)) <= MAX_EXTENT
        and math.prod(geometry.window) <= MAX_WINDOW
        and max(map(max, geometry.padding), default=0) <= MAX_PADDING
    )


def _taken(declared: Declared, problems: Sequence[Problem], wants: Wanted) -> list[Path]:
    """Return the first problem of each kind, in every dtype and layout that the implementation declares."""
    pairs = [(*pair, rank_of(pair[1])) for pair in declared.pairs if wants(*pair)]
    first: dict[tuple[tuple[str, ...], str, str], Path] = {}
    for problem in problems:
        kind, rank = _kind(problem.geometry), problem.geometry.rank
        for dtype, layout, rank_of_layout in pairs:
            if rank_of_layout != rank or (kind, dtype, layout) in first:
                continue
            try:
                declared.kernel(problem.geometry, dtype, layout)
            except Unsupported:
                continue
            except ImplementationError:
                pass  # the case reports it
            first[kind, dtype, layout] = problem, Variant(dtype, layout, BEHAVIOUR)
    return [*first.values()]


def _covering(choices: Sequence[Path], most: int) -> list[Path]:
    """Return at most `most` paths, each with most pairs of features that none before has; the first of equal ones."""
    having = [(path, _pairs(*_kind(path[0].geometry), path[1].dtype, path[1].layout)) for path in choices]
    chosen: list[Path] = []
    covered = 0
    while having and len(chosen) < most:
        path, pairs = max(having, key=lambda choice: (choice[1] & ~covered).bit_count())
        if not pairs & ~covered:
            break
        covered |= pairs
        chosen.append(path)
    return chosen


_BITS: dict[tuple[str, str], int] = {}
"""Pair of features -> its own bit."""


@cache
def _pairs(*features: str) -> int:
    """Return the bits of all pairs of the features: sets of pairs took a third of the time of a plan."""
    return reduce(or_, (_BITS.setdefault(pair, 1 << len(_BITS)) for pair in combinations(features, 2)))


@cache
def _kind(geometry: Any) -> tuple[str, ...]:
    """Return the features by which a kernel may choose its path, held or not: a plain problem is a path too. Of all
    features, which take ten times as long, they are few."""
    rank = geometry.rank
    axis = "some axis" if rank != 1 else AXES[rank][0]
    window = next((name for name in WINDOWS if OF_PROBLEM[name](geometry)), "another window")
    groups = next((name for name in GROUPS if OF_PROBLEM[name](geometry)), "dense")
    properties = {LARGE: is_large(geometry), "no padding": OF_PROBLEM["no padding"](geometry)}
    properties |= {f"stride of {axis} > 1": max(geometry.stride, default=1) > 1}
    properties |= {f"dilation of {axis} > 1": max(geometry.dilation, default=1) > 1} | options(geometry)
    if not rank:
        properties["batch > 1"] = geometry.groups > 1
    properties[MANY_TAPS] = has_many_taps(geometry)
    properties["N > 4 and no multiple of 4"] = geometry.n > 4 and geometry.n % 4 != 0
    return window, groups, *(f"{name}: {holds}" for name, holds in properties.items())
