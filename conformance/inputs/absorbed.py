"""Sums in which one large term, and its negative at the other end, stand beside small ones that a short accumulator
absorbs: the data on which the largest error of a sum is reached, see `conformance.judge.limits`, "Absorption"."""

from __future__ import annotations

import numpy as np

from conformance.dtypes import FORMATS, STORAGE, sums_of
from conformance.inputs.drawing import Recipe
from conformance.operators import Arrays

LARGEST = 13
"""Exponent of the large term: fp16 has 30 normal binades, of which sums of small terms need some."""
SMALL = (1.0, 1.75)
"""Small terms, beside powers of two: a tie where sums are rounded to nearest, and nearly a unit of what is cut off."""
TELLING = (
    (23, 0), (11, 0), (24, 1), (14, 1), (8, 0), (13, 1), (7, 0), (10, 0), (12, 0), (25, 1), (24, 0), (26, 1), (23, 1),
)  # fmt: skip
"""Binades between the large term and the small ones, and which of the latter: first those that accumulators with a bit
less than fp32, fp16, bf16, or FP8's 13 bits lose, then what these keep or lose rightly, and last what cut sums with a
bit less than fp32 lose: with few channels most results would be within their limits of zero. Problems with more
channels have all sizes."""
RATIOS = range(6, 27)
"""Binades between the large term and the small ones: up to those that fp32 absorbs."""


def absorbed(recipe: Recipe) -> Arrays:
    """Draw ones for the data, and for each index of the operand's free axis a large number first, its negative last,
    and small numbers of one size between them, another one for each index. What else is added is zero. An operator
    without filters adds elements of one image: each has its own large number and negative."""
    workload, operator, inputs = recipe.workload, recipe.workload.operator, {}
    for name, tensor in workload.inputs.items():
        inputs[name] = np.zeros(tensor.shape, STORAGE[tensor.stored_as(recipe.dtype)])
    inputs[operator.data] += inputs[operator.data].dtype.type(1)
    operand, has_no_filter = inputs[operator.operand], operator.operand == operator.data
    along = np.moveaxis(operand, operator.free_axis, 0)
    is_grouped = workload.inputs[operator.operand].is_filter and operator.free_axis
    separate = workload.geometry.groups if is_grouped else workload.geometry.n if has_no_filter else 1
    format = FORMATS[recipe.dtype]
    largest = min(LARGEST, format.emax)
    # sums of fp16 overflowed, of which the result is within its range, and a right kernel failed
    room = 2.0 ** FORMATS[sums_of(recipe.dtype)].emax * 1.9 - 2.0**largest
    remaining = ((ratio, small) for ratio in RATIOS for small in range(len(SMALL)))
    sizes = [
        size
        for ratio, small in dict.fromkeys((*TELLING, *remaining))
        if (size := SMALL[small] * 2.0 ** (largest - ratio)) * recipe.terms <= room and largest - ratio >= format.emin
    ]
    for index, channel in enumerate(along if operand.size else ()):
        terms = np.full(channel.size, sizes[index % len(sizes)])
        sums = terms.reshape(separate, -1)
        sums[:, 0], sums[:, -1] = 2.0**largest, -(2.0**largest)
        channel[...] = terms.reshape(channel.shape)
    return inputs
