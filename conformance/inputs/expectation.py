"""Tensors of a recipe: inputs, exact reference and magnitudes, each computed once and shared."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from conformance.inputs.distributions import DISTRIBUTIONS
from conformance.inputs.drawing import Recipe
from conformance.inputs.four_bits import with_four_bits
from conformance.inputs.shared_scales import with_shared_scales
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
        """Inputs as drawn from the recipe's distribution; those that must not be read are NaN."""
        workload, draw = self.recipe.workload, DISTRIBUTIONS[self.recipe.distribution]
        if any(tensor.packed for tensor in workload.inputs.values()):
            drawn = with_four_bits(self.recipe, draw)
        else:
            shares_scales = "scale_a" in workload.inputs
            drawn = with_shared_scales(self.recipe, draw) if shares_scales else draw(self.recipe)
        for name in workload.operator.unread(workload.geometry):
            drawn[name].fill(np.nan)
        return drawn

    def holding(self, inputs: Arrays) -> Expectation:
        """Return an expectation of the same recipe with other input values."""
        other = Expectation(self.recipe)
        other.inputs, other.verified = inputs, self.verified
        return other

    @cached_property
    def reference(self) -> Arrays:
        """Exact outputs, float64, canonical order; on natural inputs rounded once from double-double numbers."""
        if self.recipe.distribution == "natural":
            return {name: high for name, (high, _) in self._exact.items()}
        with np.errstate(invalid="ignore", over="ignore"):
            return self.recipe.workload.reference(self.inputs)

    @cached_property
    def rest(self) -> Arrays:
        """Low parts of exact outputs beyond `reference`, for natural fp64 inputs. Empty for others, where `reference`
        is exact or the rest is far below the output's own rounding."""
        exact = self._exact if (self.recipe.dtype, self.recipe.distribution) == ("fp64", "natural") else {}
        return {name: low for name, (_, low) in exact.items()}

    @cached_property
    def _exact(self) -> dict[str, Double]:
        workload = self.recipe.workload
        return workload.operator.exact(workload.geometry, self.inputs)

    @cached_property
    def magnitude(self) -> Arrays:
        """s2 of every output element; in float32 if squares cannot leave its range, since s2 only scales a bound."""
        dtype = np.float64 if self.recipe.distribution in EXTREME else np.float32
        with np.errstate(invalid="ignore", over="ignore"):
            return self.recipe.workload.magnitude(self.inputs, dtype)
