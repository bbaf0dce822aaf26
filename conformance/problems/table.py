"""What a problem table is made of, and which of its rows a level runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from conformance.dtypes import STORAGE
from conformance.operators import parse

LEVELS = ("smoke", "standard", "full")
LAYOUTS = ("nchw", "nhwc")
_LINEAR = ("integer", "fixed", "impulse", "special", "wide")
FAMILY_DISTRIBUTIONS = {"conv": _LINEAR, "pool": _LINEAR, "conv_bn": ("fixed", "scaled", "shifted", "special")}
"""Family of a geometry -> the ways of drawing its inputs that mean anything there."""
DISTRIBUTIONS = tuple(
    dict.fromkeys(distribution for distributions in FAMILY_DISTRIBUTIONS.values() for distribution in distributions)
)
"""Ways of drawing a problem's inputs; `conformance.inputs.distributions` has one function for each."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a problem."""

    dtype: str
    layout: str
    distribution: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A named geometry, the lowest level that runs it, and how it is run there."""

    name: str
    geometry: Any
    """A `conformance.operators.Geometry`."""
    level: str
    variants: tuple[Variant, ...]


def applies(distribution: str, dtype: str) -> bool:
    """Whether an distribution exists for a dtype: fp64 data at the ends of the range would leave the reference's
    own."""
    return not (distribution == "wide" and dtype == "fp64")


def variants(*lines: str, family: str = "conv") -> tuple[Variant, ...]:
    """Read lines such as `fp32,bf16 nchw,nhwc integer,fixed`: every combination that exists; `all` stands for all."""
    every = (list(STORAGE), list(LAYOUTS), list(FAMILY_DISTRIBUTIONS[family]))
    found = []
    for line in lines:
        names = (word.split(",") for word in line.split())
        dtypes, layouts, distributions = (
            known if words == ["all"] else words for words, known in zip(names, every, strict=True)
        )
        found += [Variant(d, la, a) for d in dtypes for la in layouts for a in distributions if applies(a, d)]
    return tuple(dict.fromkeys(found))


SMOKE = frozenset(Variant("fp32", "nchw", distribution) for distribution in DISTRIBUTIONS) | {
    Variant("bf16", "nchw", "fixed")
}


def table(level: str, how: tuple[Variant, ...], rows: dict[str, str]) -> tuple[Problem, ...]:
    """Problems from {name: descriptor}."""
    return tuple(Problem(name, parse(text), level, how) for name, text in rows.items())


def typed(text: str) -> Problem:
    """The problem of a descriptor given by hand, in every variant; raises GeometryError."""
    geometry = parse(text)
    every = variants("all all all", family=geometry.family)
    return Problem(geometry.descriptor.replace(" ", "_"), geometry, "smoke", every)


def at_level(problems: Iterable[Problem], level: str) -> Iterator[tuple[Problem, tuple[Variant, ...]]]:
    """Problems that `level` includes with the variants it runs; `smoke` keeps only `SMOKE` variants."""
    for problem in problems:
        if LEVELS.index(problem.level) <= LEVELS.index(level):
            kept = (v for v in problem.variants if level != "smoke" or v in SMOKE)
            yield problem, tuple(kept)
