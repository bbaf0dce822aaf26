"""Features: named predicates of a case, in engineers' terms.

They are conditions by which a kernel may choose its code path, or on which a failure can depend. The ranking chooses
problems by pairs of features, so that failures that need two conditions at once are found early.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

from conformance.layouts import layouts_of
from conformance.operators.spatial import spans
from conformance.problems.table import Variant
from conformance.storage import parse

AXES: dict[int, tuple[str, ...]] = {0: (), 1: ("W",), 2: ("H", "W"), 3: ("D", "H", "W")}
"""Number of dimensions -> the names of its spatial axes."""


SAME_AXIS = "the same axis"
"""End of the name of a feature that combines two features of one axis."""


class Axis(NamedTuple):
    """Sizes and parameters on one spatial axis; a transposed convolution has the output's size as `size`."""

    size: int
    window: int
    span: int
    """Elements from the first tap of a window to its last one."""
    stride: int
    dilation: int
    before: int
    after: int
    outputs: int

    @property
    def left_over(self) -> int:
        """Number of elements of the padded image behind the last window."""
        return self.size + self.before + self.after - self.span - (self.outputs - 1) * self.stride


ON_AXIS: dict[str, Callable[[Axis], bool]] = {
    "window of {} > 1": lambda a: a.window > 1,
    "window of {} even": lambda a: a.window % 2 == 0,
    "window of {} > 3": lambda a: a.window > 3,
    "window of {} > 16": lambda a: a.window > 16,
    "window of {} = image": lambda a: a.window == a.size > 1,
    "window of {} larger than the image": lambda a: a.span > a.size,
    "stride of {} > 1": lambda a: a.stride > 1,
    "stride of {} > 2": lambda a: a.stride > 2,
    "stride of {} = window": lambda a: a.stride == a.window > 1,
    "stride of {} > window": lambda a: a.stride > a.window,
    "dilation of {} > 1": lambda a: a.dilation > 1,
    "padding of {}": lambda a: a.before + a.after > 0,
    "padding of {} only before": lambda a: a.before > a.after == 0,
    "padding of {} only after": lambda a: a.after > a.before == 0,
    "unequal padding of {}": lambda a: a.before != a.after,
    "padding of {} >= window - 1": lambda a: a.window > 1 and max(a.before, a.after) >= a.span - 1,
    "elements left over along {}": lambda a: a.left_over > 0,
    "ceil adds an output along {}": lambda a: a.left_over < 0,
    "image of {} = 1": lambda a: a.size == 1,
    "image of {} odd": lambda a: a.size % 2 == 1,
    "image of {} > 32": lambda a: a.size > 32,
    "image of {} > 256": lambda a: a.size > 256,
    "image of {} > 4096": lambda a: a.size > 4096,
    "image of {} > 65536": lambda a: a.size > 65536,
    "one output along {}": lambda a: a.outputs == 1,
    "outputs along {} not a multiple of 4": lambda a: a.outputs % 4 != 0,
    "outputs along {} > 8": lambda a: a.outputs > 8,
    "outputs along {} > 16 and no multiple of 16": lambda a: a.outputs > 16 and a.outputs % 16 != 0,
    "outputs along {} > 128": lambda a: a.outputs > 128,
}
"""Feature of an axis, with {} in place of the axis's name -> predicate."""


def _groups(g: Any) -> int:
    return int(getattr(g, "groups", 1))


def _k(g: Any) -> int:
    return int(getattr(g, "k", g.c))


def _contraction(g: Any) -> int:
    """Count the products of one output: the window's taps, times a group's channels if channels are summed."""
    return int(math.prod(g.window) * (g.c // _groups(g) if hasattr(g, "k") else 1))


def _outputs(g: Any) -> int:
    return int(g.n * math.prod(g.output_size))


OF_PROBLEM: dict[str, Callable[[Any], bool]] = {
    "no image": lambda g: g.n == 0,
    "one image": lambda g: g.n == 1,
    "N > 4": lambda g: g.n > 4,
    "N > 64": lambda g: g.n > 64,
    "N > 4096": lambda g: g.n > 4096,
    "C = 1": lambda g: g.c == 1,
    "C odd": lambda g: g.c % 2 == 1,
    "C not a multiple of 4": lambda g: g.c % 4 != 0,
    "C > 8 and no multiple of 8": lambda g: g.c > 8 and g.c % 8 != 0,
    "C > 32": lambda g: g.c > 32,
    "C > 32 and no multiple of 32": lambda g: g.c > 32 and g.c % 32 != 0,
    "C > 256": lambda g: g.c > 256,
    "C > 4096": lambda g: g.c > 4096,
    "K = 1": lambda g: _k(g) == 1,
    "K not a multiple of 4": lambda g: _k(g) % 4 != 0,
    "K > 8 and no multiple of 8": lambda g: _k(g) > 8 and _k(g) % 8 != 0,
    "K > 32": lambda g: _k(g) > 32,
    "K > 32 and no multiple of 32": lambda g: _k(g) > 32 and _k(g) % 32 != 0,
    "K > 256": lambda g: _k(g) > 256,
    "K > C": lambda g: _k(g) > g.c,
    "groups > 1": lambda g: _groups(g) > 1,
    "groups > 1 of several channels": lambda g: 1 < _groups(g) < g.c,
    "groups = channels": lambda g: _groups(g) == g.c > 1,
    "depthwise with a multiplier": lambda g: _groups(g) == g.c > 1 and _k(g) > g.c,
    "one output channel a group": lambda g: _groups(g) > 1 and _k(g) == _groups(g),
    "pointwise": lambda g: set(g.window) == {1},
    "window 3 on every axis": lambda g: set(g.window) == {3},
    "window differs by axis": lambda g: len({*g.window}) > 1,
    "stride differs by axis": lambda g: len({*g.stride}) > 1,
    "dilation differs by axis": lambda g: len({*g.dilation}) > 1,
    "padding differs by axis": lambda g: len({*g.padding}) > 1,
    "image differs by axis": lambda g: len({*g.size}) > 1,
    "no padding": lambda g: not any(map(any, g.padding)),
    "window = image on every axis": lambda g: g.window == g.size and math.prod(g.window) > 1,
    "window of 64 taps or more": lambda g: math.prod(g.window) >= 64,
    "window of 256 taps or more": lambda g: math.prod(g.window) >= 256,
    "contraction > 64": lambda g: _contraction(g) > 64,
    "contraction > 1024": lambda g: _contraction(g) > 1024,
    "contraction > 65536": lambda g: _contraction(g) > 65536,
    "contraction not a multiple of 8": lambda g: _contraction(g) % 8 != 0,
    "N*P*Q not a multiple of 4": lambda g: _outputs(g) % 4 != 0,
    "N*P*Q > 128": lambda g: _outputs(g) > 128,
    "N*P*Q > 4096": lambda g: _outputs(g) > 4096,
    "N*P*Q > 65536": lambda g: _outputs(g) > 65536,
    "an image beyond 2^16 elements": lambda g: g.c * math.prod(g.size) > 1 << 16,
    "one element": lambda g: g.n * g.c * math.prod(g.size) == 1,
}


def _product_size(name: str, value: Callable[[Any], int]) -> dict[str, Callable[[Any], bool]]:
    """Return the features of one size of a matrix product: thresholds, and tails of usual tiles."""
    features: dict[str, Callable[[Any], bool]] = {
        f"{name} = 1": lambda g: value(g) == 1,
        f"{name} odd": lambda g: value(g) % 2 == 1,
        f"{name} not a multiple of 4": lambda g: value(g) % 4 != 0,
    }
    for tile in (8, 32, 128):
        features[f"{name} > {tile} and no multiple of {tile}"] = lambda g, tile=tile: (  # type: ignore[misc]
            value(g) > tile and value(g) % tile != 0
        )
    for most in (4, 64, 256, 1024, 4096, 1 << 16):
        features[f"{name} > {most}"] = lambda g, most=most: value(g) > most  # type: ignore[misc]
    return features


OF_PRODUCT: dict[str, Callable[[Any], bool]] = {
    "no row": lambda g: g.n == 0,
    "no term": lambda g: g.c == 0,
    **_product_size("M", lambda g: int(g.n)),
    **_product_size("N", lambda g: int(g.k // g.groups)),
    **_product_size("K", lambda g: int(g.c // g.groups)),
    "batch > 1": lambda g: g.groups > 1,
    "batch > 4": lambda g: g.groups > 4,
    "batch > 64": lambda g: g.groups > 64,
    "batch > 1024": lambda g: g.groups > 1024,
    "batch > 65536": lambda g: g.groups > 1 << 16,
    "K = N": lambda g: g.c == g.k,
    "M = K": lambda g: g.n * g.groups == g.c,
    "M = N": lambda g: g.n * g.groups == g.k,
    "K > N": lambda g: g.c > g.k,
}
"""Features of a matrix product, in place of those of `OF_PROBLEM`."""
OF_ARGUMENTS = ("groups > 1", "groups = channels", "depthwise with a multiplier", "pointwise")
ON_AXIS_OF_ARGUMENTS = ("window of {} even", "stride of {} > 1", "dilation of {} > 1", "padding of {}")
"""Features that users request by an argument when they create a layer, besides the options of its family."""
LARGE = "operand beyond 2^16 elements"
"""Feature of operands so large that kernels may take another path: blocks, threads, 16-bit indices."""
SHARED = frozenset("ncdhwktrsgup")
"""Roles of fields that the features above cover; any other field is a feature if it is not at its default."""


@cache
def of_geometry(geometry: Any) -> frozenset[str]:
    """Return the features of a geometry, which do not depend on dtype and layout."""
    features = {name for name, holds in (OF_PROBLEM if geometry.rank else OF_PRODUCT).items() if holds(geometry)}
    features |= _on_axes(geometry)
    if is_large(geometry):
        features.add(LARGE)
    return frozenset(features | {name for name, is_set in options(geometry).items() if is_set})


def is_large(geometry: Any) -> bool:
    """Return whether a geometry has the feature LARGE."""
    operands = (geometry.n * geometry.c * math.prod(geometry.size), _k(geometry) * _outputs(geometry))
    return bool(max(*operands, _k(geometry) * _contraction(geometry)) > 1 << 16)


def options(geometry: Any) -> dict[str, bool]:
    """Return for each option of the family, such as bias, ceil mode or a divisor, whether it is not at its default; and
    for each word of an option, whether it is that word."""
    option_fields = (
        f for f in geometry.fields if f.role not in SHARED and f.axis is None and f.attribute != "dilation"
    )
    is_set: dict[str, bool] = {}
    for f in option_fields:
        name, value, default = f.meaning.split(" (")[0], f.of(geometry), f.default_for(vars(geometry))
        is_set |= {f"{name} {word}": value == word for word in f.form.words if word != default}
        is_set |= {} if f.form.words else {name: value != default}
    return is_set


def _on_axes(geometry: Any) -> set[str]:
    """Return the features of the axes, by the axis's name; if there are several axes, also the features of some axis
    and of every axis; and each pair of features that hold on the same axis."""
    names = AXES[geometry.rank]
    per_axis = [{text for text, holds in ON_AXIS.items() if holds(axis)} for axis in axes(geometry)]
    features = {text.format(name) for name, on_axis in zip(names, per_axis, strict=True) for text in on_axis}
    for on_axis in per_axis:
        features |= {f"{first.format('an axis')}, {second.format(SAME_AXIS)}" for first, second in pairs(on_axis)}
    if len(names) > 1:
        features |= {text.format("some axis") for text in set.union(*per_axis)}
        features |= {text.format("every axis") for text in set.intersection(*per_axis)}
    return features


def axes(geometry: Any) -> list[Axis]:
    """Return an `Axis` for each spatial axis, in order."""
    size, outputs = geometry.size, geometry.output_size
    if geometry.windows_on_output:
        size, outputs = outputs, size
    sides = zip(*geometry.padding, strict=True)
    return [
        Axis(*values)
        for values in zip(
            size, geometry.window, spans(geometry), geometry.stride, geometry.dilation, *sides, outputs, strict=True
        )
    ]


def of_variant(variant: Variant) -> frozenset[str]:
    """Return the features of a dtype, a layout, a distribution and a storage."""
    last = any(variant.layout == layouts_of(rank)[1] for rank in AXES if rank)
    features = {variant.dtype, variant.layout, f"{variant.distribution} inputs", *(["channels last"] if last else [])}
    features |= {f"storage {kind} of {operand}" for operand, kind in parse(variant.storage).items()}
    return frozenset(features)


def of_case(geometry: Any, variant: Variant) -> frozenset[str]:
    """Return all features of a case."""
    return of_geometry(geometry) | of_variant(variant)


def pairs(features: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Return the pairs of the features; each pair is sorted."""
    return combinations(sorted(features), 2)


@cache
def feature_pairs(geometry: Any) -> frozenset[tuple[str, str]]:
    """Return every pair of a geometry's features, except features that already combine two of one axis."""
    return frozenset(pairs(name for name in of_geometry(geometry) if not name.endswith(SAME_AXIS)))


@cache
def parameter_pairs(geometry: Any) -> frozenset[tuple[str, str]]:
    """Return every pair of a problem's features that are arguments of a layer, such as a stride and a bias."""
    axis = "some axis" if geometry.rank != 1 else AXES[geometry.rank][0]
    named = {*OF_ARGUMENTS, *options(geometry), *(text.format(axis) for text in ON_AXIS_OF_ARGUMENTS)}
    return frozenset(pairs(named & of_geometry(geometry)))
