"""The distributions: ways of drawing a problem's inputs, each blind to something that another one sees.

integer   small integers, exact in any order and in every format's accumulator: index, edge, flip and group bugs
fixed     fixed-point fractions that use all the bits the format has: precision bugs, by bound and statistics
natural   numbers as they are, of a normal and of a heavy-tailed law: every bit of the format at all magnitudes, half
          of each image darker: what is right on numbers of few bits alone
impulse   one 1 an image, everything else 0: the exact index map
special   NaN and infinity: who reads what, and whether padding, masks or groups leak
nonfinite NaN and infinities of both signs in every input, where IEEE 754 gives one result in any order of a sum
range     powers of two times small integers, from the smallest normal number to results that overflow, exact
subnormal the same with subnormal inputs and results
wide      channels scaled by powers of two to the ends of the format's range: overflow, subnormals
scaled    channels scaled so that their variances lie above, at and below epsilon: where and how it is added
shifted   large means with small variances, and constant channels: cancellation in the statistics
mixed     NaN and infinities scattered over the data, zeros in every input: what sums and maxima make of them
large     integers whose sums no 32-bit integer holds; in fp16, partial sums beyond its range and results within
small     the smallest normal numbers in the data, in the other factor and in the results; nothing is subnormal
codes     every number that a format of 8 bits has, one to a result
close     for maxima: numbers that differ in their last two bits
scales    results of 8 bits over their whole range and beyond, by scales that need all 24 bits of fp32
ties      the same with scales that are powers of two: results half way between two, sums exact in fp32
cancelled int8: sums beyond 2^24 of which the bias takes away most
sparse    zeros but for integers at both ends, beside powers of two and here and there: tensors beyond 2^31 elements, in
          memory that nobody touches
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from conformance.dtypes import FORMATS, STORAGE, SUMS
from conformance.inputs.drawing import LARGEST_INTEGER, Recipe, fixed, fixed_point_bits, held, integer, room
from conformance.inputs.extreme_distributions import close, large, mixed, nonfinite, range_, small, subnormal
from conformance.inputs.natural import natural
from conformance.inputs.normalised import scaled, shifted, with_scales
from conformance.inputs.requantized import cancelled, scales, ties
from conformance.inputs.special_values import nan_place, specials
from conformance.inputs.stream import term_bits
from conformance.operators import Arrays
from conformance.operators.sparse import elements_of, windows_of


def _impulse(recipe: Recipe) -> Arrays:
    """One 1 in every image of the data, each at a place of its own, and integers in the other inputs; in
    filters of 8 bits, every number."""
    largest = max(1, min(room(recipe) // recipe.terms, LARGEST_INTEGER, held(recipe)))
    inputs = {}
    for name, tensor in recipe.operator.inputs(recipe.geometry).items():
        stream, dtype = recipe.stream(name), STORAGE[tensor.stored_as(recipe.dtype)]
        codes = recipe.dtype in SUMS and tensor.is_filter  # of a gradient there are sums over images
        inputs[name] = stream.codes(tensor.shape, dtype) if codes else stream.integers(tensor.shape, largest, dtype)
    data = np.zeros_like(inputs[recipe.operator.data])
    if not data.size:
        return inputs
    images = data.reshape(len(data), -1)
    places = recipe.stream("impulse").below(images.shape[1], len(images))
    images[np.arange(len(images)), places] = 1
    return inputs | {recipe.operator.data: data}


def _codes(recipe: Recipe) -> Arrays:
    """Data of every number that 8 bits have, of which a result is one: along the axis that is not summed over, the
    operand has a single 1. In a sum that is rounded, the smallest numbers would be lost."""
    operator, inputs = recipe.operator, {}
    for name, tensor in operator.inputs(recipe.geometry).items():
        stream, dtype = recipe.stream(name), STORAGE[tensor.stored_as(recipe.dtype)]
        inputs[name] = stream.integers(tensor.shape, 15, dtype) if tensor.sums else stream.codes(tensor.shape, dtype)
    operand = np.zeros_like(inputs[operator.operand])
    along = np.moveaxis(operand, operator.free_axis, 0)
    if not operand.size:
        return inputs
    for place, channel in zip(recipe.stream("one").below(math.prod(along.shape[1:]), len(along)), along, strict=True):
        channel[np.unravel_index(place, channel.shape)] = 1
    return inputs | {operator.operand: operand}


def _special(recipe: Recipe) -> Arrays:
    """Sparse -1, 0, 1 with the operator's special values among the data: NaN in the first element, and +Inf in the last
    (last image, last channel) where it has one right result.

    Every other input is -1 or 1: Inf * 0 would ask an implementation to tell a tap from an absent one. A second NaN in
    the operand, where that is a gradient, shows what leaks between filters and groups.
    """
    operator, geometry, inputs = recipe.operator, recipe.geometry, {}
    density = {operator.data: min(1.0, room(recipe) / 4 / recipe.terms)}
    for name, tensor in operator.inputs(geometry).items():
        dtype = STORAGE[tensor.stored_as(recipe.dtype)]
        drawn = recipe.stream(name).ternary(tensor.shape, density.get(name, 1.0), dtype)
        inputs[name] = np.abs(drawn) if tensor.positive else drawn
    if not inputs[operator.data].size:
        return inputs
    for place, value in specials(operator, geometry):
        inputs[operator.data][place] = value
    if (index := nan_place(operator, geometry)) is not None:
        inputs[operator.operand][index] = np.nan
    return inputs


def _wide(recipe: Recipe) -> Arrays:
    """The fixed distribution with the operand's free axis scaled by powers of two: top of the range, bottom, middle,
    in turn.

    The top leaves room for the whole contraction, so that no order of a correct sum overflows. fp64 has no such
    distribution: its reference would leave float64's own range.
    """
    inputs = fixed(recipe)
    format, span = FORMATS[recipe.dtype], recipe.operator.errors(recipe.geometry).span
    _, bits = fixed_point_bits(recipe.dtype, span, recipe.operator.factors)
    top = format.emax - (0 if recipe.dtype in SUMS else term_bits(span) + 1)
    bottom = format.emin - format.precision + 1 + bits
    return with_scales(recipe, inputs, (top, bottom, 0))


SPARSE = 1 << 12
"""Elements beyond which a tensor is zero almost everywhere on the sparse distribution."""


def sparse_places(recipe: Recipe) -> dict[str, np.ndarray]:
    """By input: ascending flat positions, canonical order, of what is not zero on the sparse distribution.

    They lie beside powers of two in NCHW and in NHWC, of the tensor and, through each tap, of the image on the window's
    other side; the others are drawn.
    """
    operator, geometry = recipe.operator, recipe.geometry
    found = {}
    for name, tensor in operator.inputs(geometry).items():
        if tensor.size <= SPARSE:
            found[name] = np.arange(tensor.size)
            continue
        drawn = np.array(recipe.stream(f"{name} places").below(tensor.size, 64))
        places = [_beside_powers(tensor.shape), drawn]
        if name == operator.data:
            read, mirror = tensor == geometry.x, getattr(geometry, "mirror", None)
            ways = (windows_of, elements_of) if mirror else (elements_of, windows_of)
            other, links = (geometry.y, ways[0]) if read else (geometry.x, ways[1])
            n, c, *pixel = np.unravel_index(_beside_powers(other.shape), other.shape)
            for _, place, exists in links(mirror or geometry, pixel):
                index = (n, c % tensor.shape[1], *place)
                places.append(np.ravel_multi_index(index, tensor.shape, "clip")[exists])
        found[name] = np.unique(np.concatenate(places))
    return found


def _beside_powers(shape: tuple[int, ...]) -> np.ndarray:
    """Flat positions [N, C, H, W] at both ends and beside powers of two, counted in NCHW and in NHWC."""
    size = math.prod(shape)
    powers = [(1 << bits) + step for bits in range(8, size.bit_length() + 1) for step in (-1, 0, 1)]
    linear = np.array([place for place in (0, 1, 2, size - 3, size - 2, size - 1, *powers) if 0 <= place < size])
    n, *pixel, c = np.unravel_index(linear, (shape[0], *shape[2:], shape[1]))
    return np.union1d(linear, np.ravel_multi_index((n, c, *pixel), shape))


def _sparse(recipe: Recipe) -> Arrays:
    """Odd integers up to 11, of which max pooling gets no negative ones."""
    places, inputs = sparse_places(recipe), {}
    for name, tensor in recipe.operator.inputs(recipe.geometry).items():
        dtype = STORAGE[tensor.stored_as(recipe.dtype)]
        values = recipe.stream(name).integers(places[name].shape, 5, np.dtype(np.float64)) * 2 + 1
        array = np.zeros(tensor.shape, dtype)
        array.reshape(-1)[places[name]] = np.abs(values) if recipe.operator.family == "max_pool" else values
        inputs[name] = array
    return inputs


DISTRIBUTIONS: dict[str, Callable[[Recipe], Arrays]] = {
    "integer": integer,
    "fixed": fixed,
    "natural": natural,
    "impulse": _impulse,
    "special": _special,
    "nonfinite": nonfinite,
    "range": range_,
    "subnormal": subnormal,
    "wide": _wide,
    "mixed": mixed,
    "large": large,
    "small": small,
    "codes": _codes,
    "scaled": scaled,
    "shifted": shifted,
    "close": close,
    "scales": scales,
    "ties": ties,
    "cancelled": cancelled,
    "sparse": _sparse,
}
