"""What the tables of problems are made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from conformance.dtypes import DECLARABLE, DTYPES, SUMS, WHOLE
from conformance.layouts import grouped_of, has_groups, in_rank, layouts_of
from conformance.operators import FAMILIES, OPERATORS, parse
from conformance.operators.spatial import taps_of_padding
from conformance.storage import fits, repeats
from conformance.storage import parse as parse_storage

Origin = Literal["table", "drawn", "near", "where", "alone", "own"]
"""Where a problem comes from: a table, or given by hand; drawn from the seed, or read from a file of failures; near a
module's own shape; run to decide where a kernel fails; what a behaviour check was wrong on, in a new process; and what
a torch module is made for."""
LEVELS = ("smoke", "standard", "full", "huge")
SPARSE, HUGE = "sparse", 1 << 29
"""The distribution of problems with as many elements in one operand, which are 2^31 bytes in fp32, and of no others."""
DISTRIBUTIONS = (*dict.fromkeys(name for family in FAMILIES.values() for name in family.distributions), SPARSE)
"""Ways of drawing a problem's inputs; `conformance.inputs.distributions` has one function for each."""


def unlisted(geometry: Any, origin: Origin, level: str, variants: tuple[Variant, ...]) -> Problem:
    """Return a problem that stands in no table, which has its descriptor in one word as its name."""
    return Problem(geometry.descriptor.replace(" ", "_"), geometry, level, variants, origin)


def is_huge(geometry: Any) -> bool:
    """Whether inputs of a problem may be drawn sparse."""
    sizes = geometry.x.size, geometry.y.size
    return max(sizes) >= HUGE and geometry.family not in ("conv_bn", "conv_requantized")


def determines(operator: str, geometry: Any, distribution: str) -> bool:
    """Whether inputs so drawn have one right result. Not where whole channels of dz are NaN and meet the padding,
    which algorithms multiply with zero or leave out."""
    meets = operator == "conv_bn_backward" and distribution in ("special", "nonfinite")
    return not meets or not taps_of_padding(geometry)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a problem."""

    dtype: str
    layout: str
    distribution: str
    storage: str = ""
    """How operands lie in memory, see `conformance.storage`; empty where all are contiguous."""

    def suits(self, operator: str, geometry: Any) -> bool:
        """Whether the operator has one right result of these values on this problem, and every operand that the storage
        names, and each can lie so."""
        if not OPERATORS[operator].defined(geometry, self.dtype):
            return False
        if not determines(operator, geometry, self.distribution):
            return False
        if has_groups(self.layout) and not hasattr(geometry, "groups"):
            return False
        if not self.storage:
            return True
        inputs = OPERATORS[operator].inputs(geometry)
        named = parse_storage(self.storage).items()
        return all(operand in inputs and fits(kind, len(inputs[operand].shape)) for operand, kind in named)


@dataclass(frozen=True, slots=True)
class Problem:
    """A named geometry, the lowest level that runs it, and how it is run there."""

    name: str
    geometry: Any
    """A `conformance.operators.Geometry`."""
    level: str
    variants: tuple[Variant, ...]
    origin: Origin = "table"
    spread: tuple[str, str] | None = None
    """A dtype and a layout: cases in these are run in one that a kernel declares, which problems take in turn."""


OF_EIGHT_BITS = {
    "fp8": ("integer", "fixed", "natural", "impulse", "special", "nonfinite", "wide", "mixed", "codes"),
    "whole": ("integer", "natural", "impulse", "large"),
}
"""The distributions that problems have whose inputs are fp8, or whole numbers. Sums stay within the range of what they
are stored in."""
REQUANTIZED = ("scales", "ties", "cancelled")
"""The distributions of problems whose results have 8 bits as well."""


REPEATABLE = ("integer", "scaled", "ties")
"""Distributions of operands whose values repeat: a right kernel failed on subnormal numbers that were one in each sum
and became all of it."""


def applies(distribution: str, dtype: str, storage: str = "") -> bool:
    """Whether a distribution exists for a dtype and a storage: fp64 data at the ends of the range would leave the
    reference's own, sums of values that repeat stay exact or within limits in a few distributions alone, and of 8 bits
    there are few numbers."""
    if repeats(storage) and distribution not in REPEATABLE:
        return False
    if distribution in REQUANTIZED:
        return dtype in (WHOLE if distribution == "cancelled" else SUMS)
    if dtype in SUMS:
        return distribution in OF_EIGHT_BITS["whole" if dtype in WHOLE else "fp8"]
    if distribution == "codes":
        return False
    return not (distribution == "wide" and dtype == "fp64")


def usual_distribution(family: str, dtype: str) -> str:
    """Return the distribution of a case whose own is not said: `fixed`, or the first that there is of so few bits."""
    known = FAMILIES[family].distributions
    return next(name for name in ("fixed", *known) if name in known and applies(name, dtype))


@cache
def variants(family: str, *lines: str, rank: int = 2) -> tuple[Variant, ...]:
    """Read lines such as `fp32,bf16 nchw,nhwc integer,fixed`: every combination that exists; `all` stands for all.
    Layouts are written as those of two dimensions, and are those of the same kind in others."""
    every = (list(DTYPES), list(layouts_of(2)), list(FAMILIES[family].distributions))
    found = []
    for line in lines:
        names = (word.split(",") for word in line.split())
        dtypes, layouts, distributions = (
            known if words == ["all"] else words for words, known in zip(names, every, strict=True)
        )
        found += [
            Variant(d, in_rank(la, rank), a) for d in dtypes for la in layouts for a in distributions if applies(a, d)
        ]
    return tuple(dict.fromkeys(found))


def grouped(every: Iterable[Variant], rank: int) -> tuple[Variant, ...]:
    """The variants in channels last once more in each layout that has groups as an axis."""
    last = [variant for variant in every if variant.layout == layouts_of(rank)[1]]
    return tuple(replace(variant, layout=layout) for layout in grouped_of(rank) for variant in last)


@cache
def every(family: str, rank: int) -> tuple[Variant, ...]:
    """Return all variants that a problem of a family and a rank can have; the same object each time."""
    known = FAMILIES[family]
    dtypes = [dtype for dtype in DECLARABLE if any(dtype in operator.dtypes for operator in known.operators)]
    plain = variants(family, f"{','.join(dtypes)} all all", rank=rank)
    takes_groups = any(field.letter == "g" for field in known.geometry.FIELDS[rank])
    return (*plain, *(grouped(plain, rank) if takes_groups else ()))


def typed(text: str, level: str = "smoke") -> Problem:
    """The problem of a descriptor given by hand, in every variant; raises GeometryError."""
    geometry = parse(text)
    family = geometry.family
    huge = is_huge(geometry)
    run = variants(family, f"all all {SPARSE}", rank=geometry.rank) if huge else every(family, geometry.rank)
    existing = tuple(v for v in run if any(one.defined(geometry, v.dtype) for one in FAMILIES[family].operators))
    # the selection adds storages to a problem with all of `every`
    return unlisted(geometry, "table", level, run if existing == run else existing)


def usual(problems: Iterable[Problem], dtypes: Iterable[str] = DTYPES) -> list[Problem]:
    """Those that are run in one of these dtypes. What is chosen among problems does not change when one is added that
    is run in other dtypes alone."""
    wanted = frozenset(dtypes)
    return [problem for problem in problems if any(variant.dtype in wanted for variant in problem.variants)]
