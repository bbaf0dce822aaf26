"""The tables of cases. Data only."""

from __future__ import annotations

from conformance.problems import edges, networks, normalised, pairwise, pooling
from conformance.problems.table import FAMILY_DISTRIBUTIONS, LAYOUTS, LEVELS, Problem, Variant, at_level, typed

PROBLEMS: tuple[Problem, ...] = (
    *edges.BASIC,
    *normalised.BASIC,
    *pooling.BASIC,
    *edges.SHAPES,
    *edges.TILES,
    *pairwise.MINIATURES,
    *networks.UNET_TWINS,
    *networks.CLASSIFIERS,
    *normalised.SHAPES,
    *normalised.LAYERS,
    *pooling.SHAPES,
    *pooling.LAYERS,
    *networks.UNET,
    *networks.CLASSIFIERS_FULL,
    *normalised.FULL,
    *pooling.FULL,
)

__all__ = ["FAMILY_DISTRIBUTIONS", "LAYOUTS", "LEVELS", "PROBLEMS", "Problem", "Variant", "at_level", "typed"]
