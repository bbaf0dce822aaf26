"""Traits of a case, in the words that say where a kernel fails: features by name, and sizes by name.

Features with a threshold are in the list for the ranking because a kernel may change its path there. Here the failures
show the threshold, so sizes take the place of these features. The plain case of a feature has a name too: a kernel can
fail without a bias as well as with one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from conformance.contract import NONFINITE
from conformance.layouts import MATRICES, letters
from conformance.operators.descriptor import DECIMAL, FLAG, NEGATED_FLAG, PARTS, Field
from conformance.operators.spatial import IMAGE, WINDOW
from conformance.problems import Variant
from conformance.problems.features import (
    AXES,
    OF_PROBLEM,
    OF_PRODUCT,
    ON_AXIS,
    SAME_AXIS,
    SHARED,
    Axis,
    axes,
    of_variant,
    pairs,
)

_THRESHOLD = re.compile(r"> (?!1\b)\d")
MULTIPLES = (2, 4, 8, 16, 32, 64, 128, 256)
"""Sizes of blocks into which a kernel may divide other sizes."""
BLOCKED = {
    "N": 4, "C": 32, "K": 32, "channels of a group": 32, "outputs of a group": 32, "taps * channels of a group": 32,
    "taps * outputs of a group": 32, "outputs of an image": 64, "N*P*Q": 256, "elements of the output": 256,
    "outputs along H": 32, "outputs along W": 64,
    "rows M": 256, "columns N": 256, "terms K": 256,
}  # fmt: skip
"""Sizes that a kernel may divide into blocks -> the largest usual block."""
WHOLE = frozenset({"C", "K", "channels of a group", "outputs of a group", "rows M", "columns N", "terms K"})
"""Sizes for whose multiples a kernel may have a path, in which it loads several elements at a time."""

WIDER = "larger of C and K"
"""A size: a kernel may have a path for many channels on either side."""
GROUPED = frozenset({"16-bit", "channels first", "channels last"})
"""Features that stand for several formats: if only one format was seen, the condition names that format alone."""


def _overlap(a: Axis) -> bool:
    """Return whether two windows read the same element with different taps."""
    common = math.lcm(a.stride, a.dilation)
    return common // a.stride < a.outputs and common // a.dilation < a.window


def _unread(a: Axis) -> bool:
    """Return whether an element of the image is in no window."""
    read = {o * a.stride + r for o in range(a.outputs) for r in range(-a.before, a.span - a.before, a.dilation)}
    return not read.issuperset(range(a.size))


def _end(a: Axis) -> int:
    """Return the end of the last window, counted from the start of the image, including padding behind the image."""
    return (a.outputs - 1) * a.stride + a.span - a.before


def _is_inside(a: Axis) -> bool:
    """Return whether some window meets no padding: kernels with a path for such windows usually take it."""
    first = -(-a.before // a.stride)
    return first < a.outputs and first * a.stride - a.before + a.span <= a.size


class Traits(NamedTuple):
    """Features and sizes of a case."""

    features: frozenset[str]
    sizes: Mapping[str, int]


LEFT_OVER, BEYOND_AFTER = "elements left over along {}", "output padding of {} > padding after"
PER_AXIS: dict[str, Callable[[Axis], bool]] = {
    **{text: holds for text, holds in ON_AXIS.items() if not _THRESHOLD.search(text)},
    "window of {} odd": lambda a: a.window % 2 == 1,
    "image of {} even": lambda a: a.size % 2 == 0,
    "stride of {} 1": lambda a: a.stride == 1,
    "dilation of {} 1": lambda a: a.dilation == 1,
    "no padding of {}": lambda a: a.before == a.after == 0,
    "padding before {}": lambda a: a.before > 0,
    "padding after {}": lambda a: a.after > 0,
    "padding before {} >= window": lambda a: a.before >= a.span,
    "padding after {} >= window": lambda a: a.after >= a.span,
    "padding of {} >= window": lambda a: max(a.before, a.after) >= a.span,
    "padding of {} on one side alone": lambda a: min(a.before, a.after) == 0 < max(a.before, a.after),
    "same padding of {} on both sides": lambda a: a.before == a.after > 0,
    "stride of {} < window": lambda a: a.stride < a.window,
    "window of {} no power of two": lambda a: a.window.bit_count() > 1,
}
"""Feature of an axis, with {} for the axis's name -> predicate."""
OF_TWO: dict[str, Callable[[Axis], bool]] = {
    "windows overlap along {}": _overlap,
    "elements in no window along {}": _unread,
    "windows reach beyond the image along {}": lambda a: a.before > 0 or _end(a) > a.size,
    "windows reach beyond the end along {}": lambda a: _end(a) > a.size,
    "one more window would begin in the image along {}": lambda a: a.outputs * a.stride - a.before < a.size,
    "window of {} no multiple of the stride": lambda a: a.window % a.stride != 0,
    "image no multiple of the stride of {}": lambda a: a.size % a.stride != 0,
    "more padding before {} than after": lambda a: a.before > a.after,
    "more padding after {} than before": lambda a: a.after > a.before,
    "stride and window of {} equal": lambda a: a.stride == a.window,
    "stride and window of {} differ": lambda a: a.stride != a.window,
    "window of {} = padded image": lambda a: a.span == a.size + a.before + a.after,
    "window and image of {} equal": lambda a: a.window == a.size,
    "output padding of {} >= stride": lambda a: a.left_over >= a.stride,
    "stride of {} = dilation": lambda a: a.stride == a.dilation > 1,
    "stride and dilation of {} differ": lambda a: a.stride != a.dilation,
    "stride and dilation of {} have a common factor": lambda a: math.gcd(a.stride, a.dilation) > 1,
    "stride of {} >= window": lambda a: a.stride >= a.window,
    BEYOND_AFTER: lambda a: a.left_over > a.after,
    "padding before {} no multiple of the dilation": lambda a: a.before % a.dilation != 0,
    "more or fewer outputs than image along {}": lambda a: a.outputs != a.size,
}
"""Features that already concern two parameters of an axis, and are not paired with a third."""
SOME, EVERY, BUT_LAST = "some axis", "every axis", "an axis but the last"
NAMES_OF_TWO = frozenset(text.format(name) for text in OF_TWO for name in (*AXES[3], SOME, EVERY, BUT_LAST))
SIZE_ON_AXIS: dict[str, Callable[[Axis], int]] = {
    "window of {}": lambda a: a.window,
    "stride of {}": lambda a: a.stride,
    "dilation of {}": lambda a: a.dilation,
    "image of {}": lambda a: a.size,
    "padding before {}": lambda a: a.before,
    "padding after {}": lambda a: a.after,
    "outputs along {}": lambda a: a.outputs,
    "span of the window of {}": lambda a: a.span,
}
WHOLE_PROBLEM = {text: holds for text, holds in OF_PROBLEM.items() if not _THRESHOLD.search(text)}


def of_case(geometry: Any, variant: Variant) -> Traits:
    """Return the traits of a case: those of its problem, its inputs and its storage."""
    of_problem = of_geometry(geometry)
    features = {*of_problem.features, *of_variant(variant)}
    if variant.dtype in ("fp16", "bf16"):
        features.add("16-bit")
    if variant.distribution in NONFINITE:
        features.add("inputs with NaN or infinities")
    if variant.layout in MATRICES:
        for operand, letter in zip("ab", variant.layout, strict=True):
            features.add(f"{operand} transposed" if letter == "t" else f"{operand} as it is multiplied")
    else:
        features.add("channels last" if letters(variant.layout).endswith("c") else "channels first")
    if not variant.storage:
        features.add("contiguous operands")
    return Traits(frozenset(features), of_problem.sizes)


@lru_cache(maxsize=4096)
def of_geometry(geometry: Any) -> Traits:
    """Return the traits of a problem alone."""
    if not geometry.rank:
        return _of_product(geometry)
    sizes = _sizes(geometry)
    features = {text for text, holds in WHOLE_PROBLEM.items() if holds(geometry)} | _on_axes(geometry)
    features |= options(geometry)
    if all(map(_is_inside, axes(geometry))):
        features.add("a window wholly inside the image")
    if sizes["taps"].bit_count() > 1:
        features.add("taps no power of two")
    if geometry.window and min(geometry.window) == 1 < max(geometry.window):
        features.add("window 1 on some axis, not on every")
    for side, padding in zip(("before", "after"), zip(*geometry.padding, strict=True), strict=True):
        if len({*padding}) > 1:
            features.add(f"padding {side} differs by axis")
    features.add(f"{geometry.rank}-D")
    if sizes.get("groups") == 1:
        features.add("one group")
    for name, values in (("stride", geometry.stride), ("dilation", geometry.dilation), ("window", geometry.window)):
        if geometry.rank > 1 and values[-1] != values[-2]:
            larger, smaller = "WH" if values[-1] > values[-2] else "HW"
            features.add(f"{name} of {larger} > {name} of {smaller}")
    if "K" in sizes:
        features.add("K = C" if sizes["K"] == sizes["C"] else "K and C differ")
    return Traits(frozenset(features | _by_blocks(sizes)), sizes)


def _by_blocks(sizes: Mapping[str, int]) -> set[str]:
    """Return which sizes are multiples of the blocks into which a kernel may divide them."""
    features = set[str]()
    for name, most in BLOCKED.items():
        for block in MULTIPLES:
            if name not in sizes or block > most:
                continue
            if sizes[name] % block:
                features.add(f"{name} not a multiple of {block}")
                if sizes[name] > block:
                    features.add(f"{name} > {block} and no multiple of {block}")
            elif name in WHOLE:
                features.add(f"{name} a multiple of {block}")
    return features


def _of_product(geometry: Any) -> Traits:
    """Return the traits of a matrix product."""
    m, n, k = geometry.n, geometry.k // geometry.groups, geometry.c // geometry.groups
    sizes = {"rows M": m, "columns N": n, "terms K": k, "M*N": m * n, "N*K": n * k, **geometry.further_sizes}
    sizes |= {"elements of a": geometry.x.size, "elements of b": geometry.k * k, "elements of y": geometry.y.size}
    features = {text for text, holds in OF_PRODUCT.items() if not _THRESHOLD.search(text) and holds(geometry)}
    features |= options(geometry) | _by_blocks(sizes)
    return Traits(frozenset(features | geometry.further_features), sizes)


def options(geometry: Any) -> set[str]:
    """Return a feature for each option of the family, on or off, such as "no bias", for each word, and for each number
    that has a default: "zero point of x not 0", or "epsilon 1e-5", which has its exponent."""
    features = set[str]()
    for field in geometry.fields:
        value = field.of(geometry)
        if not isinstance(value, bool) and value is not None:
            continue
        if field.form is NEGATED_FLAG:
            features.add(f"{_meaning(field)} is {str(bool(value)).lower()}")
        else:
            features.add(_meaning(field) if value else f"no {_meaning(field)}")
    features |= {f"{_meaning(field)} {field.of(geometry)}" for field in geometry.fields if field.form.words}
    for field in (field for field in geometry.fields if field.form is DECIMAL):
        features |= _of_factor(_meaning(field), field.of(geometry))
    for field in _own(geometry):
        value, default = field.of(geometry), int(field.default or 0)
        if value % 2 and not _is_exponent(field):
            features.add(f"{_meaning(field)} odd")
        number = f"1e-{default}" if _is_exponent(field) else str(default)
        features.add(f"{_meaning(field)} {number}" if value == default else f"{_meaning(field)} not {number}")
    return features


def _of_factor(name: str, factor: float) -> set[str]:
    """Return the features of a factor: kernels have paths for 0 and 1, and lose signs, fractions and bits."""
    features = {f"{name} = {value}" if factor == value else f"{name} not {value}" for value in (0, 1)}
    features |= {f"{name} negative"} if factor < 0 else {f"{name} positive"} if factor else set()
    return features | ({f"{name} no whole number"} if factor % 1 else set())


def _is_exponent(field: Field) -> bool:
    return "10 to minus" in field.meaning


def _own(geometry: Any) -> Iterator[Field]:
    """Yield the fields of numbers that only this family has and that concern no axis."""
    numbers = (f for f in geometry.fields if f.role not in SHARED and f.axis is None)
    return (f for f in numbers if type(f.of(geometry)) is int)


def _meaning(field: Field) -> str:
    """Return the words for a true field: of a negated flag the attribute, as its descriptor says the opposite."""
    return field.attribute if field.form is NEGATED_FLAG else re.split(r" \(|, ", field.meaning)[0]


def _on_axes(geometry: Any) -> set[str]:
    """Return the predicates that hold by axis, on some, on every or on all axes but the last, and pairs of them that
    hold on the same axis."""
    names = AXES[geometry.rank]
    per_axis = [{text for text, holds in (PER_AXIS | OF_TWO).items() if holds(axis)} for axis in axes(geometry)]
    if geometry.windows_on_output:  # elements that no window reaches are called output padding there
        per_axis = [
            {"output padding of {}" if text == LEFT_OVER else text for text in predicates} for predicates in per_axis
        ]
    else:
        per_axis = [predicates - {BEYOND_AFTER} for predicates in per_axis]
    features = {text.format(name) for name, predicates in zip(names, per_axis, strict=True) for text in predicates}
    features |= {text.format(SOME) for text in set.union(*per_axis)}
    features |= {text.format(EVERY) for text in set.intersection(*per_axis)}
    features |= {text.format(BUT_LAST) for text in set[str]().union(*per_axis[:-1])}
    for predicates in per_axis:
        features |= {
            f"{first.format('an axis')}, {other.format(SAME_AXIS)}"
            for first, other in pairs(predicates - OF_TWO.keys())
        }
    return features


def parameter(geometry: Any, name: str) -> str:
    """Return the name of a number of `conformance.problems.parameters` in words, such as "stride of H" for u0."""
    names, letter = AXES[geometry.rank], name.rstrip("0123456789")
    place = int(name[len(letter) :] or 0)
    if letter == "p":
        return f"padding {('before', 'after')[place % 2]} {names[place // 2]}"
    if letter != name:
        return f"{ {'u': 'stride', 'o': 'output padding'}.get(letter, 'dilation') } of {names[place]}"
    for what, sizes in (("image", IMAGE[geometry.rank]), ("window", WINDOW[geometry.rank])):
        if name in sizes:
            return f"{what} of {names[sizes.index(name)]}"
    grouped = {"c": "channels of a group", "k": "outputs of a group"} if hasattr(geometry, "groups") else {}
    words = {"n": "N", "c": "C", "k": "K", "g": "groups"} | grouped
    if not geometry.rank:
        words = {"n": "M", "c": "K", "k": "N"}
    meanings = {field.role: _meaning(field) for field in geometry.fields}
    return words.get(name) or meanings.get(name, name)


def assigned(geometry: Any, name: str, value: object) -> str:
    """Return a number of a problem, or a part of a variant, with its value: "with stride of H = 2", "without bias"."""
    flags = {field.role: field for field in geometry.fields if field.form in (FLAG, NEGATED_FLAG)}
    if name in flags and flags[name].form is FLAG:
        return f"{'with' if value else 'without'} {_meaning(flags[name])}"
    factors = {field.role for field in geometry.fields if field.form is DECIMAL}
    if name in factors and isinstance(value, int):
        value = DECIMAL.show(value / PARTS)
    words = {field.role: field.form.words for field in geometry.fields if field.form.words}
    if name in words and isinstance(value, int):
        value = words[name][value]
    return f"with {parameter(geometry, name)} = {bool(value) if name in flags else value}"


def _sizes(geometry: Any) -> dict[str, int]:
    sizes = {"N": geometry.n, "C": geometry.c}
    if hasattr(geometry, "k"):
        sizes["K"] = geometry.k
    if hasattr(geometry, "groups"):
        grouped = {"channels of a group": geometry.c, "outputs of a group": geometry.k}
        sizes |= {"groups": geometry.groups, **{name: size // geometry.groups for name, size in grouped.items()}}
    taps, outputs, inputs = (math.prod(extents) for extents in (geometry.window, geometry.output_size, geometry.size))
    sizes |= {
        "taps": taps,
        "outputs of an image": outputs,
        "N*P*Q": geometry.n * outputs,
        "N*C": geometry.n * geometry.c,
        "elements of an image": inputs,
    }
    sizes |= {"elements of the input": geometry.n * geometry.c * inputs}
    sizes |= {"elements of the output": geometry.n * outputs * sizes.get("K", geometry.c)}
    if "K" in sizes:
        sizes["N*K"] = geometry.n * sizes["K"]
        sizes[WIDER] = max(geometry.c, sizes["K"])
    if "groups" in sizes:
        sizes["taps * channels of a group"] = taps * sizes["channels of a group"]
        sizes["taps * outputs of a group"] = taps * sizes["outputs of a group"]
        sizes["elements of the filters"] = taps * geometry.k * sizes["channels of a group"]
    sizes |= {_meaning(f): f.of(geometry) for f in _own(geometry) if not _is_exponent(f)}
    per_axis = axes(geometry)
    for name, axis in zip(AXES[geometry.rank], per_axis, strict=True):
        sizes |= {text.format(name): size(axis) for text, size in SIZE_ON_AXIS.items()}
        if geometry.windows_on_output:
            sizes |= {f"image of {name}": axis.outputs, f"outputs along {name}": axis.size}
    for name, values in (("stride", geometry.stride), ("window", geometry.window), ("dilation", geometry.dilation)):
        sizes[f"largest {name}"] = max(values)
        if len({*values}) == 1:
            sizes[f"{name} of every axis"] = values[0]
    return sizes
