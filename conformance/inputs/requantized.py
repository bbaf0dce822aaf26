"""Distributions for 8-bit results: a scale for each filter, or column, brings its sums to an interesting range of the
format.

Half of a filter's results are larger than a power of two, which differs from filter to filter: in int8, results fill a
part of the range, all of it, or exceed it; in fp8 they lie around 1, overflow, or are subnormal.
"""

from __future__ import annotations

import math

import numpy as np

from conformance.dtypes import FORMATS, STORAGE, WHOLE, ends, middle
from conformance.inputs.drawing import FIXED_POINT_BITS, Recipe, held
from conformance.operators import Arrays
from conformance.operators.requantized import Requantized

INT8_POWERS = (5, 6, 33, 4, 24, 7)
"""Half of a filter's results are larger than half of 2^power. 24: beyond 2^22, up to which adding a large number in
fp32 rounds to integers. 33: beyond the 32 bits of a conversion."""


def _stored(recipe: Recipe) -> dict[str, np.dtype]:
    return {name: STORAGE[tensor.stored_as(recipe.dtype)] for name, tensor in recipe.workload.inputs.items()}


def _sums(recipe: Recipe, inputs: Arrays) -> np.ndarray:
    """Return the sums of each scale [K, M]."""
    operator, g = recipe.workload.operator, recipe.workload.geometry
    assert isinstance(operator, Requantized)
    return operator.by_scale(g, operator.sums(g, inputs))


def _significands(recipe: Recipe) -> np.ndarray:
    """Draw significands of 24 bits whose last bit is 1, in [1/2, 1)."""
    shape = recipe.workload.inputs["scale"].shape
    significands: np.ndarray = np.abs(recipe.stream("scale").significands(shape, 24, np.dtype(np.float32)))
    return significands


def with_scale(recipe: Recipe, inputs: Arrays, significand: np.ndarray) -> Arrays:
    """Add a scale [K] to the inputs: significands in [1/2, 1) times powers of two that bring each filter's median to
    the chosen power."""
    if recipe.dtype in WHOLE:
        powers: tuple[int, ...] = INT8_POWERS
    else:
        format = FORMATS[recipe.dtype]
        powers = (0, format.emax, format.emin, 3)
    exact = np.abs(_sums(recipe, inputs))
    median = np.median(exact, axis=1) if exact.size else np.ones(len(exact))
    exponent = np.resize(powers, len(median)) - np.frexp(median)[1]
    return inputs | {"scale": np.ldexp(significand, exponent + 1).astype(np.float32)}


def _codes_or_fractions(recipe: Recipe) -> Arrays:
    """Draw both operands: all numbers of 8 bits, or fractions that fp8 holds."""
    inputs, bits = {}, FIXED_POINT_BITS.get(recipe.dtype, 0)
    operator, dtypes = recipe.workload.operator, _stored(recipe)
    for name in (operator.data, operator.operand):
        stream, shape = recipe.stream(name), recipe.workload.inputs[name].shape
        whole = recipe.dtype in WHOLE
        inputs[name] = stream.codes(shape, dtypes[name]) if whole else stream.fixed_point(shape, bits, dtypes[name])
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
    return with_scale(recipe, inputs, _significands(recipe))


def ties(recipe: Recipe) -> Arrays:
    """Draw an operand of -1, 0 and 1 around its zero point, so that sums have few bits below the result's last one:
    many results are ties. In whole numbers the scale is at most 1/2, otherwise there would be no ties."""
    dtypes, tensors, operator = _stored(recipe), recipe.workload.inputs, recipe.workload.operator
    data, operand, whole = operator.data, operator.operand, recipe.dtype in WHOLE
    x, point = recipe.stream(data), recipe.workload.geometry.zero_points.get(operand, 0)
    drawn = recipe.stream(operand).ternary(tensors[operand].shape, 0.5, dtypes[operand])
    low, high = ends(tensors[operand].stored_as(recipe.dtype)) if whole else (-1, 1)
    inputs = {
        data: x.codes(tensors[data].shape, dtypes[data])
        if whole
        else x.integers(tensors[data].shape, held(recipe), dtypes[data]),
        operand: np.clip(drawn.astype(np.int16) + point, low, high).astype(dtypes[operand]) if point else drawn,
    }
    inputs = _with_bias(recipe, inputs, math.isqrt(recipe.terms) * (64 if whole else held(recipe)))
    inputs = with_scale(recipe, inputs, np.full(tensors["scale"].shape, 0.5))
    return inputs | {"scale": np.minimum(inputs["scale"], np.float32(0.5))} if whole else inputs


def cancelled(recipe: Recipe) -> Arrays:
    """Draw numbers furthest from the zero point (half of x is at an end of its format), so that sums are nearly as
    large as possible; every other filter is all -128, of which two products exceed 16 bits. The bias cancels a filter's
    median, so that few bits are left. Filters are smaller where sums of magnitudes could exceed 32 bits."""
    g, inputs, operator = recipe.workload.geometry, _codes_or_fractions(recipe), recipe.workload.operator
    data, operand = operator.data, operator.operand
    (low, high), inside = ends(recipe.dtype), np.where(inputs[data] & 16, inputs[data] & 15, 0)
    far = high - inside if g.zero_points[data] < middle(recipe.dtype) else low + inside
    inputs[data] = far.astype(inputs[data].dtype)
    within = min(127, -(-recipe.terms >> 16))
    inputs[operand] = (127 - (inputs[operand] & 3)) // within
    inputs[operand][1::2] = ~(127 // within)
    if g.bias:
        exact = _sums(recipe, inputs | {"bias": np.zeros(g.k)})
        inputs["bias"] = -np.rint(np.median(exact, axis=1) if exact.size else np.zeros(g.k)).astype(np.int32)
    return with_scale(recipe, inputs, _significands(recipe))
