"""Problem -> tensors: the generator, the arms, what is expected, and the goldens that pin it."""

from __future__ import annotations

from conformance.data.arms import ARMS, Recipe
from conformance.data.expectation import Expectation, expectation

__all__ = ["ARMS", "Expectation", "Recipe", "expectation"]
