"""The declaration of a family, at the end of its `operators.py`: its operators, and what is chosen for them by hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from conformance.operators.base import Operator
from conformance.operators.descriptor import Described

if TYPE_CHECKING:
    from conformance.operators.mistakes import Mistake

LINEAR = ("integer", "fixed", "natural", "impulse", "special", "nonfinite", "range", "subnormal", "wide", "mixed")
"""Distributions for operators that sum inputs or products of inputs, or that select one of their inputs."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Family:
    """Operators that take the same geometry.

    distributions  ways of drawing inputs that make sense for the family; checks of behaviour use the first
    place          place in lists of families; those without one come last, by their names
    """

    geometry: type[Described]
    operators: tuple[Operator, ...]
    distributions: tuple[str, ...] = LINEAR
    place: int = 100

    @property
    def name(self) -> str:
        """Name of the family's folder."""
        return self.geometry.family

    @cached_property
    def mistakes(self) -> tuple[Mistake, ...]:
        """Mistakes that diagnosis knows, in the order in which it names equally good explanations. They are imported on
        first use; runs of correct kernels never use them."""
        known: tuple[Mistake, ...] = import_module(f"conformance.operators.{self.name}.mistakes").MISTAKES
        return known

    @cached_property
    def further(self) -> tuple[Mistake, ...]:
        """Further mistakes that diagnosis knows but calibration does not plant: most of them show in the output's
        shape, some only there."""
        from conformance.operators.mistakes import OF_RESULTS

        own: tuple[Mistake, ...] = getattr(import_module(f"conformance.operators.{self.name}.mistakes"), "FURTHER", ())
        return own + (OF_RESULTS if "fixed" in self.distributions else ())
