"""What a problem's outputs must be: inputs, exact reference, magnitudes, each computed once and shared."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from conformance.inputs.distributions import DISTRIBUTIONS
from conformance.inputs.drawing import Recipe
from conformance.operators import Arrays
from conformance.operators.double_double import Double

EXTREME = frozenset({"wide", "range", "subnormal", "large", "small"})
"""Distributions whose squares leave the range of float32."""


class Expectation:
    """The tensors of one recipe, each drawn or computed on first use."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.verified = False
        """Whether these tensors were compared with their golden."""

    @cached_property
    def inputs(self) -> Arrays:
        """As they are drawn."""
        return DISTRIBUTIONS[self.recipe.distribution](self.recipe)

    def holding(self, inputs: Arrays) -> Expectation:
        """The same recipe with other values."""
        other = Expectation(self.recipe)
        other.inputs, other.verified = inputs, self.verified
        return other

    @cached_property
    def reference(self) -> Arrays:
        """Exact outputs, float64, canonical order; on natural inputs rounded once, from twice its precision."""
        if self.recipe.distribution == "natural":
            return {name: high for name, (high, _) in self._exact.items()}
        with np.errstate(invalid="ignore", over="ignore"):
            return self.recipe.operator.reference(self.recipe.geometry, self.inputs)

    @cached_property
    def rest(self) -> Arrays:
        """What the exact outputs of fp64 inputs have beyond `reference`; empty where that is all or far below the
        output's own rounding."""
        exact = self._exact if (self.recipe.dtype, self.recipe.distribution) == ("fp64", "natural") else {}
        return {name: low for name, (_, low) in exact.items()}

    @cached_property
    def _exact(self) -> dict[str, Double]:
        return self.recipe.operator.exact(self.recipe.geometry, self.inputs)

    @cached_property
    def magnitude(self) -> Arrays:
        """s2 of every output element. In float32 where squares cannot leave its range: it scales a bound, no more."""
        dtype = np.float64 if self.recipe.distribution in EXTREME else np.float32
        with np.errstate(invalid="ignore", over="ignore"):
            return self.recipe.operator.magnitude(self.recipe.geometry, self.inputs, dtype)
