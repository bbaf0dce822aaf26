"""The tables of cases. Data only."""

from __future__ import annotations

from conformance.problems import edges, max_pooling, networks, normalised, pairwise, pooling
from conformance.problems.table import LAYOUTS, LEVELS, Problem, Variant, at_level, typed

_CONVOLUTIONS = (
    *(*edges.BASIC, *edges.SHAPES, *edges.TILES, *pairwise.PAIRWISE),
    *(*networks.UNET_REDUCED, *networks.CLASSIFIERS, *networks.UNET, *networks.CLASSIFIERS_FULL),
)
PROBLEMS: tuple[Problem, ...] = (*_CONVOLUTIONS, *normalised.PROBLEMS, *pooling.PROBLEMS, *max_pooling.PROBLEMS)
"""All; behaviour is checked on the first ones of a family."""

__all__ = ["LAYOUTS", "LEVELS", "PROBLEMS", "Problem", "Variant", "at_level", "typed"]
