"""Scales that rows, columns and terms of a product share: none is 1, and none is that of the block beside it.

On data whose results must be equal they are powers of two, and on all data of a problem that says so. Otherwise they
have 12 significant bits on fixed-point data, one more than fp16, so that operands times scales and products of scales
are exact in fp32; on natural data all 24 bits of fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from conformance.dtypes import STORAGE, WHOLE
from conformance.inputs.drawing import LARGEST_INTEGER, Recipe, held
from conformance.operators import Arrays, Tensor

POWERS = (-2, -1, 1, 2)
"""Exponents of scales whose results are exact. Not 0: a scale that is left out, squared or inverted would be right."""
SUMMED_BITS = 15
"""Bits of the sums of integers: two scales shift these by 2 * 4 places, and the bias takes one more bit of fp32."""
NATURAL_POWERS = tuple(range(-8, 0))
FAR_POWERS = (50, -50, 0)
"""Exponents of rows and of columns on the distribution `wide`. Two together, or one and an operand, stay within the
range of fp32, in whatever order they are multiplied."""
FIXED_BITS, NATURAL_BITS = 12, 24


def with_shared_scales(recipe: Recipe, draw: Callable[[Recipe], Arrays]) -> Arrays:
    """Draw inputs by a distribution, and scales that suit it."""
    inputs = _integers(recipe) if recipe.distribution == "integer" else draw(recipe)
    if recipe.distribution == "impulse" and recipe.dtype in WHOLE:
        inputs["a"][1::2] *= -1  # -128, which b has beside it, has no negative in 8 bits
    for name in ("scale_a", "scale_b"):
        tensor = recipe.workload.inputs[name]
        drawn = _scales(recipe, name, tensor)
        if recipe.distribution in ("special", "nonfinite"):  # which put zeros and NaN among ones
            values = inputs[name].astype(np.float64)
            drawn = np.where(np.abs(values) == 1, drawn, values)
        inputs[name] = drawn.astype(np.float32)
    return inputs


def _scales(recipe: Recipe, name: str, tensor: Tensor) -> np.ndarray:
    """Draw scales [blocks of rows or columns, blocks of terms]."""
    distribution, powers = recipe.distribution, NATURAL_POWERS if recipe.distribution == "natural" else POWERS
    exponents = np.array(powers)[differing(recipe, name, tensor.shape, len(powers))]
    if distribution == "absorbed":  # a large term and its negative must cancel
        exponents = np.repeat(exponents[:, :1], tensor.shape[1], axis=1)
    if distribution == "wide":
        exponents = exponents + np.resize(FAR_POWERS, tensor.shape[0])[:, None]
    bits = {"fixed": FIXED_BITS, "wide": FIXED_BITS, "natural": NATURAL_BITS}.get(distribution)
    significands = np.ones(tensor.shape)
    if bits and not recipe.workload.geometry.powers:
        significands = np.abs(recipe.stream(name).significands(tensor.shape, bits, np.dtype(np.float64)))
    scales: np.ndarray = np.ldexp(significands, exponents)
    return scales


def differing(recipe: Recipe, name: str, shape: tuple[int, ...], count: int) -> np.ndarray:
    """Draw numbers below `count`, each different from those before and after it along either axis."""
    first, *steps = (
        np.array(recipe.stream(f"{name} {axis}").below(limit, extent), np.int64)
        for axis, limit, extent in (("first", count, 1), ("rows", count - 1, shape[0]), ("terms", count - 1, shape[1]))
    )
    rows, terms = (np.cumsum(1 + step) for step in steps)
    differing: np.ndarray = (first + rows[:, None] + terms) % count
    return differing


def _integers(recipe: Recipe) -> Arrays:
    """Draw integers whose products, scaled by powers of two, have exact sums in fp32 in every order; long sums get
    sparse -1, 0 and 1."""
    room, inputs = 1 << SUMMED_BITS, {}
    largest = min(math.isqrt(room // recipe.terms), LARGEST_INTEGER, held(recipe))
    for name, tensor in recipe.workload.inputs.items():
        stream, dtype = recipe.stream(name), STORAGE[tensor.stored_as(recipe.dtype)]
        if name == "bias":
            inputs[name] = stream.integers(tensor.shape, room, dtype)
        elif largest > 1:
            inputs[name] = stream.integers(tensor.shape, largest, dtype)
        else:
            inputs[name] = stream.ternary(tensor.shape, min(1.0, math.sqrt(room / 4 / recipe.terms)), dtype)
    return inputs
