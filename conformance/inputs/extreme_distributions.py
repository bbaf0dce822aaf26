"""Distributions at the limits of a format: numbers that are not finite, overflow, are subnormal, or nearly equal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from conformance.dtypes import FORMATS, STORAGE, WHOLE, ends, name_of
from conformance.inputs.drawing import LARGEST_INTEGER, Recipe, fixed, integer, largest_integer, room
from conformance.inputs.normalised import ranged
from conformance.inputs.stream import term_bits
from conformance.operators import Arrays
from conformance.operators.spatial import per_channel

FP64_POWER = 400
"""Largest exponent of fp64 data that are judged by a bound, whose squares must not overflow fp64 either."""


def nonfinite(recipe: Recipe) -> Arrays:
    """Draw -1, 0, 1 with the values of `Operator.nonfinite`, which complement the values of `special`. For results that
    are not whole numbers, draw fractions: in batch normalisation a few integers may have a variance of zero."""
    workload, operator = recipe.workload, recipe.workload.operator
    if workload.errors.propagate is not None and not workload.errors.exact_on_integers:
        inputs = fixed(recipe)
    else:
        inputs, density = {}, {operator.data: min(1.0, room(recipe) / 4 / recipe.terms)}
        for name, tensor in workload.inputs.items():
            dtype = STORAGE[tensor.stored_as(recipe.dtype)]
            inputs[name] = recipe.stream(name).ternary(tensor.shape, density.get(name, 1.0), dtype)
    for name, place, value in operator.nonfinite(workload.geometry):
        if inputs[name].size:
            inputs[name][place] = value
    return inputs


def mixed(recipe: Recipe) -> Arrays:
    """Draw -1, 0, 1 with the values of `Operator.nonfinite`, further NaN and infinities in the data, and zeros that are
    multiplied by them.

    About one term in a sum is not finite. A plane has one NaN, since frameworks disagree which of two NaN in a window
    gets the gradient. Data of dw are left out: algorithms that put zeros between gradients multiply data by them. Where
    results are elements of the inputs, every zero is -0.0, the only correct zero then, and one plane is -inf.
    """
    workload, operator = recipe.workload, recipe.workload.operator
    inputs: Arrays = {}
    density = min(0.25, 1 / max(recipe.terms, math.prod(workload.geometry.window)))
    for name, tensor in workload.inputs.items():
        inputs[name] = recipe.stream(name).ternary(tensor.shape, 0.5, STORAGE[tensor.stored_as(recipe.dtype)])
    if workload.errors.selects:
        inputs[operator.data][inputs[operator.data] == 0] = -0.0
    scattered = [name for name in operator.scattered if inputs[name].size]
    for name in scattered:
        shape = inputs[name].shape
        signs = recipe.stream(f"{name} infinities").ternary(shape, density, np.dtype(np.float64))
        inputs[name][signs != 0] = math.inf
        inputs[name][signs < 0] = -math.inf
        planes = inputs[name].reshape(-1, math.prod(shape[2:]))[1::2]  # the first plane may have the NaN of `nonfinite`
        planes[np.arange(len(planes)), recipe.stream(f"{name} NaN").below(planes.shape[1], len(planes))] = np.nan
    if workload.errors.selects:  # a search that starts with the lowest finite number returns it
        data = inputs[operator.data]
        data.reshape(-1, math.prod(data.shape[2:]))[2:3] = -math.inf
    if operator.factors == 2:  # the last filter, or channel, is zero
        other = inputs[operator.operand if scattered else operator.data]
        if other.shape[operator.free_axis] > 1:
            np.moveaxis(other, operator.free_axis, 0)[-1] = 0
    for name, place, value in operator.nonfinite(workload.geometry):
        if inputs[name].size:
            inputs[name][place] = value
    return inputs


def large(recipe: Recipe) -> Arrays:
    """Draw integers times powers of two: sums beyond 2^31. fp16 does not reach that far: there, partial sums of one
    sign overflow, while the averages, or sums whose second half cancels most of the first, are within the range."""
    if recipe.dtype in WHOLE:
        return _near_the_ends(recipe)
    workload, operator, dtype = recipe.workload, recipe.workload.operator, STORAGE[recipe.dtype]
    inputs, factors = integer(recipe), operator.factors
    if recipe.dtype != "fp16":
        exponents = {name: 32 if factors == 1 or name == "bias" else 16 for name in inputs}
        return {name: values * dtype.type(2.0 ** exponents[name]) for name, values in inputs.items()}
    data, operand = inputs[operator.data], inputs[operator.operand]
    positive = np.abs(recipe.stream("positive").integers(data.shape, LARGEST_INTEGER, np.dtype(np.float64))) + 1
    if factors == 1:
        (ones,) = workload.reference({operator.data: np.ones(data.shape)}).values()
        return {operator.data: np.ldexp(positive + 127, math.floor(math.log2(255 / ones.max(initial=1)))).astype(dtype)}
    if (scale := 16 - term_bits(recipe.terms)) < 6:  # sums too long to be exact in fp32
        return inputs
    # products have 8 bits; every filter (or image, if images are summed over) has one of the opposite sign in its sum
    axis = 1 - operator.free_axis
    along = 1 if workload.inputs[operator.operand].is_filter else 0
    extent = len(data) if along == 0 else operand.shape[axis] // (workload.geometry.groups if axis == 0 else 1)
    half = extent // 2
    sign = np.repeat([1.0, -1.0, 0.0], [half, half, extent - 2 * half])
    first = np.arange(data.shape[along]) - half * (np.resize(sign, data.shape[along]) < 0)
    signs = np.resize(sign, operand.shape[axis]).reshape([-1 if other == axis else 1 for other in range(data.ndim)])
    rest = (recipe.stream("rest").ternary(operand.shape, 1.0, np.dtype(np.float64)) > 0) & (signs <= 0)
    return inputs | {
        operator.data: np.take(positive, first, along).astype(dtype),
        operator.operand: np.ldexp(signs + rest / 128, scale).astype(dtype),
    }


def _near_the_ends(recipe: Recipe) -> Arrays:
    """Draw inputs whose results are near the ends of 32 bits, of both signs, and never beyond.

    Nine in ten numbers of data and filters are -128, or 255 without a sign, the number furthest from zero; the others
    are drawn. Every second filter is negated, -128 to 127. The bias leaves just enough room for the sums.
    """
    operator, inputs, largest = recipe.workload.operator, integer(recipe), 1
    for name in (operator.data, operator.operand):
        most = max(ends(name_of(inputs[name].dtype)), key=abs)
        largest *= abs(most)
        drawn = np.array(recipe.stream(f"{name} others").below(10, inputs[name].size)).reshape(inputs[name].shape)
        inputs[name] = np.where(drawn == 0, inputs[name], most).astype(inputs[name].dtype)
    filters = np.moveaxis(inputs[operator.operand], operator.free_axis, 0)
    filters[1::2] = np.maximum(filters[1::2], -127) * -1
    if "bias" in inputs:
        room = 2**31 - 1 - recipe.terms * largest
        bias = room - np.abs(recipe.stream("room").integers(inputs["bias"].shape, 2**10, np.dtype(np.int32)))
        inputs["bias"] = np.where(np.arange(len(bias)) % 4 < 2, bias, -bias).astype(np.int32)
    return inputs


def small(recipe: Recipe) -> Arrays:
    """Draw the smallest normal numbers where `subnormal` draws subnormal numbers: kernels that flush the latter must
    keep the former."""
    lowest = FORMATS[recipe.dtype].emin
    return _powers(recipe, (lowest, 0), ((lowest, 0), (lowest + _highest(recipe), 0)), lowest, _highest(recipe))


def close(recipe: Recipe) -> Arrays:
    """Draw integers, and for x, of which a maximum is chosen, 1 and the two numbers above 1."""
    inputs, step = integer(recipe), 2.0 ** (1 - FORMATS[recipe.dtype].precision)
    steps = recipe.stream("steps").integers(inputs["x"].shape, 1, np.dtype(np.float64)) + 1
    return inputs | {"x": (1 + steps * step).astype(STORAGE[recipe.dtype])}


def _powers(
    recipe: Recipe, shifts: Sequence[int], units: Sequence[tuple[int, int]], lowest: int, highest: int
) -> Arrays:
    """Draw integers as in `integer`, times powers of two, so that all products of a result are multiples of one unit.

    `units` are exponents, each with the sign of its results (0: any), used in turn along the operand's free axis. Along
    the axis that is summed over, data are multiplied by 2^shifts in turn and the operand by the inverses; where that
    power would be less than 2^lowest or more than 2^highest, the operand is zero. Where inputs are not multiplied,
    channels of the data have the units. The first unit is drawn, so that a single channel does not always get the same.
    """
    workload, inputs = recipe.workload, integer(recipe)
    operator, geometry = workload.operator, workload.geometry
    turns = recipe.stream("turns").below(len(shifts) * len(units), 2)
    exponents, signs = np.roll(np.array(units), turns[0], axis=0).T
    # no shifts beside dbias, which would add up elements with different shifts
    shift = np.roll(shifts, turns[1]) if len(workload.outputs) == 1 else np.array(shifts[:1])
    data = inputs[operator.data].astype(np.float64)
    if operator.factors == 1:
        unit = per_channel(np.resize(exponents, data.shape[1]), geometry.rank)
        return inputs | {operator.data: np.ldexp(data, unit).astype(STORAGE[recipe.dtype])}

    tensor, channels = workload.inputs[operator.operand], 0
    filters, within = tensor.shape[:2]
    first, second = np.indices((filters, within))
    if tensor.is_filter:  # the second axis counts channels within a group
        second += first // (filters // geometry.groups) * within
        channels = 1
    free, summed = (first, second) if operator.free_axis == 0 else (second, first)
    summed = summed % max(1, data.shape[channels])  # data that all groups share have no channels of each
    image = (*first.shape, *(1,) * geometry.rank)
    power = (exponents[free % len(units)] - shift[summed % len(shift)]).reshape(image)
    operand = _signed(inputs[operator.operand], signs[free % len(units)].reshape(image))
    along = np.resize(shift, data.shape[channels]).reshape(-1, *[1] * (data.ndim - 1 - channels))
    scaled = {
        operator.data: np.ldexp(np.abs(data) if signs.any() else data, along),
        operator.operand: np.where(
            (power < lowest) | (power > highest), 0, np.ldexp(operand, np.minimum(power, highest))
        ),
    }
    unit, sign = np.resize(exponents, geometry.k), np.resize(signs, geometry.k)
    for name, turn in operator.addends(geometry).items():
        if name in inputs:  # in units of its sum, so that a kernel that begins with it is exact as well
            added = np.ldexp(_signed(inputs[name], turn * sign), np.minimum(unit, highest))
            scaled[name] = np.where(unit > highest, 0, added)
    return inputs | {name: array.astype(STORAGE[recipe.dtype]) for name, array in scaled.items()}


def _signed(values: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return values with the given signs; where a sign is 0, values keep their own."""
    wide = values.astype(np.float64)
    return np.where(signs == 0, wide, signs * np.abs(wide))


def range_(recipe: Recipe) -> Arrays:
    """Draw normal numbers over the whole range, in both factors, and sums of one sign, most of which overflow."""
    operator = recipe.workload.operator
    if recipe.workload.errors.propagate is not None:  # not plain sums: batch normalisation
        return ranged(recipe)
    format, (bits, terms), largest = FORMATS[recipe.dtype], _bits_and_terms(recipe), largest_integer(recipe)
    top, quarter = format.emax - 2 * bits - terms, (format.emax + 1) // 4
    if operator.factors == 1:
        most = top if recipe.dtype != "fp64" else FP64_POWER
        # if the divisors of all windows have more bits than the format has exponents, inputs would be infinite
        least = min(max(format.emin + term_bits(recipe.workload.errors.divisor), -most), format.emax - bits)
        return _powers(recipe, (0,), [(e, 0) for e in (most, least, quarter, -quarter)], 0, 0)
    units = [(top, 0), (format.emin, 0)]
    if largest:  # otherwise numbers are sparse, because sums are too long for one sign
        over = format.emax + 3 - max(1, recipe.terms * largest**2 // 4).bit_length()
        units = [(over - 2, 1), (format.emin, 0), (over, 1), (over, -1)]
    return _powers(recipe, (quarter, 0, -quarter), units, format.emin, _highest(recipe))


def subnormal(recipe: Recipe) -> Arrays:
    """Draw inputs with subnormal numbers in the data, in the other factor, and in the results."""
    format = FORMATS[recipe.dtype]
    lowest, highest = format.emin - format.precision + 1, _highest(recipe)
    if recipe.workload.operator.factors == 1:
        divided = term_bits(recipe.workload.errors.divisor)  # a division before or after the sum may need these bits
        return _powers(recipe, (0,), ((lowest + divided, 0), (0, 0)), 0, 0)
    return _powers(recipe, (lowest, 0), ((lowest, 0), (lowest + highest, 0)), lowest, highest)


def _highest(recipe: Recipe) -> int:
    """Return the largest exponent of two that integers, and their sums in dbias, can be multiplied by."""
    bits, terms = _bits_and_terms(recipe)
    summed = terms if len(recipe.workload.outputs) > 1 else 0
    return FORMATS[recipe.dtype].emax - bits - summed


def _bits_and_terms(recipe: Recipe) -> tuple[int, int]:
    """Return the bits of the integers that are drawn, and of the number of terms in a sum."""
    return max(1, largest_integer(recipe).bit_length()), term_bits(recipe.workload.errors.span)
