"""The tables of cases. Data only."""

from __future__ import annotations

import difflib

from conformance.operators import GeometryError
from conformance.problems import edges, empty, huge, max_pooling, networks, normalised, pairwise, pooling, sizes
from conformance.problems.storage import with_storage
from conformance.problems.table import LAYOUTS, LEVELS, Problem, Variant, at_level, typed

_CONVOLUTIONS = (
    *(*edges.BASIC, *edges.SHAPES, *edges.VALUES, *edges.SQUARES, *edges.TILES, *pairwise.PAIRWISE),
    *(*networks.UNET_REDUCED, *networks.CLASSIFIERS, *networks.UNET, *networks.CLASSIFIERS_FULL),
)
PROBLEMS: tuple[Problem, ...] = with_storage(
    (
        *(*_CONVOLUTIONS, *normalised.PROBLEMS, *pooling.PROBLEMS, *max_pooling.PROBLEMS),
        *(*sizes.CONVOLUTIONS, *sizes.NORMALISED, *sizes.AVERAGE_POOLINGS, *sizes.MAX_POOLINGS),
        *(*empty.PROBLEMS, *huge.PROBLEMS),
    )
)
"""All; behaviour is checked on the first ones of a family."""
_DESCRIPTORS = {problem.name: problem.geometry.descriptor for problem in PROBLEMS}


def named(text: str) -> Problem:
    """The problem of a name in the tables, or of a descriptor; in every variant either way. Raises GeometryError."""
    try:
        return typed(_DESCRIPTORS.get(text, text))
    except GeometryError:
        if "." not in text or " " in text:
            raise
    near = difflib.get_close_matches(text, _DESCRIPTORS, 3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise GeometryError(f"no problem is called {text}{hint} (all: conformance list problems)")


__all__ = ["LAYOUTS", "LEVELS", "PROBLEMS", "Problem", "Variant", "at_level", "named", "typed"]
