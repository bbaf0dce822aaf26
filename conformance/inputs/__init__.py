"""Problem -> tensors: the generator, the distributions, what is expected, and the goldens that pin it."""

from __future__ import annotations

from conformance.inputs.distributions import DISTRIBUTIONS
from conformance.inputs.drawing import Recipe
from conformance.inputs.expectation import Expectation

__all__ = ["DISTRIBUTIONS", "Expectation", "Recipe"]
