"""Distributions for batch normalisation: variances close to epsilon, means much larger than variances, wide ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from conformance.dtypes import FORMATS, STORAGE
from conformance.inputs.drawing import Recipe, fixed, fixed_point_bits
from conformance.inputs.stream import term_bits
from conformance.operators import Arrays
from conformance.operators.spatial import as_image, by_channel, per_channel

SCALES = (0, -4, -8, -12)
"""Exponents of filters on the scaled distribution: variances from about 1 to 1e-7."""
SHIFT_BITS = {"fp32": 6, "bf16": 6, "fp16": 6, "fp64": 20}
"""On the shifted distribution data are 1 or 1 +- 2^-bits. An error of the mean is 4^bits times as large in dw: with 12
bits, the error of a correct fp32 sum was thirty times dw."""
FEWEST_BITS = 3
"""Smallest number of bits of a filter on the shifted distribution. Filters have only as many bits as keep the
convolution's sums exact in an accumulator, so that the remaining errors come from the statistics and gradients."""
CONSTANT = 4
"""On the shifted distribution every fourth input channel is constant, and every fourth filter sees only these."""
POWER, NARROW_POWER = 28, 8
"""Exponents of filters on the range distribution: 2^28 is beyond fp16, but its fourth power, which bounds contain, is
not beyond fp32. The narrow exponent, 8, is for gradients, in which powers are multiplied, and for fp16; there it also
scales the data, so that results of the convolution leave the range."""


def with_scales(recipe: Recipe, inputs: Arrays, exponents: Sequence[int]) -> Arrays:
    """Multiply the operand along its free axis by these powers of two in turn."""
    operator = recipe.workload.operator
    operand, axis = inputs[operator.operand].astype(np.float64), operator.free_axis
    shape = [-1] + [1] * (operand.ndim - 1 - axis)
    scaled = np.ldexp(operand, np.resize(exponents, operand.shape[axis]).reshape(shape))
    return inputs | {operator.operand: scaled.astype(inputs[operator.operand].dtype)}


def scaled(recipe: Recipe) -> Arrays:
    """Draw filters scaled by `SCALES` in turn; dy has a nonzero mean in every second channel."""
    inputs = with_scales(recipe, fixed(recipe), SCALES)
    if "dy" in inputs:
        inputs["dy"][:, 1::2] = np.abs(inputs["dy"][:, 1::2])
    return inputs


def shifted(recipe: Recipe) -> Arrays:
    """Draw images close to 1, so that means are large and variances small; every fourth filter sees constant channels
    only. Parameters are as at the start of training: gamma and the running variance are 1, beta and the running mean 0.
    A library that merged equal constants into one array updated gamma with the running variance.

    A filter that sees constant channels has a variance of zero if there is no padding. The root has no derivative
    there, so the inputs of gradients with epsilon outside the root are not shifted.
    """
    g, inputs = recipe.workload.geometry, fixed(recipe)
    if g.eps_outside and "dy" in inputs:
        return inputs
    shift = SHIFT_BITS[recipe.dtype]
    drawn = recipe.stream("shift").ternary(g.x.shape, 1.0, np.dtype(np.float64)) * 2.0**-shift
    steps = drawn * per_channel(np.arange(g.c) % CONSTANT != 0, g.rank)
    w = _filters(recipe, shift + 1).reshape(g.groups, -1, *inputs["w"].shape[1:])
    is_constant = np.arange(g.c).reshape(g.groups, 1, -1) % CONSTANT == 0
    blind = np.arange(g.k).reshape(g.groups, -1, 1) % CONSTANT == 0
    kept = np.where(blind & ~is_constant, 0, 1).astype(w.dtype)
    result = inputs | {
        "x": (1 + steps).astype(inputs["x"].dtype),
        "w": (w * kept.reshape(*kept.shape, *(1,) * g.rank)).reshape(inputs["w"].shape),
    }
    fresh = {"gamma": 1, "beta": 0, "running_mean": 0, "running_var": 1}
    result |= {name: np.full_like(inputs[name], value) for name, value in fresh.items() if name in inputs}
    return result | ({"dy": _balanced(recipe, inputs["dy"])} if "dy" in inputs else {})


def _filters(recipe: Recipe, data_bits: int) -> np.ndarray:
    """Draw filters with so few bits that sums of their products with the data are exact in an accumulator."""
    g, span = recipe.workload.geometry, recipe.workload.errors.span
    spare = FORMATS["fp64" if recipe.dtype == "fp64" else "fp32"].precision - data_bits - term_bits(span)
    _, most = fixed_point_bits(recipe.dtype, span)
    return recipe.stream("w").fixed_point(g.filter.shape, max(FEWEST_BITS, min(spare, most)), STORAGE[recipe.dtype])


def _balanced(recipe: Recipe, dy: np.ndarray) -> np.ndarray:
    """Return dy with each element's negative in the same channel, in every second channel. The sum is then zero, so
    that an error of the mean, which a correct sum may have, does not reach dgamma: errors there are the kernel's own.
    The first half has a mean, so that partial sums grow to about the root of the sum of squares, like those of random
    signs."""
    rows = by_channel(dy).copy()
    half = rows.shape[1] // 2
    spread = slice(0, half, max(1, math.isqrt(rows.shape[1]) // 4))
    rows[1::2, spread] = np.abs(rows[1::2, spread])
    rows[1::2, half:] = 0
    rows[1::2, rows.shape[1] - half :] = -rows[1::2, :half][:, ::-1]
    return as_image(rows, recipe.workload.geometry)


def ranged(recipe: Recipe) -> Arrays:
    """Draw channels in turn ordinary or extreme: filters scaled by 2^power, 2^-power and zero (no variance); gamma of
    zero, 2^(-2*power) and 2^power; running variances of zero, the smallest number and 2^power."""
    geometry, inputs, narrow = recipe.workload.geometry, fixed(recipe), recipe.dtype == "fp16"
    power = NARROW_POWER if narrow or "dy" in inputs else POWER
    turn, result = np.arange(geometry.k), dict(inputs)
    scale = np.array([1, 2.0**power, 2.0**-power, 0])[turn % 4].reshape(-1, *(1,) * (geometry.rank + 1))
    result["w"] = (inputs["w"].astype(np.float64) * scale).astype(inputs["w"].dtype)
    for name, first in (("gamma", turn + turn // 4), ("running_var", 3 * turn + turn // 4)):
        if name in inputs:
            least = 4.0**-power if name == "gamma" else np.finfo(inputs[name].dtype).smallest_subnormal
            edges = np.array([0, least, 2.0**power], inputs[name].dtype)
            result[name] = np.where(first % 4 == 0, inputs[name], edges[first % 4 - 1])
    return result | ({"x": inputs["x"] * np.float16(2**8)} if narrow else {})
