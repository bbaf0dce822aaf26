"""Storage of operands on a few small problems that take different paths through a kernel.

For each operator, dtype and layout, every operand has every kind of storage, several operands at once. Each kind of
each operand also occurs alone, in dtypes and layouts that take turns; the other memory format occurs alone in all of
them. All operands together also lie beside protected pages, on large problems, too. Problems change from case to case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count, cycle, product

from conformance.dtypes import DTYPES, ordinary
from conformance.layouts import layouts_of
from conformance.operators import FAMILIES, Operator
from conformance.operators.spatial import RANKS
from conformance.problems.table import Problem, Variant
from conformance.storage import KINDS, PAGES, fits, repeats, written

PROBLEMS = {
    "conv": (
        "edge.plain",
        "edge.stride-by-axis-1x1",
        "edge.depthwise",
        "edge.image-wide",
        "edge.asymmetric-all",
        "edge.window-is-image",
        "edge.image1x1",
    ),
    "conv_bn": ("bn.plain", "bn.pointwise", "bn.depthwise", "bn.unpadded", "bn.asymmetric-all"),
    "avg_pool": ("pool.3x3s2-padded", "pool.row", "pool.overlap", "pool.gaps", "pool.by-axis"),
    "max_pool": ("maxpool.3x3s2-padded", "maxpool.asymmetric-ceil", "maxpool.dilation-by-axis"),
}
"""Family -> names of problems; unpadded, padded, 1x1, depthwise, grouped and dense problems take turns."""
EXACT = {"conv_bn": "scaled", "conv_requantized": "ties"}
"""Family -> distribution for repeated values, whose judgement does not need independent errors; else `integer`."""
USUAL = {"conv_requantized": "scales"}
"""Family -> distribution for values that do not repeat; `fixed` for the other families."""
ALONE = ("rows", "far-rows", "reversed", "expanded-columns", "expanded-all")
"""Kinds that `_rows` gives to one operand at a time; the last two only to dy, since batch normalisation has no use for
equal images."""
LOOSE_ONES = "loose-ones"
"""Kind that matters only for operands that have an axis of one element."""
VIEWS = tuple(kind for kind in KINDS if kind not in (*PAGES, *ALONE, LOOSE_ONES))
LARGE = {
    "conv": ("edge.long-pixels", "resnet50.conv2.expand", "mobilenetv2.dw32", "edge.wide-row"),
    "conv_bn": ("unet.bn.64x64", "resnet50.bn.conv3.downsample", "mobilenetv2.bn.dw96s2"),
    "avg_pool": ("resnet-d.shortcut", "densenet.transition"),
    "max_pool": ("resnet50.maxpool", "googlenet.branch"),
    "conv_transpose": ("dcgan.128x64", "unet.up.128x64"),
}
"""Family -> problems with more than 2^16 elements in an operand: kernels that use blocks or vectors only for large
operands read past the end of these only."""
ODD = {
    "conv": ("edge.one-product", "edge.prime-all", "edge.depthwise-image1x1"),
    "avg_pool": ("pool.batch1-channel1",),
    "max_pool": ("maxpool.batch1-channel1",),
    "conv_transpose": ("convt.one-product",),
}
"""Family -> problems with an odd number of elements in every operand: kernels that read two elements at a time read
past the end of these only."""
ONE_CHANNEL = {"conv": "edge.channel1", "conv_bn": "bn.channel1", "avg_pool": "pool.batch1-channel1"}
"""Family -> problem whose strides do not determine the memory format."""

MIXED = {
    "conv": ("resnet50.conv2.expand", "bf16", "fixed"),
    "conv_bn": ("bn.sums-beyond-fp16", "fp16", "scaled"),
    "max_pool": ("resnet50.maxpool", "fp16", "fixed"),
}
"""Family -> larger problem of gradients, dtype and distribution: one operand has the other memory format than the rest.
torch 2.6 summed dy in 16 bits if x was in channels last and dy was not."""

ONE_IMAGE = {
    "conv": ("one-image.1x1", "one-image.3x3"),
    "conv_bn": ("bn.one-image",),
    "avg_pool": ("pool.tiles-4",),
    "max_pool": ("maxpool.tiles-4",),
}
"""Family -> dense and unpadded problems of one image, with every view for all operands: kernels have a special path for
them, which no view reached before."""
ONCE = {
    ("conv", 1): ("rank1.plain", "rank1.asymmetric", "rank1.depthwise", "rank1.pointwise-gaps"),
    ("conv", 3): ("rank3.plain", "rank3.asymmetric", "rank3.depthwise", "rank3.pointwise-gaps"),
    ("conv_bn", 1): ("bn.rank1", "bn.rank1-groups", "bn.rank1-pointwise"),
    ("conv_bn", 3): ("bn.rank3", "bn.rank3-stride", "bn.rank3-pointwise"),
    ("avg_pool", 1): ("pool.rank1", "pool.rank1-ceil"),
    ("avg_pool", 3): ("pool.rank3", "pool.rank3-2x2x2"),
    ("max_pool", 1): ("maxpool.rank1", "maxpool.rank1-ceil"),
    ("max_pool", 3): ("maxpool.rank3", "maxpool.rank3-2x2x2"),
    ("conv_requantized", 2): ("requantized.fp8", "requantized.no-zero-points", "requantized.pointwise"),
    ("conv_transpose", 2): ("convt.plain", "convt.2x2", "convt.depthwise", "convt.asymmetric-all"),
}
"""(family, rank) -> names of problems on which every operand has every kind only once: a kernel that misreads a view in
one dtype does so for other operators and in two dimensions, too."""
GROUPED = {"groups.rank1": ("nwgc", "ngcw"), "groups.rank2": ("gnhwc", "nhwgc", "ngchw"), "groups.rank3": ("gndhwc",)}
"""Problem in layouts with groups as an axis -> layouts in which its operands are also views: a view's strides then
include that of the groups axis."""
PAIRS = (("x", "w"), ("dy", "w"), ("x", "dy"))
"""Operands of each direction of a convolution."""


def with_storage(family: str, problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems of a family, with storage variants added to those that are named above."""
    problems = tuple(problems)
    known = {problem.name: problem for problem in problems}
    extra: dict[str, dict[Variant, None]] = {name: {} for name in known}
    operators, exact = FAMILIES[family].operators, EXACT.get(family, "integer")
    for operator in operators if family in LARGE else ():
        if family in PROBLEMS:
            for name, variant in _rows(operator, [known[name] for name in PROBLEMS[family]]):
                extra[name][variant] = None
        ways, kinds = product((("fp32", "nchw"), ("bf16", "nhwc")), PAGES), dict.fromkeys(operator.arguments)
        for (dtype, layout), page in ways:
            for name in (*LARGE[family], *ODD.get(family, ())):
                here = operator.inputs(known[name].geometry)
                text = written({operand: page for operand in kinds if operand in here})
                extra[name][Variant(dtype, layout, "fixed", text)] = None
        if family in ONE_CHANNEL:
            of_one = ("crop", "transposed", "other-format", LOOSE_ONES)
            for dtype, layout, kind in product(("fp32", "bf16"), layouts_of(2), of_one):
                extra[ONE_CHANNEL[family]][Variant(dtype, layout, "fixed", f"{operator.data}:{kind}")] = None
    for operator in operators if family in MIXED else ():
        name, dtype, distribution = MIXED[family]
        here = operator.inputs(known[name].geometry)
        for layout, operand in product(layouts_of(2), ("x", "dy") if "dy" in here else ()):
            if operand in here:
                extra[name][Variant(dtype, layout, distribution, f"{operand}:other-format")] = None
    for operator, name in product(operators, ONE_IMAGE.get(family, ())):
        here = operator.inputs(known[name].geometry)
        for (dtype, layout), kind in product((("fp32", "nchw"), ("bf16", "nhwc")), VIEWS):
            fitting = (operand for operand, tensor in here.items() if fits(kind, len(tensor.shape)))
            text = written(dict.fromkeys(fitting, kind))
            extra[name][Variant(dtype, layout, exact if repeats(text) else "fixed", text)] = None
    for operator, rank in product(operators, (rank for rank in RANKS if (family, rank) in ONCE)):
        for name, variant in _once(operator, [known[name] for name in ONCE[family, rank]], rank):
            extra[name][variant] = None
    for name, layouts in GROUPED.items() if family == "conv" else ():
        extra[name] |= dict.fromkeys(_grouped(layouts, known[name].geometry.rank))
    return tuple(
        replace(problem, variants=(*problem.variants, *extra[problem.name])) if extra[problem.name] else problem
        for problem in problems
    )


def _rows(operator: Operator, problems: list[Problem]) -> Iterator[tuple[str, Variant]]:
    """Yield names of problems with storage variants for one operator."""
    turn, ways = count(), list(product(DTYPES, layouts_of(2)))

    def row(way: tuple[str, str], kind_of: dict[str, str]) -> Iterator[tuple[str, Variant]]:
        problem = problems[next(turn) % len(problems)]
        here = operator.inputs(problem.geometry)
        storage = {o: kind for o, kind in kind_of.items() if o in here and fits(kind, len(here[o].shape))}
        if storage:
            text = written(storage)
            distribution = EXACT.get(operator.family, "integer") if repeats(text) else "fixed"
            yield problem.name, Variant(*way, distribution, text)

    kinds: dict[str, tuple[str, ...]] = {}
    for problem in problems:
        for name, tensor in operator.inputs(problem.geometry).items():
            kinds[name] = tuple(kind for kind in VIEWS if fits(kind, len(tensor.shape)))
    for number, way in enumerate(ways):
        for step in range(len(VIEWS)):
            # operands of one row have different kinds: they start apart, at distances that differ by dtype and layout
            yield from row(
                way, {o: of[(step + place * (1 + number)) % len(of)] for place, (o, of) in enumerate(kinds.items())}
            )
        for kind in PAGES * 2:
            yield from row(way, dict.fromkeys(kinds, kind))
    alone = [(o, kind) for o, of in kinds.items() for kind in of] if len(kinds) > 1 else []
    for number, (operand, kind) in enumerate(alone):
        for way in ways if kind == "other-format" else [ways[number % len(ways)]]:
            yield from row(way, {operand: kind})
    for operand, kind in product(kinds, ALONE):
        if operand == "dy" or not repeats(f"{operand}:{kind}"):
            yield from row(("fp32", "nchw"), {operand: kind})
            yield from row(("bf16", "nhwc"), {operand: kind})


def _once(operator: Operator, problems: list[Problem], rank: int) -> Iterator[tuple[str, Variant]]:
    """Yield names of problems with variants for one operator, with every kind once and different kinds in a row."""
    every = (*VIEWS, *ALONE)
    turns = zip(cycle(problems), cycle(product(ordinary(operator.dtypes), layouts_of(rank))), strict=False)
    for step in range(len(every) + len(PAGES)):
        problem, (dtype, layout) = next(turns)
        here = operator.inputs(problem.geometry)
        if step >= len(every):
            storage = dict.fromkeys(here, PAGES[step - len(every)])
        else:
            kinds = ((o, every[(step + 5 * place) % len(every)]) for place, o in enumerate(here))
            storage = {o: kind for o, kind in kinds if suits(o, kind, len(here[o].shape))}
        if storage:
            text = written(storage)
            exact, usual = EXACT.get(operator.family, "integer"), USUAL.get(operator.family, "fixed")
            distribution = exact if repeats(text) else usual
            yield problem.name, Variant(dtype, layout, distribution, text)


def _grouped(layouts: Iterable[str], rank: int) -> Iterator[Variant]:
    """Yield variants with every kind for each of two operands, each with another kind for the other operand."""
    kinds = [kind for kind in KINDS if fits(kind, rank + 2)]
    for layout, (first, second) in product(layouts, PAIRS):
        for place, kind in enumerate(kinds):
            text = written({first: kind, second: kinds[(place + 5) % len(kinds)]})
            yield Variant(("fp32", "bf16")[place % 2], layout, "integer" if repeats(text) else "fixed", text)


def suits(operand: str, kind: str, dimensions: int) -> bool:
    """Tell whether an operand can have a kind and is given it: of ALONE, only dy gets kinds that repeat values."""
    return fits(kind, dimensions) and (operand == "dy" or kind not in ALONE or not repeats(f"{operand}:{kind}"))
