"""Random problems that are not in a table, with weight on edges and thresholds.

The caller passes a function that chooses one of several options, of which the first is the simplest:
`random.Random.choice`, or that of a search.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from itertools import chain, product, starmap, tee
from typing import Any, NamedTuple, Protocol, TypeVar

from conformance.dtypes import drawn_together
from conformance.layouts import arranged, is_optional, layouts_of
from conformance.operators import FAMILIES, OPERATORS, Geometry, GeometryError
from conformance.operators.spatial import IMAGE, WINDOW, spans
from conformance.problems import PROBLEMS, of_family
from conformance.problems.parameters import SIMPLEST, Coverage, Parameters, cost, features, geometry, parameters
from conformance.problems.storage_cases import suits
from conformance.problems.table import Problem, Variant, applies, unlisted, usual
from conformance.storage import KINDS, PAGES, placement, written

T = TypeVar("T")
CANDIDATES = {2: 64, 1: 16, 3: 16, 0: 64}
"""Number of dimensions -> number of problems that a run draws for an operator. An implementation gets the first of
these that it takes."""
NOVELTY = 6
"""Draws per problem; the draw with the most features that no earlier problem had is kept."""

NEAR_EXTENT = 8
"""Largest number of elements on an axis, beyond the window's span, of a problem near another problem."""
NEAR_MATRIX = 1 << 16
"""Most elements of the second operand of a matrix product near another one."""
FOLLOWED = ("window", "stride", "dilation")
PADDING_RULES: tuple[Callable[[int, int, int], tuple[int, int]], ...] = (
    lambda taps, stride, dilation: (dilation * (taps - 1) // 2, -(-dilation * (taps - 1) // 2)),
    lambda taps, stride, dilation: (dilation * (taps - 1) // 2,) * 2,
    lambda taps, stride, dilation: (dilation * (taps // 2),) * 2,
    lambda taps, stride, dilation: (max(0, taps - stride) // 2,) * 2,
)
"""Rules by which layers derive the padding of an axis from the FOLLOWED parameters: torch's padding="same", which keeps
the size of the image and puts the odd element behind it; two common substitutes; that of a transposed convolution."""
COMBINATIONS = 300
"""Number of draws that change several parameters of a problem; callers choose the draws with the most new features."""
MOST_STORED = 1 << 20
"""Largest number of elements of the memory that a view lies in."""
MAX_NEAR = 50
"""Largest number of draws near a problem; if none of them fits the budget, problems are drawn from nothing."""

SIZES = frozenset("ncdhwktrsg")
"""Names of parameters that are sizes (`d` is the depth; a dilation is `d0` or `dil0`)."""
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
    "uneven": (1, 0),
    "empty": (0, 1),
    "div": (0, 0, 0, 1, 2, 3, 5, 8, 24),
    "alpha": (256, 128, -512, -384, 64, 257),
    "beta": (256, 0, 128, -256, 768, -192),
    "zx": (0, 0, 3, -5, -128, 127),
    "za": (0, 0, 3, -5, -128, 127),
    "zb": (0, 0, -7, 2, -128, 127),
    "zy": (0, 0, 1, -3, -128, 127),
    "sm": (0, 1, 1, 3, 8),
    "sn": (0, 1, 1, 5, 32),
    "sk": (0, 0, 7, 16, 32),
    "pow": (0, 0, 1),
    "act": (1, 2, 3, 4, 5, 0),
    "res": (0, 1, 1),
}
"""Options of a family, and the values that they are drawn from."""


class Choose(Protocol):
    """A function that returns one of the options."""

    def __call__(self, options: Sequence[T], /) -> T: ...


class Layer(NamedTuple):
    """A dense convolution with stride 1: the values that its channels, filters, extents and number of images are drawn
    from, and the taps of its window on each axis."""

    channels: Sequence[int]
    filters: Sequence[int]
    taps: int
    extents: Sequence[int]
    images: Sequence[int] = (1, 2)


MULTIPLES_OF_8 = range(104, 448, 8)
LAYERS: tuple[Layer | None, ...] = (
    *(None,) * 15,
    Layer(MULTIPLES_OF_8, MULTIPLES_OF_8, 1, (1, 2, 3)),
    Layer((256, 264, 288, 384, 512), (1, 2, 3, 4), 5, (5, 6)),
    Layer((1, 2, 3, 4), (2, 4, 6), 5, (27, 28)),
    Layer((72, 96, 120, 200, 384), (10, 30, 84, 100), 1, (1,), (3, 5, 6, 7, 9, 12, 33, 100)),
    Layer((1,), (1,), 1, (1, 2, 3, 4, 5), (1, 2, 3)),
)
"""One convolution in four is a layer of a kind known from bug reports, with at least two large sizes. When sizes are
drawn one by one, at most one is large: a search of two minutes drew none of these layers."""


class CostLimit(NamedTuple):
    """Limit on the cost of a case: FLOPs, and elements of all of its tensors."""

    flops: int
    elements: int


ALIKE = ("", "", "", "none", "causal", "same")
"""Ways to pad all axes alike, used half of the time: axes drawn individually hardly ever have the same padding."""
THIN = CostLimit(1 << 20, 1 << 16)
"""Limit on the cost of problems that a run draws, which take milliseconds."""


def draw(family: str, choose: Choose, rank: int = 2, padded: Sequence[str] = ("",)) -> Parameters:
    """Draw the parameters of a problem, which may turn out not to exist. At most one axis is long; the other axes are
    then short. `padded` has ways to pad all axes alike, of which one is drawn; for an empty one, the padding of each
    axis is drawn."""
    names = SIMPLEST[family, rank]
    dilation_of = "dil{}" if rank == 3 else "d{}"
    long = choose(["", "", "", "", *(name for name in "ncdhwktrs" if name in names)])
    alike = choose(padded) if len(padded) > 1 else ""

    def size(name: str, usual: Sequence[int] = SMALL) -> int:
        if name == long:
            return choose(choose((TAILS, LONG, LONG, LONGEST)))
        return choose(choose((TINY, TINY, usual))) if long else choose(choose((usual, usual, usual, TAILS)))

    def axis(letter: str, window: str) -> tuple[int, ...]:
        taps, stride = size(window, SMALL[:5]), choose((1, 1, 1, 2, 2, 3, 4, 5))
        dilation = choose((1, 1, 1, 2, 3, 4)) if dilation_of.format(0) in names else 1
        extent = dilation * (taps - 1) + 1
        before = choose((0, 0, 0, 1, 2, taps // 2, extent - 1, extent))
        after = choose((before, before, before, 0, 1, 2, extent - 1, extent))
        if alike:
            missing = max(0, extent - stride)
            ways = {"none": (0, 0), "causal": (extent - 1, 0), "same": (missing // 2, missing - missing // 2)}
            before, after = ways[alike]
        fits = max(1, extent - before - after)  # the window lies in the padded image exactly once
        image = size(letter) if letter == long else choose((size(letter), size(letter), extent, fits, extent + stride))
        return taps, stride, dilation, before, after, max(image, fits)

    parameters = {name: choose(SPECIAL[name]) for name in names if name in SPECIAL}
    parameters |= {"n": size("n", TINY), "c": size("c")}
    if "g" in names:
        grouping = choose(("dense", "dense", "groups", "depthwise"))
        parameters |= {"k": size("k"), "g": names["g"]}
        if grouping == "depthwise" and rank:
            parameters |= {"g": parameters["c"], "c": 1, "k": choose((1, 1, 2, 3))}
        elif grouping == "groups" or names["g"] > 1:
            parameters["g"] = choose((2, 3, 4, 5, 7, 8))
    elif "k" in names:
        parameters["k"] = size("k")
    if not rank:
        return parameters
    axes = [axis(image, window) for image, window in zip(IMAGE[rank], WINDOW[rank], strict=True)]
    if long not in (*IMAGE[rank], *WINDOW[rank]):
        first, *other_axes = axes
        axes = [first, *(tuple(choose((a, a, b)) for a, b in zip(first, other, strict=True)) for other in other_axes)]
    places = range(rank)
    letters = (
        *([*WINDOW[rank]], [f"u{place}" for place in places], [dilation_of.format(place) for place in places]),
        *([f"p{2 * place}" for place in places], [f"p{2 * place + 1}" for place in places], [*IMAGE[rank]]),
    )
    for number, parts in enumerate(letters):
        parameters |= {part: values[number] for part, values in zip(parts, axes, strict=True) if part in names}
    for place in places if "o0" in names else ():
        reach = max(parameters[f"u{place}"], parameters[dilation_of.format(place)])
        parameters[f"o{place}"] = choose((0, 0, 1, reach - 1))
    if "g" in names and (layer := choose(LAYERS)):
        parameters |= _of_layer(layer, parameters, rank, choose)
    return parameters


def _of_layer(layer: Layer, parameters: Parameters, rank: int, choose: Choose) -> Parameters:
    """Draw the parameters that make a problem a layer of this kind. In three dimensions its window lies in one plane;
    in one dimension it has as many taps as in two dimensions."""
    layer_parameters = {name: int(name[0] not in "po") for name in parameters if name[-1].isdigit()} | {"g": 1}
    layer_parameters |= {"n": choose(layer.images), "c": choose(layer.channels), "k": choose(layer.filters)}
    taps = layer.taps**2 if rank == 1 and layer.extents[0] == layer.taps else layer.taps
    for image, window in zip(IMAGE[rank], WINDOW[rank], strict=True):
        layer_parameters |= {image: choose(layer.extents) + taps - layer.taps, window: taps}
    return layer_parameters | ({"d": choose((1, 2)), "t": 1} if rank == 3 else {})


def drawn(
    family: str,
    choose: Choose,
    budget: CostLimit,
    near: Sequence[Parameters] = (),
    sizes: bool = True,
    rank: int = 2,
    padded: Sequence[str] = ("",),
) -> Any:
    """Draw a geometry of `rank` dimensions within a budget. With `near`, it is one of these problems with a few
    parameters redrawn (without `sizes`, only parameters that are not sizes); if no such problem fits the budget, it is
    drawn from nothing."""
    tries = 0
    while True:
        tries += 1
        parameters = draw(family, choose, rank, padded)
        if near and tries <= MAX_NEAR:
            kept, names = choose(near), [name for name in parameters if sizes or name not in SIZES]
            parameters = kept | {
                name: parameters[name] for name in {choose(names) for _ in range(choose((1, 2, 3, 4)))}
            }
        try:
            problem = geometry(family, parameters)
            flops, elements = cost(problem)
        except GeometryError:
            continue
        if flops <= budget.flops and elements <= budget.elements and math.prod(problem.window) <= LONG[-1]:
            return problem


def distribution(family: str, dtype: str, choose: Choose) -> str:
    """Choose a distribution of the family; distributions with data in every element are twice as likely. Not
    `absorbed`, whose data are all ones: they show no index, and what they do show depends on no shape that is drawn."""
    names = [name for name in FAMILIES[family].distributions if applies(name, dtype) and name != "absorbed"]
    return choose([*names, *(name for name in names if name in ("fixed", "integer", "natural"))])


def storage(operator: str, problem: Geometry, layout: str, choose: Choose, *, pages: bool) -> str:
    """Choose a storage for one operand or for each of them; with `pages` also kinds that lie beside protected pages."""
    inputs = OPERATORS[operator].inputs(problem)

    def kinds(name: str) -> list[str]:
        able = (k for k in KINDS if suits(name, k, len(inputs[name].shape)) and (pages or k not in PAGES))
        arrangement = arranged(inputs[name], layout, problem)
        # with rows that are far apart, an image of many rows takes gigabytes
        return [kind for kind in able if placement(kind, arrangement, 1).size <= MOST_STORED]

    chosen = [*inputs] if choose((False, True)) else [choose([*inputs])]
    return written({name: choose(fitting) for name in chosen if (fitting := kinds(name))})


@cache
def near(family: str, rank: int) -> list[Any]:
    """Return the geometries of `standard` that problems are drawn near to. Geometries that are run only in 8-bit dtypes
    or in optional layouts are excluded, so that adding some does not change the problems that a seed draws."""
    standard = (problem for problem in of_family(PROBLEMS, family) if problem.level == "standard")
    tables = [problem for problem in standard if not all(is_optional(v.layout) for v in problem.variants)]
    return [problem.geometry for problem in usual(tables) if problem.geometry.rank == rank]


@cache
def _tables_near(family: str, rank: int) -> tuple[list[Parameters], frozenset[str], list[list[tuple[str, Any]]]]:
    """Return the parameters of the small geometries of `near`, and the descriptors and features of all of them."""
    geometries = near(family, rank)
    small = [g for g in geometries if cost(g) <= THIN]
    return (
        [parameters(g) for g in small],
        frozenset(g.descriptor for g in geometries),
        [features(g) for g in geometries],
    )


def candidates(operator: str, seed: int, rank: int) -> Iterator[tuple[Problem, tuple[Variant, ...]]]:
    """Yield problems of `rank` dimensions for a run of this seed, each with variants in the order in which to try them.

    Problems are drawn alternately from nothing and near a problem of the tables, so that a kernel that takes few
    problems gets some. They are the same in every process. Problems are drawn only as they are consumed: drawing all of
    them for every operator took four fifths of the time of a test collection.
    """
    return copy.copy(_drawing(operator, seed, rank))


@cache
def _drawing(operator: str, seed: int, rank: int) -> Iterator[tuple[Problem, tuple[Variant, ...]]]:
    """Return an iterator over the problems; its copies share the problems that were drawn."""
    words = f"{seed} {operator}" + f" {rank}" * (rank != 2)
    return tee(_candidates(operator, words, rank, CANDIDATES[rank]), 1)[0]


def neighbours(geometry: Geometry) -> Iterator[Any]:
    """Yield small problems like this one, each with one parameter changed, on all axes or on the first; for a depthwise
    problem, c, k and groups change together."""
    small, changes = _changes(geometry)
    for change in chain.from_iterable(_followed(small, single) for single in [{}, *chain.from_iterable(changes)]):
        with suppress(GeometryError):
            yield replace(small, **change)


def combinations_near(geometry: Geometry) -> Iterator[Any]:
    """Yield small problems like this one, the same in every call, with two to five parameters changed, some of them to
    their simplest value: a bias that was lost only with dilation passed on every problem with one change."""
    small, changes = _changes(geometry)
    simplest: dict[str, Any] = {"n": 1, "c": 1, "k": 1}
    simplest |= {"size": spans(small)} if small.rank else {}
    simplest |= dict.fromkeys(("window", "stride", "dilation"), (1,) * small.rank)
    for options in changes:
        (name, *more_names) = options[0]
        if name in simplest and not more_names:
            options.append({name: simplest[name]})
        elif name == "padding":
            options.append({name: ((0, 0),) * small.rank})
        elif name == "groups" and small.groups == 1:
            options += [{name: small.c, "k": small.c}, {name: small.c, "k": 2 * small.c}]
        elif name == "output_padding":  # it must be smaller than the stride
            options[:] = [change | {"stride": tuple(side + 1 for side in change[name])} for change in options]
    dice = random.Random(small.descriptor)
    for _ in range(COMBINATIONS):
        change: dict[str, Any] = {}
        for options in dice.sample(changes, min(len(changes), dice.choice((2, 3, 4, 5)))):
            change |= dice.choice(options)
        for followed in _followed(small, change):
            with suppress(GeometryError):
                yield replace(small, **followed)


def _changes(geometry: Any) -> tuple[Any, list[list[dict[str, Any]]]]:
    """Return a small problem like this one, and for each of its parameters a list of alternative changes."""
    if not geometry.rank:
        return _changes_of_product(geometry)
    extents = zip(geometry.size, spans(geometry), strict=True)
    small = replace(geometry, n=2, size=tuple(min(extent, span + NEAR_EXTENT) for extent, span in extents))
    changes: list[list[dict[str, Any]]] = []
    words = {field.attribute: field.form.words for field in small.fields if field.form.words}
    if getattr(small, "groups", 1) == small.c > 1:
        changes.append([dict.fromkeys(("c", "k", "groups"), small.c + 1)])
    for name in (field.name for field in fields(small) if field.init):
        value = getattr(small, name)
        if name == "ceil_mode":  # also with outputs that ceil mode adds: otherwise it has no effect
            longer = tuple(extent + 1 for extent in small.size)
            changes.append([{name: not value}, {name: True, "size": longer}])
        elif name in words:
            changes.append([{name: word} for word in words[name] if word != value])
        elif isinstance(value, bool):
            changes.append([{name: not value}])
        elif isinstance(value, int):
            changes.append([{name: value + 1}, {name: 2 * value}])
        elif isinstance(value, tuple):
            more = tuple(tuple(side + 1 for side in part) if isinstance(part, tuple) else part + 1 for part in value)
            changes.append([{name: more}, {name: (more[0], *value[1:])}])
    return small, changes


def _changes_of_product(geometry: Any) -> tuple[Any, list[list[dict[str, Any]]]]:
    """Return a matrix product of few rows, and changes of its sizes, whose batch has as large products as before. A
    matrix that is too large is halved, so that its sizes divide by what they did."""
    batch, whole = min(geometry.groups, NEAR_EXTENT), {n: getattr(geometry, n) // geometry.groups for n in ("c", "k")}
    while math.prod(whole.values()) > NEAR_MATRIX:
        whole[max(whole, key=lambda name: whole[name])] //= 2
    sizes = {name: size * batch for name, size in whole.items()}
    small = replace(geometry, n=min(geometry.n, NEAR_EXTENT), groups=batch, **sizes)
    changes = [[{"n": small.n + 1}, {"n": 2 * small.n}]]
    changes += [[{name: (size + 1) * batch}, {name: 2 * size * batch}] for name, size in whole.items()]
    changes += [[{"groups": more} | {name: size * more for name, size in whole.items()} for more in (batch + 1, 1)]]
    changes += [[{name: not value}] for name, value in vars(small).items() if isinstance(value, bool)]
    changes += [
        [{field.attribute: word} for word in field.form.words if word != field.of(small)]
        for field in small.fields
        if field.form.words
    ]
    changes += [[{f"{tensor}_zero_point": point + 1}] for tensor, point in getattr(small, "zero_points", {}).items()]
    return small, changes


def _followed(small: Any, change: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a change, then the change with padding adapted to the window, by each of PADDING_RULES that the problem's
    own padding follows: a torch module with padding="same" cannot have a larger window with the old padding."""
    yield change
    before, after = ([change.get(word, getattr(small, word)) for word in FOLLOWED] for change in ({}, change))
    for rule in PADDING_RULES:
        kept, padding = (tuple(starmap(rule, zip(*words, strict=True))) for words in (before, after))
        if kept == small.padding != padding:
            yield change | {"padding": padding}


def _candidates(operator: str, seed: str, rank: int, count: int) -> Iterator[tuple[Problem, tuple[Variant, ...]]]:
    family, dice = OPERATORS[operator].family, random.Random(seed)
    near, listed, table = _tables_near(family, rank)
    coverage = Coverage()
    for case_features in table:
        coverage.add(case_features)
    taken = set(listed)
    for place in range(count):
        draws = [drawn(family, dice.choice, THIN, near if place % 2 else (), rank=rank) for _ in range(NOVELTY)]
        best = max(draws, key=lambda problem: (problem.descriptor not in taken, coverage.new(features(problem))))
        if best.descriptor in taken:
            continue
        taken.add(best.descriptor)
        coverage.add(features(best))
        offered: list[Variant] = []
        for part, dtypes in enumerate(drawn_together(OPERATORS[operator].dtypes)):
            thrown = dice if not part else random.Random(f"{seed} {best.descriptor} {dtypes}")
            formats = [*product(dtypes, layouts_of(rank))]
            formats = thrown.sample(formats, len(formats))
            offered += [Variant(d, layout, distribution(family, d, thrown.choice)) for d, layout in formats]
        variants = tuple(variant for variant in offered if variant.suits(operator, best))
        yield unlisted(best, "drawn", "standard", variants), variants
