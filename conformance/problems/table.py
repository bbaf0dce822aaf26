"""The elements of the tables of problems: problems and their variants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from conformance.dtypes import DECLARABLE, DTYPES, SUMS, WHOLE
from conformance.layouts import grouped_of, has_groups, in_rank, layouts_of
from conformance.operators import FAMILIES, OPERATORS, Geometry, parse
from conformance.storage import fits, repeats, repeats_alone
from conformance.storage import parse as parse_storage

Origin = Literal["table", "drawn", "near", "where", "alone", "own"]
"""Where a problem comes from. table: a table or the user; drawn: drawn from the seed, or read from a file of failures;
near: like a module's own shape; where: run to locate a failure; alone: the problem on which a behaviour check failed,
run in a new process; own: the shape that a torch module is made for."""
LEVELS = ("smoke", "standard", "full", "huge")
SPARSE, HUGE = "sparse", 1 << 29
"""Distribution used for problems with at least HUGE elements (2^31 bytes in fp32) in an operand, and for no others."""
DISTRIBUTIONS = (*dict.fromkeys(name for family in FAMILIES.values() for name in family.distributions), SPARSE)
"""Ways of drawing a problem's inputs; `conformance.inputs.distributions` has one function for each."""


def unlisted(geometry: Geometry, origin: Origin, level: str, variants: tuple[Variant, ...]) -> Problem:
    """Return a problem that is not in a table; its name is its descriptor with `_` for blanks."""
    return Problem(geometry.descriptor.replace(" ", "_"), geometry, level, variants, origin)


def is_huge(geometry: Any) -> bool:
    """Tell whether a problem is so large that its inputs are drawn sparse."""
    has_rules = all(operator.sparse for operator in FAMILIES[geometry.family].operators)
    tensors = geometry.x, geometry.y, getattr(geometry, "filter", geometry.y)
    return has_rules and max(tensor.size for tensor in tensors) >= HUGE


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a problem."""

    dtype: str
    layout: str
    distribution: str
    storage: str = ""
    """How operands lie in memory, see `conformance.storage`; empty if all are contiguous."""

    def suits(self, operator: str, geometry: Geometry) -> bool:
        """Tell whether the operator has a unique correct result for this variant of the problem, and has all operands
        that the storage names, in kinds that they can have."""
        if not OPERATORS[operator].defined(geometry, self.dtype):
            return False
        if not OPERATORS[operator].determines(geometry, self.distribution):
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
    """A named geometry, the lowest level that runs it, and the variants in which it is run."""

    name: str
    geometry: Any
    """A `conformance.operators.Geometry`."""
    level: str
    variants: tuple[Variant, ...]
    origin: Origin = "table"
    spread: tuple[str, str] | None = None
    """A dtype and a layout: cases in them are run in a dtype and layout that the kernel declares, problems in turn."""


OF_EIGHT_BITS = {
    "fp8": ("integer", "fixed", "natural", "impulse", "special", "nonfinite", "wide", "mixed", "codes", "absorbed"),
    "whole": ("integer", "natural", "impulse", "large"),
}
"""Distributions of problems whose inputs are fp8, or integers (`whole`). Their sums stay within the range of the format
that stores them."""
REQUANTIZED = ("scales", "ties", "cancelled")
"""Distributions of problems whose results have 8 bits, too."""
REPEATABLE = ("integer", "scaled", "ties")
"""Distributions for operands whose values repeat, beside `wide` where whole matrices do so, because each sum then has
terms of its own: inputs that were rounded to TF32 for one matrix of a batch passed on whole numbers. Other ones are
excluded: a correct kernel failed on a subnormal number that was meant to be one term of a sum, but was all of its terms
because values repeat."""


def applies(distribution: str, dtype: str, storage: str = "") -> bool:
    """Tell whether a distribution exists for a dtype and a storage. fp64 data at the ends of the range would leave the
    reference's own range, and terms that fp64 absorbs its bits; sums of repeated values are exact or within limits only
    for a few distributions; and 8-bit formats have few numbers."""
    if repeats(storage) and distribution not in (*REPEATABLE, "wide" if repeats_alone(storage) else ""):
        return False
    if distribution in REQUANTIZED:
        return dtype in (WHOLE if distribution == "cancelled" else SUMS)
    if dtype in SUMS:
        return distribution in OF_EIGHT_BITS["whole" if dtype in WHOLE else "fp8"]
    if distribution == "codes":
        return False
    return not (distribution in ("wide", "absorbed") and dtype == "fp64")


def usual_distribution(family: str, dtype: str, storage: str = "") -> str:
    """Return the default distribution of a case: `fixed`, or the family's first one that exists in the dtype. Where
    operands repeat their values, it is `exact_distribution`. Raises StorageError."""
    names = FAMILIES[family].distributions
    first = exact_distribution(family) if repeats(storage) else "fixed"
    usual = (name for name in (first, *names) if name in names and applies(name, dtype, storage))
    return next(usual, names[0])


def exact_distribution(family: str) -> str:
    """Return the distribution of a case whose values repeat; its judgement does not need independent errors."""
    return next((name for name in REPEATABLE if name in FAMILIES[family].distributions), "integer")


@cache
def variants(family: str, *lines: str, rank: int = 2) -> tuple[Variant, ...]:
    """Read lines such as `fp32,bf16 nchw,nhwc integer,fixed`: every combination that exists; `all` stands for all.
    Layouts are written as in two dimensions and stand for the layouts of the same kind in `rank` dimensions."""
    choices = (list(DTYPES), list(layouts_of(FAMILIES[family].rank)), list(FAMILIES[family].distributions))
    result = []
    for line in lines:
        names = (word.split(",") for word in line.split())
        dtypes, layouts, distributions = (
            all_values if words == ["all"] else words for words, all_values in zip(names, choices, strict=True)
        )
        result += [
            Variant(d, in_rank(la, rank), a) for d in dtypes for la in layouts for a in distributions if applies(a, d)
        ]
    return tuple(dict.fromkeys(result))


def grouped(plain: Iterable[Variant], rank: int) -> tuple[Variant, ...]:
    """Return the channels-last variants again, in each layout that has groups as an axis."""
    last = [variant for variant in plain if variant.layout == layouts_of(rank)[1]]
    return tuple(replace(variant, layout=layout) for layout in grouped_of(rank) for variant in last)


@cache
def every(family: str, rank: int) -> tuple[Variant, ...]:
    """Return all variants that a problem of a family and a rank can have; each call returns the same object."""
    definition = FAMILIES[family]
    dtypes = [dtype for dtype in DECLARABLE if any(dtype in operator.dtypes for operator in definition.operators)]
    plain = variants(family, f"{','.join(dtypes)} all all", rank=rank)
    takes_groups = any(field.letter == "g" for field in definition.geometry.FIELDS[rank])
    return (*plain, *(grouped(plain, rank) if takes_groups else ()))


def typed(text: str, level: str = "smoke") -> Problem:
    """Return the problem of a descriptor from the user, in every variant. Raises GeometryError."""
    geometry = parse(text)
    family = geometry.family
    huge = is_huge(geometry)
    run = variants(family, f"all all {SPARSE}", rank=geometry.rank) if huge else every(family, geometry.rank)
    existing = tuple(
        v for v in run if any(operator.defined(geometry, v.dtype) for operator in FAMILIES[family].operators)
    )
    # the selection adds storages to a problem whose variants are all of `every`
    return unlisted(geometry, "table", level, run if existing == run else existing)


def usual(problems: Iterable[Problem], dtypes: Iterable[str] = DTYPES) -> list[Problem]:
    """Return the problems that are run in one of these dtypes: a choice among them does not change when problems that
    are run only in other dtypes are added."""
    among = frozenset(dtypes)
    return [problem for problem in problems if any(variant.dtype in among for variant in problem.variants)]
