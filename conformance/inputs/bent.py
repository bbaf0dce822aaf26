"""Sums where activations bend: fixed-point fractions, scaled so that sums lie around zero, within the few units in
which a gelu differs from a relu, an approximation from its function, and a clip at 6 from none."""

from __future__ import annotations

import math

from conformance.inputs.drawing import Recipe, fixed
from conformance.inputs.normalised import with_scales
from conformance.operators import Arrays

POWERS = (1, 0, 2, -1)
"""Deviations of the products' sums, as powers of two, of one column or filter after the other: most results lie where
activations bend, and a few beyond 6."""
DEVIATION = math.log2(3)
"""A product of two uniform fractions has the deviation 1/3."""


def bent(recipe: Recipe) -> Arrays:
    """Draw fractions; scale filters, or columns, so that the deviations of sums are those of `POWERS`, or up to twice
    as large. Fractions are those of `fixed`: powers of two keep their bits, and bias and residual stay as they are."""
    terms = max(1, recipe.terms)
    level = math.ceil(DEVIATION - math.log2(terms) / 2)
    return with_scales(recipe, fixed(recipe), [level + power for power in POWERS])
