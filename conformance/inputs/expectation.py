"""What a problem's outputs must be: inputs, exact reference, magnitudes, each computed once and shared."""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np

from conformance.inputs.distributions import DISTRIBUTIONS, Recipe, sparse_places
from conformance.inputs.probing import Probes
from conformance.operators import Arrays
from conformance.operators.sparse import Nonzero, nonzero


class Expectation:
    """The tensors of one recipe. Reference and magnitudes are computed on first use."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.inputs = DISTRIBUTIONS[recipe.distribution](recipe)
        self.verified = False
        """Whether these tensors were compared with their golden."""

    @cached_property
    def reference(self) -> Arrays:
        """Exact outputs, float64, canonical order."""
        with np.errstate(invalid="ignore"):
            return self.recipe.operator.reference(self.recipe.geometry, self.inputs)

    @cached_property
    def nonzero(self) -> dict[str, Nonzero]:
        """The exact outputs of the sparse distribution: where they are not zero, and what they are there."""
        recipe = self.recipe
        return nonzero(recipe.operator.name, recipe.geometry, self.inputs, sparse_places(recipe))

    @cached_property
    def probes(self) -> Probes:
        """Samples and a projection, for outputs too large for an exact reference."""
        return Probes(self.recipe, self.inputs)

    @cached_property
    def magnitude(self) -> Arrays:
        """s2 of every output element. In float32 where squares cannot leave its range: it scales a bound, no more."""
        dtype = np.float64 if self.recipe.distribution == "wide" else np.float32
        with np.errstate(invalid="ignore"):
            return self.recipe.operator.magnitude(self.recipe.geometry, self.inputs, dtype)


expectation = lru_cache(maxsize=1)(Expectation)
"""The recipe's tensors, kept until another recipe is asked for: cases are ordered so that one is enough."""
