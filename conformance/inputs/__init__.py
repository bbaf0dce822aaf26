"""From a problem to its tensors: the generator, the distributions, expected results, and the goldens that pin them."""

from __future__ import annotations

from conformance.inputs.distributions import DISTRIBUTIONS
from conformance.inputs.drawing import Recipe
from conformance.inputs.expectation import Expectation

__all__ = ["DISTRIBUTIONS", "Expectation", "Recipe"]
