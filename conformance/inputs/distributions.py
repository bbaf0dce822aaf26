"""The distributions: ways of drawing a problem's inputs; each one finds bugs that others cannot find.

integer   small integers, exact in any order and in every format's accumulator: index, edge, flip and group bugs
fixed     fixed-point fractions that use all the bits the format has: precision bugs, by bound and statistics
natural   numbers of a normal and of a heavy-tailed law, with every bit of the format at all magnitudes, half of each
          image darker: kernels that are correct only on numbers of few bits
impulse   one 1 an image, everything else 0: the exact index map
special   NaN and infinity: which results depend on an element, and whether padding, masks or groups leak
nonfinite NaN and infinities of both signs in every input, where IEEE 754 gives one result in any order of a sum
range     powers of two times small integers, from the smallest normal number to results that overflow, exact
subnormal powers of two times small integers, with subnormal inputs and results
wide      channels scaled by powers of two to the ends of the format's range: overflow, subnormals
scaled    channels scaled so that their variances lie above, at and below epsilon: where and how epsilon is added
shifted   large means with small variances, and constant channels: cancellation in the statistics
mixed     NaN and infinities scattered over the data, zeros in every input: their effect on sums and maxima
large     integers whose sums exceed 32-bit integers; in fp16, partial sums beyond its range, results within it
small     the smallest normal numbers in the data, in the other factor and in the results; nothing is subnormal
codes     every number of an 8-bit format; each result is one of them
absorbed  a large term, its negative at the other end of each sum, and small ones that a short accumulator loses
close     for maxima: numbers that differ in their last two bits
bent      fixed, scaled so that sums lie where activations bend: another activation, or an approximation of it
scales    8-bit results over their whole range and beyond, by scales that need all 24 bits of fp32
ties      8-bit results half way between two integers, by scales that are powers of two; sums are exact in fp32
cancelled int8: sums beyond 2^24, most of which the bias cancels
sparse    zeros except for integers at both ends, beside powers of two and at random places: tensors beyond 2^31
          elements, in memory whose pages are mostly never touched
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from conformance.dtypes import FORMATS, STORAGE, SUMS
from conformance.inputs.absorbed import absorbed
from conformance.inputs.bent import bent
from conformance.inputs.drawing import LARGEST_INTEGER, Recipe, fixed, fixed_point_bits, held, integer, room
from conformance.inputs.extreme_distributions import close, large, mixed, nonfinite, range_, small, subnormal
from conformance.inputs.natural import natural
from conformance.inputs.normalised import scaled, shifted, with_scales
from conformance.inputs.requantized import cancelled, scales, ties
from conformance.inputs.stream import term_bits
from conformance.operators import Arrays
from conformance.operators.sparse import beside_powers


def _impulse(recipe: Recipe) -> Arrays:
    """Draw data with a single 1 per image, at a random place, and integers for the other inputs; 8-bit filters contain
    every number of their format."""
    largest = max(1, min(room(recipe) // recipe.terms, LARGEST_INTEGER, held(recipe)))
    inputs = {}
    for name, tensor in recipe.workload.inputs.items():
        stream, dtype = recipe.stream(name), STORAGE[tensor.stored_as(recipe.dtype)]
        codes = recipe.dtype in SUMS and tensor.is_filter  # not in a gradient, whose results are sums over images
        inputs[name] = stream.codes(tensor.shape, dtype) if codes else stream.integers(tensor.shape, largest, dtype)
    name = recipe.workload.operator.data
    data = np.zeros_like(inputs[name])
    if not data.size:
        return inputs
    images = data.reshape(len(data), -1)
    places = recipe.stream("impulse").below(images.shape[1], len(images))
    images[np.arange(len(images)), places] = 1
    return inputs | {name: data}


def _codes(recipe: Recipe) -> Arrays:
    """Draw data with every number of the 8-bit format, and an operand with a single 1 per index of its free axis, so
    that a result is one of these numbers. In a rounded sum, the smallest numbers would be lost."""
    operator, inputs = recipe.workload.operator, {}
    for name, tensor in recipe.workload.inputs.items():
        stream, dtype = recipe.stream(name), STORAGE[tensor.stored_as(recipe.dtype)]
        inputs[name] = (
            stream.codes(tensor.shape, dtype) if dtype.itemsize == 1 else stream.integers(tensor.shape, 15, dtype)
        )
    operand = np.zeros_like(inputs[operator.operand])
    along = np.moveaxis(operand, operator.free_axis, 0)
    if not operand.size:
        return inputs
    for place, channel in zip(recipe.stream("one").below(math.prod(along.shape[1:]), len(along)), along, strict=True):
        channel[np.unravel_index(place, channel.shape)] = 1
    return inputs | {operator.operand: operand}


def _special(recipe: Recipe) -> Arrays:
    """Draw sparse -1, 0, 1 with the operator's special values in the data: NaN in the first element, and +Inf in the
    last one (last image, last channel) if the result is then unique.

    Every other input is -1 or 1: Inf * 0 would require implementations to distinguish a tap of zero from an absent one.
    If the operand is a gradient, a second NaN in it shows leaks between filters and groups.
    """
    workload, operator, inputs = recipe.workload, recipe.workload.operator, {}
    density = {operator.data: min(1.0, room(recipe) / 4 / recipe.terms)}
    for name, tensor in workload.inputs.items():
        dtype = STORAGE[tensor.stored_as(recipe.dtype)]
        drawn = recipe.stream(name).ternary(tensor.shape, density.get(name, 1.0), dtype)
        inputs[name] = np.abs(drawn) if tensor.positive else drawn
    if not inputs[operator.data].size:
        return inputs
    for name, place, value in operator.special(workload.geometry):
        inputs[name][place] = value
    return inputs


def _wide(recipe: Recipe) -> Arrays:
    """Draw as `fixed` does, and scale the operand's free axis in turn to the top, bottom and middle of the range.

    The top leaves room for the whole contraction, so that no order of a correct sum overflows. The distribution does
    not exist for fp64, whose reference would leave float64's own range.
    """
    inputs = fixed(recipe)
    format, span = FORMATS[recipe.dtype], recipe.workload.errors.span
    _, bits = fixed_point_bits(recipe.dtype, span, recipe.workload.operator.factors)
    top = format.emax - (0 if recipe.dtype in SUMS else term_bits(span) + 1)
    bottom = format.emin - format.precision + 1 + bits
    return with_scales(recipe, inputs, (top, bottom, 0))


SPARSE = 1 << 12
"""Number of elements above which a tensor is zero almost everywhere on the sparse distribution."""


def sparse_places(recipe: Recipe) -> dict[str, np.ndarray]:
    """Return by input the ascending flat positions, in canonical order, of nonzero elements on the sparse distribution.

    They lie beside powers of two in NCHW and in NHWC, both of the tensor itself and, through each tap, of the image on
    the other side of the window; further positions are drawn at random.
    """
    workload, places_of = recipe.workload, {}
    reached = workload.operator.reached(workload.geometry)
    for name, tensor in workload.inputs.items():
        if tensor.size <= SPARSE:
            places_of[name] = np.arange(tensor.size)
            continue
        drawn = np.array(recipe.stream(f"{name} places").below(tensor.size, 64))
        places = [beside_powers(tensor.shape), drawn, *([reached[name]] if name in reached else [])]
        places_of[name] = np.unique(np.concatenate(places))
    return places_of


def _sparse(recipe: Recipe) -> Arrays:
    """Draw odd integers up to 11 in size for the positions of `sparse_places`, positive ones for maxima."""
    places, inputs = sparse_places(recipe), {}
    for name, tensor in recipe.workload.inputs.items():
        dtype = STORAGE[tensor.stored_as(recipe.dtype)]
        values = recipe.stream(name).integers(places[name].shape, 5, np.dtype(np.float64)) * 2 + 1
        array = np.zeros(tensor.shape, dtype)
        array.reshape(-1)[places[name]] = np.abs(values) if recipe.workload.operator.sparse_is_positive else values
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
    "absorbed": absorbed,
    "scaled": scaled,
    "shifted": shifted,
    "close": close,
    "bent": bent,
    "scales": scales,
    "ties": ties,
    "cancelled": cancelled,
    "sparse": _sparse,
}
