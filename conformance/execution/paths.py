"""The paths of a kernel, as far as parameters tell: cases that together show its behaviour on each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import Any

from conformance.implementations.implementation import BEHAVIOUR, Implementation, ImplementationError
from conformance.layouts import rank_of
from conformance.operators import OPERATORS, takes
from conformance.operators.spatial import RANKS
from conformance.problems import Problem, Variant

Trait = tuple[str, Any]
SIZES = frozenset("nchwk")
"""Letters of a descriptor that are no parameters."""
LARGE = 1 << 16
"""Elements of a tensor from which on kernels take another path: blocks, threads, 16-bit indices."""
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
"""By level, the most cases of a kernel; of one that declares everything, eight hold nine in ten of the pairs."""


def paths(
    implementation: Implementation, operator: str, problems: Sequence[Problem], variants: Sequence[Variant], most: int
) -> list[tuple[Problem, Variant]]:
    """Of the cases that an implementation takes those that cover most pairs of what `_traits` names, small ones first:
    `most` of them in two dimensions, and a quarter as many in each other number.

    A predicate that raises takes a case, which reports it.
    """
    chosen: list[tuple[Problem, Variant]] = []
    # of most rows the kernel takes neither dtype nor layout, which is seen without asking it
    kernels = [kernel for kernel in implementation.kernels if kernel.operator == operator]
    declared = [v for v in variants if any(v.dtype in k.dtypes and v.layout in k.layouts for k in kernels)]
    known, bits = _traits_of(operator, tuple(problems))
    for rank in RANKS:
        rows = [
            (problem, variant, pairs | _pairs(variant, traits, bits))
            for problem, traits, pairs in known
            if problem.geometry.rank == rank
            for variant in declared
            if rank_of(variant.layout) == rank and _takes(implementation, operator, problem.geometry, variant)
        ]
        covered, room = 0, most if rank == 2 else -(-most // 4)
        while rows and room:
            # the first of equal ones
            problem, variant, pairs = max(rows, key=lambda row: (row[2] & ~covered).bit_count())
            if not pairs & ~covered:
                break
            covered, room = covered | pairs, room - 1
            chosen.append((problem, variant))
    return chosen


def _takes(implementation: Implementation, operator: str, geometry: Any, variant: Variant) -> bool:
    try:
        return implementation.supports(operator, geometry, variant.dtype, variant.layout)
    except ImplementationError:
        return True


@lru_cache(maxsize=64)
def _traits_of(
    operator: str, problems: tuple[Problem, ...]
) -> tuple[list[tuple[Problem, list[Trait], int]], dict[tuple[Trait, Trait], int]]:
    """Those that are small enough, by work, with what kernels choose a path by and its pairs; and which bit a pair
    has."""
    known = OPERATORS[operator]
    family = [problem for problem in problems if takes(operator, problem.geometry)]
    taken = [p for p in family if known.flops(p.geometry) <= MAX_WORK and p.geometry.c <= MAX_CHANNELS]
    taken = [p for p in taken if known.bytes(p.geometry, 1) <= MAX_ELEMENTS]
    taken = [p for p in taken if max(p.geometry.n, *p.geometry.size, getattr(p.geometry, "k", 0)) <= MAX_EXTENT]
    taken = [p for p in taken if max(p.geometry.window) <= MAX_WINDOW]
    taken = [p for p in taken if max(map(max, p.geometry.padding)) <= MAX_PADDING] or family[:1]
    bits: dict[tuple[Trait, Trait], int] = {}
    rows = []
    for problem in sorted(taken, key=lambda p: known.bytes(p.geometry, 1)):
        traits = [*_traits(operator, problem.geometry)]
        rows.append((problem, traits, _mask(combinations(traits, 2), bits)))
    return rows, bits


def _pairs(variant: Variant, traits: list[Trait], bits: dict[tuple[Trait, Trait], int]) -> int:
    """Those that the variant is part of."""
    dtype, layout = ("dtype", variant.dtype), ("layout", variant.layout)
    return _mask([(dtype, layout), *product((dtype, layout), traits)], bits)


def _mask(pairs: Iterable[tuple[Trait, Trait]], bits: dict[tuple[Trait, Trait], int]) -> int:
    mask = 0
    for pair in pairs:
        mask |= 1 << bits.setdefault(pair, len(bits))
    return mask


def _traits(operator: str, geometry: Any) -> Iterator[Trait]:
    tensors = (*OPERATORS[operator].inputs(geometry).values(), *OPERATORS[operator].outputs(geometry).values())
    yield "large", max(tensor.size for tensor in tensors) >= LARGE
    window, image = geometry.window, geometry.size
    named = {1: "x".join("1" * geometry.rank), 3: "x".join("3" * geometry.rank)}
    alike = window[0] if len(set(window)) == 1 else 0
    yield "window", "image" if window == image and alike != 1 else named.get(alike, "other")
    for field in geometry.fields:
        value = field.of(geometry)
        if field.letter == "g":
            yield "groups", "dense" if value == 1 else "depthwise" if value == geometry.c else "grouped"
        elif field.letter == "u":
            yield "stride", set(value) != {1}
        elif field.letter not in SIZES and field.axis is None:
            yield field.letter, value != field.default_for(vars(geometry))


def every_variant(dtypes: Sequence[str], layouts: Sequence[str]) -> tuple[Variant, ...]:
    """What behaviour is checked in."""
    return tuple(Variant(dtype, layout, BEHAVIOUR) for dtype in dtypes for layout in layouts)
