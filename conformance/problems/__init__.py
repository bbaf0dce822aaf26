"""The tables of cases. Data only."""

from __future__ import annotations

from conformance.problems import edges, networks
from conformance.problems.table import LAYOUTS, LEVELS, Problem, Variant, at_level, typed

PROBLEMS: tuple[Problem, ...] = (
    *edges.BASIC,
    *edges.SHAPES,
    *edges.TILES,
    *networks.UNET_TWINS,
    *networks.CLASSIFIERS,
    *networks.UNET,
    *networks.CLASSIFIERS_FULL,
)

__all__ = ["LAYOUTS", "LEVELS", "PROBLEMS", "Problem", "Variant", "at_level", "typed"]
