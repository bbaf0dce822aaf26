"""What a problem table is made of, and which of its rows a level runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.dtypes import STORAGE
from conformance.operators import FAMILIES, OPERATORS, parse
from conformance.storage import fits, repeats
from conformance.storage import parse as parse_storage

DRAWN = "drawn."
"""What the names of problems begin with that stand in no table, and were drawn."""
LEVELS = ("smoke", "standard", "full", "huge")
LAYOUTS = ("nchw", "nhwc")
SPARSE, HUGE = "sparse", 1 << 29
"""The distribution of problems with as many elements in one operand, which are 2^31 bytes in fp32, and of no others."""
DISTRIBUTIONS = (*dict.fromkeys(name for family in FAMILIES.values() for name in family.distributions), SPARSE)
"""Ways of drawing a problem's inputs; `conformance.inputs.distributions` has one function for each."""


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
        if not OPERATORS[operator].determines(geometry, self.distribution):
            return False
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


def applies(distribution: str, dtype: str, storage: str = "") -> bool:
    """Whether a distribution exists for a dtype and a storage: fp64 data at the ends of the range would leave the
    reference's own, and the statistics of the fixed distribution are those of values that do not repeat."""
    return not (distribution == "wide" and dtype == "fp64") and not (distribution == "fixed" and repeats(storage))


def variants(family: str, *lines: str) -> tuple[Variant, ...]:
    """Read lines such as `fp32,bf16 nchw,nhwc integer,fixed`: every combination that exists; `all` stands for all."""
    every = (list(STORAGE), list(LAYOUTS), list(FAMILIES[family].distributions))
    found = []
    for line in lines:
        names = (word.split(",") for word in line.split())
        dtypes, layouts, distributions = (
            known if words == ["all"] else words for words, known in zip(names, every, strict=True)
        )
        found += [Variant(d, la, a) for d in dtypes for la in layouts for a in distributions if applies(a, d)]
    return tuple(dict.fromkeys(found))


EVERY = {family: variants(family, "all all all") for family in FAMILIES}
"""All variants that a problem of a family can have."""
FP32 = frozenset(Variant("fp32", "nchw", distribution) for distribution in DISTRIBUTIONS)
FP32_AND_BF16 = FP32 | {Variant("bf16", "nchw", "fixed")}
SMOKE = {
    "edge.plain": FP32_AND_BF16,
    "edge.asymmetric-all": FP32,
    "edge.stride-by-axis-1x1": FP32,
    "edge.dilation-by-axis": FP32,
    "edge.depthwise-by-axis": FP32,
    "bn.plain": FP32_AND_BF16,
    "bn.tutorial": FP32,
    "bn.groups-stride": FP32,
    "pool.3x3s2-padded": FP32_AND_BF16,
    "pool.row": FP32,
    "pool.ceil-valid": FP32,
    "maxpool.3x3s2-padded": FP32_AND_BF16,
    "maxpool.asymmetric-ceil": FP32,
    "maxpool.dilation-by-axis": FP32,
}
"""What level smoke runs, by problem: of each family a plain one, which restricted kernels take too, and a few that
together detect most of the known-bad kernels."""


def table(level: str, how: Iterable[str], rows: dict[str, str]) -> tuple[Problem, ...]:
    """Problems of one family from {name: descriptor}; `how` are lines that `variants` reads.

    Those that `SMOKE` names are of level smoke, the others of `level`.
    """
    geometries = {name: parse(text) for name, text in rows.items()}
    (family,) = {geometry.family for geometry in geometries.values()}
    run = variants(family, *how)
    levels = {name: "smoke" if name in SMOKE else level for name in rows}
    return tuple(Problem(name, geometry, levels[name], run) for name, geometry in geometries.items())


def in_turn(
    level: str, always: Iterable[str], others: Sequence[Iterable[str]], rows: dict[str, str]
) -> tuple[Problem, ...]:
    """The same, where each row is run as `always` says, and also as one of `others` says: the next one for each row.

    A mistake that takes a shape and a dtype together is rare; that of one shape, or of one dtype, shows either way.
    """
    found: list[Problem] = []
    for number, (name, text) in enumerate(rows.items()):
        found += table(level, (*always, *others[number % len(others)]), {name: text})
    return tuple(found)


def typed(text: str, level: str = "smoke") -> Problem:
    """The problem of a descriptor given by hand, in every variant; raises GeometryError."""
    geometry = parse(text)
    family = geometry.family
    huge = max(geometry.x.size, geometry.y.size) >= HUGE and family != "conv_bn"
    run = variants(family, f"all all {SPARSE}") if huge else EVERY[family]
    return Problem(geometry.descriptor.replace(" ", "_"), geometry, level, run)


def at_level(problems: Iterable[Problem], level: str) -> Iterator[tuple[Problem, tuple[Variant, ...]]]:
    """Problems that `level` includes with the variants it runs; `smoke` keeps those of `SMOKE`, and `huge` adds to
    these what no other level runs."""
    included = ("smoke", "huge") if level == "huge" else LEVELS[: LEVELS.index(level) + 1]
    for problem in problems:
        if problem.level in included:
            quick = SMOKE.get(problem.name, FP32_AND_BF16)
            yield problem, tuple(v for v in problem.variants if level != "smoke" or v in quick)
