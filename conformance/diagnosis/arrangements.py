"""Mistakes of a kernel that takes memory in one layout for memory in another: the right elements in the wrong places.

The mistakes of plain layouts are in the library of every family. Those here are of layouts with groups as an axis and
of declared layouts. They exist only for a kernel that is called in such a layout: in a plain one they would be other
names for its mistakes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from conformance.layouts import (
    Arrangement,
    filter_letters,
    grouped_of,
    is_optional,
    layouts_of,
    letters,
    of_letters,
)
from conformance.operators.base import Geometry
from conformance.operators.mistakes import Change, InapplicableError, Misread, Mistake

_OF_IMAGES = str.maketrans("ktrs", "ndhw")


def misreadings(layout: str, rank: int) -> tuple[Mistake, ...]:
    """Return the mistakes of a kernel that is called in a layout; none for a plain layout."""
    return _misreadings(layout, letters(layout), rank) if is_optional(layout) else ()


@cache
def _misreadings(layout: str, image: str, rank: int) -> tuple[Mistake, ...]:
    """Return the mistakes of a layout; cached by its letters too, as its name may get other letters."""
    first, last = layouts_of(rank)
    # NGCHW and NHWGC are the same memory as channels first and last; their names distinguish the groups
    images = grouped_of(rank) if "g" in image else (first, last, *grouped_of(rank))
    weights = filter_letters(layout)
    inside = {weights.replace("g", "").replace("k", "kg"), weights.replace("g", "").replace("c", "gc")}
    filters = [filter_letters(name) for name in (grouped_of(rank) if "g" in image else images)]
    mistakes = [
        Mistake(f"{what} as {other.upper()} instead of {image.upper()}", "index", Misread(_as_it_is, {role: change}))
        for other in dict.fromkeys(map(letters, images))
        if other != image
        for what, role in (("image read", "x"), ("y (dy) laid out", "y"))
        for change in [_taken_for(image, other, False)]
    ]
    for other in dict.fromkeys((*filters, *sorted(inside if "g" in image else ()))):
        if other != weights:
            name = f"filter read as {other.upper()} instead of {weights.upper()}"
            mistakes.append(Mistake(name, "index", Misread(_as_it_is, {"w": _taken_for(weights, other, True)})))
    return tuple(mistakes)


def _as_it_is(geometry: Geometry) -> Any:
    return geometry


def _taken_for(actual: str, other: str, is_filter: bool) -> Change:
    """Return the change that reads a canonical array from memory as `other` although it is stored as `actual`."""

    def change(array: np.ndarray, geometry: Geometry) -> np.ndarray:
        groups = getattr(geometry, "groups", 1)
        places: list[Arrangement] = [
            of_letters(array.shape, axes.translate(_OF_IMAGES), groups, is_filter) for axes in (actual, other)
        ]
        written, read = places
        if written.order == read.order:
            raise InapplicableError
        memory = np.ascontiguousarray(written.to_memory(array))
        return read.from_memory(memory.reshape(read.stored))

    return change
