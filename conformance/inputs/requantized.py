"""Distributions for results of 8 bits: a scale for each filter brings its sums to where the format shows something.

Half of a filter's results are larger than a power of two that is chosen by turns: in int8 results fill the range, or a
part or more of it; in fp8 they lie around 1, overflow, or are subnormal.
"""

from __future__ import annotations

import math

import numpy as np

from conformance.dtypes import FORMATS, STORAGE, WHOLE
from conformance.inputs.drawing import FIXED_POINT_BITS, Recipe, held
from conformance.operators import Arrays
from conformance.operators.conv_requantized.operators import sums

INT8_POWERS = (5, 6, 33, 4, 24, 7)
"""Half of a filter's results are larger than half of 2^power: beyond 2^22, which is as far as a large number added in
fp32 rounds them, and beyond the 32 bits of a conversion."""


def _stored(recipe: Recipe) -> dict[str, np.dtype]:
    tensors = recipe.operator.inputs(recipe.geometry)
    return {name: STORAGE[tensor.stored_as(recipe.dtype)] for name, tensor in tensors.items()}


def with_scale(recipe: Recipe, inputs: Arrays, significand: np.ndarray) -> Arrays:
    """The inputs and a scale [K]: significands in [1/2, 1) times the power of two that brings the median where it is
    wanted."""
    if recipe.dtype in WHOLE:
        powers: tuple[int, ...] = INT8_POWERS
    else:
        format = FORMATS[recipe.dtype]
        powers = (0, format.emax, format.emin, 3)
    exact = np.abs(sums(recipe.geometry, inputs)).swapaxes(0, 1).reshape(recipe.geometry.k, -1)
    median = np.median(exact, axis=1) if exact.size else np.ones(len(exact))
    exponent = np.resize(powers, len(median)) - np.frexp(median)[1]
    return inputs | {"scale": np.ldexp(significand, exponent + 1).astype(np.float32)}


def _codes_or_fractions(recipe: Recipe) -> Arrays:
    """x and w: all numbers that int8 has, or fractions that fp8 holds."""
    found, bits = {}, FIXED_POINT_BITS.get(recipe.dtype, 0)
    for name, dtype in _stored(recipe).items():
        stream, shape = recipe.stream(name), recipe.operator.inputs(recipe.geometry)[name].shape
        if name in ("x", "w"):
            whole = recipe.dtype in WHOLE
            found[name] = stream.codes(shape, dtype) if whole else stream.fixed_point(shape, bits, dtype)
    return found


def _with_bias(recipe: Recipe, inputs: Arrays, largest: int) -> Arrays:
    """And a bias as large as sums are: integers up to `largest`, in fp8 with fractions unless that is 0."""
    if not recipe.geometry.bias:
        return inputs
    stream, shape, dtype = recipe.stream("bias"), recipe.geometry.per_channel.shape, _stored(recipe)["bias"]
    return inputs | {"bias": stream.integers(shape, min(largest, 1 << 30), dtype)}


def scales(recipe: Recipe) -> Arrays:
    """Scales of 24 bits, of which the last is one."""
    inputs = _codes_or_fractions(recipe)
    if recipe.dtype in WHOLE:
        inputs = _with_bias(recipe, inputs, math.isqrt(recipe.terms) << 13)
    elif recipe.geometry.bias:
        bits = FIXED_POINT_BITS["fp32"]
        inputs["bias"] = recipe.stream("bias").fixed_point((recipe.geometry.k,), bits, _stored(recipe)["bias"])
    drawn = recipe.stream("scale").significands((recipe.geometry.k,), 24, np.dtype(np.float32))
    return with_scale(recipe, inputs, np.abs(drawn))


def ties(recipe: Recipe) -> Arrays:
    """Filters of -1, 0 and 1, so that sums have few bits below the last one of the result: every few results are ties.
    A scale below one in int8, or there would be none."""
    dtypes, tensors = _stored(recipe), recipe.operator.inputs(recipe.geometry)
    x, whole = recipe.stream("x"), recipe.dtype in WHOLE
    inputs = {
        "x": x.codes(tensors["x"].shape, dtypes["x"])
        if whole
        else x.integers(tensors["x"].shape, held(recipe), dtypes["x"]),
        "w": recipe.stream("w").ternary(tensors["w"].shape, 0.5, dtypes["w"]),
    }
    inputs = _with_bias(recipe, inputs, math.isqrt(recipe.terms) * (64 if whole else held(recipe)))
    inputs = with_scale(recipe, inputs, np.full(recipe.geometry.k, 0.5))
    return inputs | {"scale": np.minimum(inputs["scale"], np.float32(0.5))} if whole else inputs


def cancelled(recipe: Recipe) -> Arrays:
    """Elements close to the furthest from zero, half of x the furthest, so that sums are nearly as large as they can be
    and two products of -128 more than 16 bits hold, which every other filter is made of; the bias takes a filter's
    median away: what is left has few bits. Where all magnitudes could leave 32 bits, filters are smaller."""
    g, inputs = recipe.geometry, _codes_or_fractions(recipe)
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
