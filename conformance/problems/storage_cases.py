"""Storage of operands on a few small problems that take different paths through a kernel.

For each operator, dtype and layout, there are cases in which several operands have a storage, so that every operand has
every kind. Each kind of each operand also occurs alone, in dtypes and layouts that take turns; the other memory format
occurs alone in all of them. In further cases all operands lie beside protected pages, on large problems, too. Problems
change from case to case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count, cycle, product

from conformance.dtypes import DTYPES, drawn_together
from conformance.layouts import layouts_of
from conformance.operators import FAMILIES, Operator
from conformance.problems.table import Problem, Variant, applies, exact_distribution, usual_distribution
from conformance.storage import BATCH, KINDS, PAGES, fits, repeats, written

ALONE = ("rows", "far-rows", "reversed", "expanded-columns", "expanded-all")
"""Kinds that `_rows` gives to one operand at a time; the last two only to dy, since batch normalisation has no use for
equal images."""
LOOSE_ONES = "loose-ones"
"""Kind that matters only for operands that have an axis of one element."""
VIEWS = tuple(kind for kind in KINDS if kind not in (*PAGES, *ALONE, LOOSE_ONES, BATCH))
PAIRS = (("x", "w"), ("dy", "w"), ("x", "dy"))
"""Operands of each direction of a convolution."""


def with_storage(family: str, problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems of a family, with storage variants added to the problems that its `Storages` name."""
    problems = tuple(problems)
    by_name = {problem.name: problem for problem in problems}
    extra: dict[str, dict[Variant, None]] = {name: {} for name in by_name}
    operators, storages, exact = FAMILIES[family].operators, FAMILIES[family].storages, exact_distribution(family)
    layouts = layouts_of(FAMILIES[family].rank)
    first, last = layouts[:2]
    for operator in operators:
        if storages.everywhere:
            for name, variant in _rows(operator, [by_name[name] for name in storages.everywhere]):
                extra[name][variant] = None
        ways, kinds = product((("fp32", first), ("bf16", last)), PAGES), dict.fromkeys(operator.arguments)
        for (dtype, layout), page in ways:
            for name in (*storages.large, *storages.odd):
                here = operator.inputs(by_name[name].geometry)
                text = written({operand: page for operand in kinds if operand in here})
                extra[name][Variant(dtype, layout, "fixed", text)] = None
        for name, kind in product(storages.apart, (*VIEWS, BATCH)):
            here = operator.inputs(by_name[name].geometry)
            weights = next((operand for operand, tensor in here.items() if tensor.is_filter), "")
            for operand, layout in zip((weights, operator.data), layouts, strict=False):
                if operand not in here or not fits(kind, len(here[operand].shape)):
                    continue
                distribution, text = "wide" if kind == BATCH else "fixed", f"{operand}:{kind}"
                if applies(distribution, "fp32", text):
                    extra[name][Variant("fp32", layout, distribution, text)] = None
        if storages.one_channel:
            of_one = ("crop", "transposed", "other-format", LOOSE_ONES)
            for dtype, layout, kind in product(("fp32", "bf16"), layouts, of_one):
                extra[storages.one_channel][Variant(dtype, layout, "fixed", f"{operator.data}:{kind}")] = None
    for operator, (name, dtype, distribution) in product(operators, storages.mixed):
        here = operator.inputs(by_name[name].geometry)
        for layout, operand in product(layouts, ("x", "dy") if "dy" in here else ()):
            if operand in here:
                extra[name][Variant(dtype, layout, distribution, f"{operand}:other-format")] = None
    for operator, name in product(operators, storages.one_image):
        here = operator.inputs(by_name[name].geometry)
        for (dtype, layout), kind in product((("fp32", first), ("bf16", last)), VIEWS):
            fitting = (operand for operand, tensor in here.items() if fits(kind, len(tensor.shape)))
            if text := written(dict.fromkeys(fitting, kind)):
                extra[name][Variant(dtype, layout, exact if repeats(text) else "fixed", text)] = None
    for operator, (rank, names) in product(operators, storages.once.items()):
        for dtypes in drawn_together(operator.dtypes):
            for name, variant in _once(operator, dtypes, [by_name[name] for name in names], rank):
                extra[name][variant] = None
    for name, grouped in storages.grouped.items():
        extra[name] |= dict.fromkeys(_grouped(grouped, by_name[name].geometry.rank))
    return tuple(
        replace(problem, variants=(*problem.variants, *extra[problem.name])) if extra[problem.name] else problem
        for problem in problems
    )


def _rows(operator: Operator, problems: list[Problem]) -> Iterator[tuple[str, Variant]]:
    """Yield names of problems with storage variants for one operator."""
    layouts = layouts_of(FAMILIES[operator.family].rank)
    turn, ways = count(), list(product(DTYPES, layouts))

    def row(way: tuple[str, str], kind_of: dict[str, str]) -> Iterator[tuple[str, Variant]]:
        problem = problems[next(turn) % len(problems)]
        here = operator.inputs(problem.geometry)
        storage = {o: kind for o, kind in kind_of.items() if o in here and fits(kind, len(here[o].shape))}
        if storage:
            text = written(storage)
            distribution = exact_distribution(operator.family) if repeats(text) else "fixed"
            yield problem.name, Variant(*way, distribution, text)

    kinds: dict[str, tuple[str, ...]] = {}
    for problem in problems:
        for name, tensor in operator.inputs(problem.geometry).items():
            kinds[name] = tuple(kind for kind in (*VIEWS, BATCH) if fits(kind, len(tensor.shape)))
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
            yield from row(("fp32", layouts[0]), {operand: kind})
            yield from row(("bf16", layouts[1]), {operand: kind})


def _once(
    operator: Operator, dtypes: Iterable[str], problems: list[Problem], rank: int
) -> Iterator[tuple[str, Variant]]:
    """Yield names of problems with variants for one operator: every kind once, and in each case different kinds."""
    kinds_in_turn = (*VIEWS, *ALONE)
    turns = zip(cycle(problems), cycle(product(dtypes, layouts_of(rank))), strict=False)
    for step in range(len(kinds_in_turn) + len(PAGES)):
        problem, (dtype, layout) = next(turns)
        here = operator.inputs(problem.geometry)
        if step >= len(kinds_in_turn):
            storage = dict.fromkeys(here, PAGES[step - len(kinds_in_turn)])
        else:
            kinds = ((o, kinds_in_turn[(step + 5 * place) % len(kinds_in_turn)]) for place, o in enumerate(here))
            storage = {o: kind for o, kind in kinds if suits(o, kind, len(here[o].shape))}
        if storage:
            text = written(storage)
            usual = usual_distribution(operator.family, dtype)
            distribution = exact_distribution(operator.family) if repeats(text) else usual
            yield problem.name, Variant(dtype, layout, distribution, text)


def _grouped(layouts: Iterable[str], rank: int) -> Iterator[Variant]:
    """Yield variants with every kind for each of two operands, each with another kind for the other operand."""
    kinds = [kind for kind in KINDS if fits(kind, rank + 2)]
    for layout, (first, second) in product(layouts, PAIRS):
        for place, kind in enumerate(kinds):
            text = written({first: kind, second: kinds[(place + 5) % len(kinds)]})
            yield Variant(("fp32", "bf16")[place % 2], layout, "integer" if repeats(text) else "fixed", text)


def suits(operand: str, kind: str, dimensions: int) -> bool:
    """Tell whether an operand can have a kind and is given it: of the kinds in ALONE, only dy gets those that repeat
    values."""
    return fits(kind, dimensions) and (operand == "dy" or kind not in ALONE or not repeats(f"{operand}:{kind}"))
