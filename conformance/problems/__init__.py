"""The tables of cases. Data only."""

from __future__ import annotations

import difflib

from conformance.layouts import LAYOUTS, NAMES
from conformance.operators import GeometryError
from conformance.problems import (
    edges,
    empty,
    formats,
    grouped,
    huge,
    max_pooling,
    networks,
    normalised,
    pairwise,
    pooling,
    rank_paths,
    rank_sizes,
    ranks,
    reported,
    requantized,
    sizes,
    transposed,
)
from conformance.problems.ranking import at_level
from conformance.problems.storage import with_storage
from conformance.problems.table import LEVELS, Problem, Variant, typed

_CONVOLUTIONS = (
    *(*edges.BASIC, *edges.SHAPES, *edges.VALUES, *edges.SQUARES, *edges.TILES, *pairwise.PAIRWISE),
    *(*networks.UNET_REDUCED, *networks.CLASSIFIERS, *networks.UNET, *networks.CLASSIFIERS_FULL),
)
PROBLEMS: tuple[Problem, ...] = with_storage(
    (
        *(*_CONVOLUTIONS, *normalised.PROBLEMS, *pooling.PROBLEMS, *max_pooling.PROBLEMS),
        *(*sizes.CONVOLUTIONS, *sizes.NORMALISED, *sizes.AVERAGE_POOLINGS, *sizes.MAX_POOLINGS),
        *(*sizes.TRANSPOSED, *ranks.PROBLEMS, *rank_paths.PROBLEMS, *rank_sizes.PROBLEMS),
        *(*empty.PROBLEMS, *huge.PROBLEMS, *grouped.PROBLEMS, *transposed.PROBLEMS, *formats.PROBLEMS),
        *requantized.PROBLEMS,
        *reported.PROBLEMS,
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


__all__ = ["LAYOUTS", "LEVELS", "NAMES", "PROBLEMS", "Problem", "Variant", "at_level", "named", "typed"]
