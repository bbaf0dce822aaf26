"""Which sizes the tables reach: every axis on every path, in every dtype and layout."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import pytest

from conformance.dtypes import DTYPES
from conformance.layouts import is_optional, layouts_of
from conformance.operators import FAMILIES, OPERATORS, ORDINARY
from conformance.problems import PROBLEMS, at_level, of_section

Sizes = dict[str, Callable[[Any], int]]

IMAGE: Sizes = {
    "batch": lambda g: g.n,
    "channels": lambda g: g.c,
    "rows": lambda g: g.h,
    "columns": lambda g: g.w,
    "output rows": lambda g: g.output_size[0],
    "output columns": lambda g: g.output_size[1],
    "plane": lambda g: g.h * g.w,
    "output plane": lambda g: g.output_size[0] * g.output_size[1],
    "images and channels": lambda g: g.n * g.c,
    "statistics": lambda g: g.y.size // g.y.shape[1],
}
FILTERS: Sizes = {
    "filters": lambda g: g.k,
    "images and filters": lambda g: g.n * g.k,
    "weights": lambda g: g.filter.size,
}
WINDOW: Sizes = {"window rows": lambda g: g.r, "window columns": lambda g: g.s, "window": lambda g: g.r * g.s}
STEPS: Sizes = {
    "stride of rows": lambda g: g.stride[0],
    "stride of columns": lambda g: g.stride[1],
    "padding above": lambda g: g.padding[0][0],
    "padding below": lambda g: g.padding[0][1],
    "padding on the left": lambda g: g.padding[1][0],
    "padding on the right": lambda g: g.padding[1][1],
}
DILATION: Sizes = {"dilation of rows": lambda g: g.dilation[0], "dilation of columns": lambda g: g.dilation[1]}
OUTPUT_PADDING: Sizes = {
    "output padding of rows": lambda g: g.output_padding[0],
    "output padding of columns": lambda g: g.output_padding[1],
}
POINTWISE, DENSE, DEPTHWISE, GROUPED = PATHS = {
    "1x1": lambda g: g.groups == 1 and {*g.window} == {1},
    "3x3": lambda g: g.groups == 1 and {*g.window} != {1},
    "depthwise": lambda g: g.groups == g.c > 1,
    "grouped": lambda g: 1 < g.groups < g.c,
}
"""What a kernel may be declared for alone."""
WHOLE = {"": lambda g: True}

GEMM, LONG = {path: PATHS[path] for path in (POINTWISE, DENSE)}, ("batch", "channels", "rows", "columns")
WINDOWED, ALONE = ({path: PATHS[path] for path in paths} for paths in ((DENSE, DEPTHWISE), (DEPTHWISE,)))
GROUPS, SMALL = {"groups": lambda g: g.groups}, {"1x1 image": lambda g: g.h * g.w == 1}
REACHED: list[tuple[str, Sizes, int, dict[str, Callable[[Any], bool]]]] = [
    ("conv", IMAGE | FILTERS, 1 << 16, GEMM),
    ("conv", IMAGE, 1 << 16, ALONE),
    ("conv", {name: IMAGE[name] for name in LONG}, 1 << 16, {GROUPED: PATHS[GROUPED]}),
    ("conv", GROUPS, 1 << 16, ALONE | SMALL),
    ("conv", {"products": lambda g: g.filter.size // g.k}, 1 << 16, GEMM),
    ("conv", STEPS, 1 << 8, GEMM | ALONE),
    ("conv", DILATION | WINDOW, 1 << 8, WINDOWED),
    ("conv", WINDOW, 1 << 10, WINDOWED),
    ("conv_bn", IMAGE | FILTERS, 1 << 16, WHOLE),
    ("conv_bn", {"statistics": IMAGE["statistics"]}, 1 << 17, WHOLE),
    ("conv_bn", STEPS | DILATION, 1 << 8, WHOLE),
    ("conv_bn", WINDOW, 1 << 10, WHOLE),
    ("avg_pool", IMAGE | WINDOW, 1 << 16, WHOLE),
    ("avg_pool", STEPS, 1 << 8, WHOLE),
    ("max_pool", IMAGE | WINDOW, 1 << 16, WHOLE),
    ("max_pool", STEPS | DILATION, 1 << 8, WHOLE),
    ("conv_transpose", IMAGE | FILTERS | GROUPS, 1 << 16, WHOLE),
    ("conv_transpose", STEPS | DILATION, 1 << 8, WHOLE),
    ("conv_transpose", OUTPUT_PADDING, 1 << 8, WHOLE),
    ("conv_transpose", WINDOW, 1 << 10, WHOLE),
]
"""Family, sizes, what some problem must exceed in fp32 nchw, and on which paths."""


OF_ONE_FORMAT = dict.fromkeys(OPERATORS[name].family for name in ORDINARY)


def standard(family: str) -> list[tuple[Any, frozenset[tuple[str, str]]]]:
    """The geometries of a family with the dtypes and layouts that they are run in."""
    return [
        (problem.geometry, frozenset((v.dtype, v.layout) for v in problem.variants))
        for problem in PROBLEMS
        if problem.level == "standard" and problem.geometry.family == family and problem.geometry.rank in (0, 2)
    ]


@pytest.mark.parametrize(("family", "sizes", "limit", "paths"), REACHED)
def test_every_size_is_exceeded_on_every_path(family: str, sizes: Sizes, limit: int, paths: Any):
    rows = [geometry for geometry, formats in standard(family) if ("fp32", "nchw") in formats]
    missing = [
        (name, path)
        for (name, size), (path, taken) in product(sizes.items(), paths.items())
        if not any(taken(geometry) and size(geometry) > limit for geometry in rows)
    ]
    assert missing == []


@pytest.mark.parametrize("family", [name for name in OF_ONE_FORMAT if "sizes" not in FAMILIES[name].lacks])
def test_every_long_axis_meets_every_layout_and_16_bits_and_64(family: str):
    sizes = IMAGE | (FILTERS if family.startswith("conv") else {})
    missing = []
    for name, size in sizes.items():
        long = [formats for geometry, formats in standard(family) if size(geometry) > 1 << 16]
        met = {half for formats in long for form in formats for half in form}
        missing += [(name, half) for half in ("nchw", "nhwc", "fp64") if half not in met]
        missing += [(name, "16 bits")] if not met & {"bf16", "fp16"} else []
    assert missing == []


@pytest.mark.parametrize("family", OF_ONE_FORMAT)
def test_every_dtype_meets_every_layout(family: str):
    every = (form for _, formats in standard(family) for form in formats)
    found = {(dtype, layout) for dtype, layout in every if dtype in DTYPES and not is_optional(layout)}
    dtypes = [name for name in DTYPES if any(name in operator.dtypes for operator in FAMILIES[family].operators)]
    assert found == set(product(dtypes, layouts_of(FAMILIES[family].rank)))


ONES = {name: IMAGE[name] for name in ("batch", "channels", "rows", "columns", "output rows", "output columns")}


@pytest.mark.parametrize(
    ("family", "sizes", "paths"),
    [
        ("conv", ONES | {"filters": FILTERS["filters"]}, {path: PATHS[path] for path in (POINTWISE, DENSE)}),
        (
            "conv",
            {n: s for n, s in ONES.items() if n != "channels"},
            {path: PATHS[path] for path in (DEPTHWISE, GROUPED)},
        ),
        ("conv_bn", ONES | {"filters": FILTERS["filters"]}, WHOLE),
        ("avg_pool", ONES, WHOLE),
        ("max_pool", ONES, WHOLE),
    ],
)
def test_every_size_is_one_where_the_others_are_not(family: str, sizes: Sizes, paths: Any):
    """The output is as short as the image, which takes padding with it."""
    together = {"rows": "output rows", "columns": "output columns"}
    together |= {output: image for image, output in together.items()}
    missing = []
    for (name, size), (path, taken) in product(sizes.items(), paths.items()):
        others = [other for n, other in sizes.items() if n not in (name, together.get(name))]
        rows = [g for g, formats in standard(family) if taken(g) and ("fp32", "nchw") in formats]
        if not any(size(g) == 1 and all(other(g) > 1 for other in others) for g in rows):
            missing.append((name, path))
    assert missing == []


def dw5s2(geometry: Any) -> bool:
    return (geometry.window, geometry.stride) == ((5, 5), (2, 2)) and bool(PATHS[DEPTHWISE](geometry))


def same_after(geometry: Any) -> bool:
    """Return whether it is padded as TensorFlow pads images of an even size."""
    known = geometry.stride, geometry.padding
    return known == ((2, 2), ((0, 1), (0, 1))) and bool(PATHS[DEPTHWISE](geometry))


def is_plain(geometry: Any) -> bool:
    """One image, dense and unpadded."""
    return geometry.n == 1 and getattr(geometry, "groups", 1) == 1 and not any(map(any, geometry.padding))


def exceeds(name: str, size: int) -> Callable[[Any], bool]:
    return lambda geometry: (IMAGE | FILTERS)[name](geometry) > size


def divides(name: str, size: int) -> Callable[[Any], bool]:
    return lambda geometry: (IMAGE | FILTERS)[name](geometry) % size == 0 < geometry.n


FIRST, LAST = ("fp32", "nchw"), ("fp32", "nhwc")
MET: dict[str, tuple[str, tuple[str, str], Callable[[Any], bool], bool]] = {
    **{
        f"{family}, more than 2^20": (family, FIRST, exceeds("output plane", 1 << 20), False)
        for family in ("conv", "conv_bn", "conv_transpose", "avg_pool", "max_pool")
    },
    **{
        f"{family}, {name} a multiple of {size}": (family, FIRST, divides(name, size), False)
        for family, size in (("conv", 2048), ("conv_bn", 1024), ("avg_pool", 2048), ("max_pool", 2048))
        for name in ("batch", "channels", "rows", "output rows")
    },
    "conv, filters a multiple of 2048": ("conv", FIRST, divides("filters", 2048), False),
    "conv_bn, filters a multiple of 2048": ("conv_bn", FIRST, divides("filters", 2048), False),
    **{f"{family}, window of 5": (family, LAST, dw5s2, False) for family in ("conv", "conv_bn", "conv_transpose")},
    "conv, SAME": ("conv", LAST, same_after, False),
    **{
        f"{family}, views of one image": (family, FIRST, is_plain, True)
        for family in ("conv", "conv_bn", "avg_pool", "max_pool")
    },
}
"""Family, dtype and layout, which problem, and whether its operands are views: what known-bad kernels were wrong on."""


@pytest.mark.parametrize(("family", "form", "which", "stored"), MET.values(), ids=MET)
def test_standard_meets_what_kernels_were_wrong_on(
    family: str, form: tuple[str, str], which: Callable[[Any], bool], stored: bool
):
    """The tables had some of it, where the ranking left it to level full."""
    own = [p for p in PROBLEMS if p.geometry.family == family and p.geometry.rank == 2]
    assert any(
        which(problem.geometry) and (variant.dtype, variant.layout, bool(variant.storage)) == (*form, stored)
        for problem, variants in at_level(own, "standard")
        for variant in variants
    )


ROUNDED = {"fixed", "natural"}
"""Distributions of numbers that TF32 rounds; `integer` is exact in it."""


def channel_class(geometry: Any) -> tuple[Any, ...]:
    """The path of a convolution, and the size of its channels and filters, from 512 on alike."""
    path = next(name for name, taken in PATHS.items() if taken(geometry))
    channels = geometry.c, geometry.k
    sizes = (max((size for size in (32, 64, 128, 256, 512) if count >= size), default=0) for count in channels)
    return geometry.rank, path, *sizes, all(count % 32 == 0 for count in channels)


@pytest.mark.parametrize("family", ["conv", "conv_bn", "conv_transpose"])
def test_channels_of_every_size_meet_inputs_that_round(family: str):
    """Layers of 512 channels and filters met whole numbers alone: a kernel of TF32 there passed."""
    own = [problem for problem in PROBLEMS if problem.geometry.family == family]
    met: dict[tuple[Any, ...], set[str]] = {}
    for problem, variants in at_level(own, "standard"):
        for variant in (v for v in variants if v.dtype == "fp32"):
            met.setdefault(channel_class(problem.geometry), set()).add(variant.distribution)
    assert [found for found, distributions in met.items() if not distributions & ROUNDED] == []


@pytest.mark.parametrize("layout", layouts_of(2))
@pytest.mark.parametrize("path", PATHS)
def test_many_channels_and_filters_meet_inputs_that_round_in_each_layout(path: str, layout: str):
    own = [problem for problem in PROBLEMS if problem.geometry.family == "conv" and problem.geometry.rank == 2]
    assert any(
        PATHS[path](g) and min(g.c, g.k) >= 256 and g.c % 32 == g.k % 32 == 0 and variant.distribution in ROUNDED
        for g, variants in ((problem.geometry, variants) for problem, variants in at_level(own, "standard"))
        for variant in variants
        if (variant.dtype, variant.layout) == ("fp32", layout)
    )


TILES = {*range(1, 34), 63, 64, 65, 127, 128, 129, 255, 256, 257}
"""Sizes below, at and above those of tiles and vectors, with every remainder."""


@pytest.mark.parametrize("axis", ["channels", "filters", "output rows", "output columns"])
def test_convolutions_meet_vectors_and_tiles_on_some_path(axis: str):
    met = {(IMAGE | FILTERS)[axis](geometry) for geometry, _ in standard("conv")}
    assert met >= TILES


FACTORS: dict[str, tuple[Any, ...]] = {
    "n": (1, 2, 3),
    "size": ((6, 7), (9, 5), (8, 8), (5, 11)),
    "window": ((1, 1), (2, 2), (3, 3), (3, 1), (2, 4)),
    "stride": ((1, 1), (2, 2), (3, 3), (1, 2), (2, 1)),
    "padding": (((0, 0), (0, 0)), ((1, 1), (1, 1)), ((0, 1), (1, 0)), ((1, 1), (0, 0))),
    "dilation": ((1, 1), (2, 2), (1, 2)),
    "ceil_mode": (False, True),
}


@pytest.mark.parametrize("pair", list(combinations(FACTORS, 2)), ids=" and ".join)
def test_maxima_meet_every_pair_of_values(pair: tuple[str, str]):
    """All but padding on an axis where the window has one position, which no pooling has."""
    found = {tuple(getattr(p.geometry, name) for name in pair) for p in of_section("max_pool", "pairwise")}
    wanted = set(product(*(FACTORS[name] for name in pair)))
    if set(pair) == {"window", "padding"}:
        wanted = {(w, p) for w, p in wanted if all(size > 1 or not any(p[axis]) for axis, size in enumerate(w))}
    assert wanted <= found
