"""When a problem is judged by probes, and the probes' random choices."""

from __future__ import annotations

import itertools
import math
from functools import cached_property

import numpy as np

from conformance.dtypes import WHOLE
from conformance.inputs.drawing import Recipe
from conformance.operators import Arrays
from conformance.operators.base import ProbeMethods
from conformance.operators.conv.probes import Projection, projected, sums_of_gradient

DISTRIBUTIONS = frozenset({"integer", "fixed"})
"""Distributions whose data the probes' bounds are derived for."""
WORTHWHILE = 1 << 32
"""FLOPs from which an exact reference costs seconds."""
LANES = 8
"""Fewer channels to sum than this save too little over the exact reference."""
RISK = 1e-9
_GATHERED = 1 << 19
"""Products gathered for all samples together: 4 MiB."""


def possible(recipe: Recipe) -> bool:
    """Whether the probes' bounds hold for the distribution's data."""
    known = recipe.distribution in DISTRIBUTIONS and recipe.dtype not in WHOLE
    return known and recipe.operator.probes is not None and recipe.geometry.n > 0


def worthwhile(recipe: Recipe) -> bool:
    """Whether probes cost much less than the exact reference."""
    methods, geometry = recipe.operator.probes, recipe.geometry
    if methods is None or not possible(recipe) or recipe.operator.flops(geometry) < WORTHWHILE:
        return False
    return bool(methods.channels(geometry) // geometry.groups >= LANES)


class Probes:
    """Samples and projection of a recipe's main output; the other outputs are small and known exactly."""

    def __init__(self, recipe: Recipe, inputs: Arrays) -> None:
        self.recipe, self.inputs = recipe, inputs
        self.geometry = recipe.geometry
        assert recipe.operator.probes is not None
        self.methods: ProbeMethods = recipe.operator.probes
        self.output, tensor = next(iter(recipe.operator.outputs(recipe.geometry).items()))
        self.shape = tensor.shape

    @cached_property
    def projection(self) -> Projection:
        """The projected output, exact."""
        signs = self.recipe.stream("signs").below(2, self.methods.channels(self.geometry))
        projection: Projection = self.methods.project(
            self.geometry, self.inputs, 2.0 * np.array(signs) - 1.0, RISK, self._arithmetic
        )
        return projection

    @property
    def _arithmetic(self) -> np.dtype:
        """Float32 where the verdict is a bound on fp32 sums or wider errors, float64 where equality is demanded."""
        exact = self.recipe.distribution == "integer" or self.recipe.dtype == "fp64"
        return np.dtype(np.float64 if exact else np.float32)

    @cached_property
    def index(self) -> np.ndarray:
        """[T, 4]: all corners, and places drawn uniformly; each once, or the statistics would see one error twice."""
        corners = np.array(list(itertools.product(*({0, extent - 1} for extent in self.shape))))
        count = max(8, min(2048, _GATHERED // self.recipe.terms))
        drawn = self.recipe.stream("samples").below(math.prod(self.shape), count)
        flat = np.union1d(np.ravel_multi_index(tuple(corners.T), self.shape), drawn)
        return np.stack(np.unravel_index(flat, self.shape), axis=1)

    @cached_property
    def samples(self) -> tuple[np.ndarray, np.ndarray]:
        """Exact values and magnitudes at `index`."""
        return self.methods.sample(self.geometry, self.inputs, self.index)

    @cached_property
    def small(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Outputs that are cheap to know exactly: {name: (values, magnitudes)}."""
        others = list(self.recipe.operator.outputs(self.geometry))[1:]
        return {name: sums_of_gradient(self.inputs) for name in others}

    def project(self, output: np.ndarray) -> np.ndarray:
        """An implementation's output, projected as the reference is."""
        return projected(self.projection, output)
