"""Distributions for 8-bit results: a scale for each filter brings its sums to an interesting range of the format.

Half of a filter's results are larger than a power of two, which differs from filter to filter: in int8, results fill a
part of the range, all of it, or exceed it; in fp8 they lie around 1, overflow, or are subnormal.
"""

from __future__ import annotations

import math

import numpy as np

from conformance.dtypes import FORMATS, STORAGE, WHOLE
from conformance.inputs.drawing import FIXED_POINT_BITS, Recipe, held
from conformance.operators import Arrays
from conformance.operators.conv_requantized.operators import sums

INT8_POWERS = (5, 6, 33, 4, 24, 7)
"""Half of a filter's results are larger than half of 2^power. 24: beyond 2^22, up to which adding a large number in
fp32 rounds to integers. 33: beyond the 32 bits of a conversion."""


def _stored(recipe: Recipe) -> dict[str, np.dtype]:
    return {name: STORAGE[tensor.stored_as(recipe.dtype)] for name, tensor in recipe.workload.inputs.items()}


def with_scale(recipe: Recipe, inputs: Arrays, significand: np.ndarray) -> Arrays:
    """Add a scale [K] to the inputs: significands in [1/2, 1) times powers of two that bring each filter's median to
    the chosen power."""
    if recipe.dtype in WHOLE:
        powers: tuple[int, ...] = INT8_POWERS
    else:
        format = FORMATS[recipe.dtype]
        powers = (0, format.emax, format.emin, 3)
    g = recipe.workload.geometry
    exact = np.abs(sums(g, inputs)).swapaxes(0, 1).reshape(g.k, -1)
    median = np.median(exact, axis=1) if exact.size else np.ones(len(exact))
    exponent = np.resize(powers, len(median)) - np.frexp(median)[1]
    return inputs | {"scale": np.ldexp(significand, exponent + 1).astype(np.float32)}


def _codes_or_fractions(recipe: Recipe) -> Arrays:
    """Draw x and w: all numbers of int8, or fractions that fp8 holds."""
    inputs, bits = {}, FIXED_POINT_BITS.get(recipe.dtype, 0)
    for name, dtype in _stored(recipe).items():
        stream, shape = recipe.stream(name), recipe.workload.inputs[name].shape
        if name in ("x", "w"):
            whole = recipe.dtype in WHOLE
            inputs[name] = stream.codes(shape, dtype) if whole else stream.fixed_point(shape, bits, dtype)
    return inputs


def _with_bias(recipe: Recipe, inputs: Arrays, largest: int) -> Arrays:
    """Add a bias of integers up to `largest`, about as large as the sums, if the problem has a bias."""
    if not recipe.workload.geometry.bias:
        return inputs
    stream, shape, dtype = recipe.stream("bias"), recipe.workload.geometry.per_channel.shape, _stored(recipe)["bias"]
    return inputs | {"bias": stream.integers(shape, min(largest, 1 << 30), dtype)}


def scales(recipe: Recipe) -> Arrays:
    """Draw scales with 24-bit significands whose last bit is 1."""
    g, inputs = recipe.workload.geometry, _codes_or_fractions(recipe)
    if recipe.dtype in WHOLE:
        inputs = _with_bias(recipe, inputs, math.isqrt(recipe.terms) << 13)
    elif g.bias:
        bits = FIXED_POINT_BITS["fp32"]
        inputs["bias"] = recipe.stream("bias").fixed_point((g.k,), bits, _stored(recipe)["bias"])
    drawn = recipe.stream("scale").significands((g.k,), 24, np.dtype(np.float32))
    return with_scale(recipe, inputs, np.abs(drawn))


def ties(recipe: Recipe) -> Arrays:
    """Draw filters of -1, 0 and 1, so that sums have few bits below the result's last one: many results are ties. In
    int8 the scale is at most 1/2, otherwise there would be no ties."""
    dtypes, tensors = _stored(recipe), recipe.workload.inputs
    x, whole = recipe.stream("x"), recipe.dtype in WHOLE
    inputs = {
        "x": x.codes(tensors["x"].shape, dtypes["x"])
        if whole
        else x.integers(tensors["x"].shape, held(recipe), dtypes["x"]),
        "w": recipe.stream("w").ternary(tensors["w"].shape, 0.5, dtypes["w"]),
    }
    inputs = _with_bias(recipe, inputs, math.isqrt(recipe.terms) * (64 if whole else held(recipe)))
    inputs = with_scale(recipe, inputs, np.full(recipe.workload.geometry.k, 0.5))
    return inputs | {"scale": np.minimum(inputs["scale"], np.float32(0.5))} if whole else inputs


def cancelled(recipe: Recipe) -> Arrays:
    """Draw numbers close to the largest magnitude (half of x has it), so that sums are nearly as large as possible;
    every other filter is all -128, of which two products exceed 16 bits. The bias cancels a filter's median, so that
    few bits are left. Filters are smaller where sums of magnitudes could exceed 32 bits."""
    g, inputs = recipe.workload.geometry, _codes_or_fractions(recipe)
    far = 127 - np.where(inputs["x"] & 16, inputs["x"] & 15, 0).astype(np.int8)
    inputs["x"] = far if g.x_zero_point < 0 else ~far
    within = min(127, -(-recipe.terms >> 16))
    inputs["w"] = (127 - (inputs["w"] & 3)) // within
    inputs["w"][1::2] = ~(127 // within)
    if g.bias:
        exact = sums(g, inputs | {"bias": np.zeros(g.k)}).swapaxes(0, 1).reshape(g.k, -1)
        inputs["bias"] = -np.rint(np.median(exact, axis=1) if exact.size else np.zeros(g.k)).astype(np.int32)
    drawn = recipe.stream("scale").significands((g.k,), 24, np.dtype(np.float32))
    return with_scale(recipe, inputs, np.abs(drawn))
