"""What a family of operators is: one object, made in a folder of its own."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.operators.base import Operator
from conformance.operators.descriptor import Described
from conformance.operators.mistakes import Mistake

LINEAR = ("integer", "fixed", "bits", "impulse", "special", "nonfinite", "range", "subnormal", "wide", "mixed")
"""Distributions for sums of inputs or of their products, and for what picks one of its inputs."""


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Operators that take the same geometry.

    distributions  the ways of drawing inputs that mean anything here; checks of behaviour take the first
    mistakes       what diagnosis knows, in the order in which equally good explanations are named
    further        those that diagnosis knows besides and calibration does not plant: most of them show in the output's
                   shape, and some in nothing else
    """

    name: str
    geometry: type[Described]
    operators: tuple[Operator, ...]
    distributions: tuple[str, ...]
    mistakes: tuple[Mistake, ...]
    further: tuple[Mistake, ...] = ()
