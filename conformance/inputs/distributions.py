"""The distributions: ways of drawing a problem's inputs, each blind to something that another one sees.

integer   small integers, exact in any order and in every format's accumulator: index, edge, flip and group bugs
fixed     fixed-point fractions that use all the bits the format has: precision bugs, by bound and statistics
bits      numbers of which the first and the last bit are ones: inputs that lose their last bits on the way
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
close     for maxima: numbers that differ in their last two bits
sparse    zeros but for integers at both ends, beside powers of two and here and there: tensors beyond 2^31 elements, in
          memory that nobody touches
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from conformance.dtypes import FORMATS, STORAGE
from conformance.inputs.stream import GENERATOR, Stream, term_bits
from conformance.operators import Arrays, Operator
from conformance.operators.sparse import elements_of, windows_of

EXACT_BITS = 53
FIXED_POINT_BITS = {"fp32": 19, "bf16": 8, "fp16": 11}
"""Most bits of a fixed-point input. 19 is more than TF32's 11 and few enough for long exact sums."""
SUMMAND_BITS = {"fp32": 24, "bf16": 8, "fp16": 11, "fp64": 30}
"""Bits of an input that is added, not multiplied: all that the format has, so that sums have to be rounded."""
FP64_DATA_BITS = 27
"""fp64 data has more bits than fp32 holds; its operand gets what is left of the 53."""
SCALES = (0, -4, -8, -12)
"""Exponents of filters on the scaled distribution: variances from about 1 to 1e-7."""
SHIFT_BITS = {"fp32": 12, "bf16": 7, "fp16": 10, "fp64": 20}
"""On the shifted distribution data are 1 and what lies 2^-bits beside it."""
FP64_POWER = 400
"""Largest exponent of fp64 data that are judged by a bound: the squares that it is made of are fp64, too."""
FUSED_POWER = 28
"""Exponent of filters before batch normalisation: 2^28 is beyond fp16, and its fourth power, of which bounds are made,
not beyond fp32. In gradients, where its powers meet, and in fp16 it is 8, there for the data as well, so that results
of the convolution leave the range."""
LARGEST_INTEGER = 127
"""Every integer input fits in the 8 bits of the narrowest input rounding, so no contract makes it inexact."""


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a problem's inputs. Layouts are not part of it: they permute the same tensors."""

    operator: Operator
    geometry: Any
    """What the operator takes: a `conformance.operators.Geometry`."""
    dtype: str
    distribution: str
    seed: int

    @cached_property
    def key(self) -> str:
        """Readable identity, the same in every language: fields joined by `|`."""
        fields = (self.operator.name, self.geometry.descriptor, self.dtype, self.distribution)
        return "|".join((GENERATOR, str(self.seed), *fields))

    @cached_property
    def terms(self) -> int:
        """Longest contraction among the outputs."""
        return max(1, *self.operator.errors(self.geometry).terms.values())

    def stream(self, purpose: str) -> Stream:
        """Random numbers for one tensor or decision."""
        return Stream(f"{self.key}|{purpose}")


def fixed_point_bits(dtype: str, span: int, factors: int = 2) -> tuple[int, int]:
    """Bits of the data and of the operand, so that sums of `span` terms of one or two factors are exact in float64."""
    spare = EXACT_BITS - term_bits(span)
    if factors == 1:
        bits = min(SUMMAND_BITS[dtype], spare)
        return bits, bits
    if dtype == "fp64":
        return FP64_DATA_BITS, spare - FP64_DATA_BITS
    bits = min(FIXED_POINT_BITS[dtype], spare // 2)
    return bits, bits


def _fixed(recipe: Recipe) -> Arrays:
    """Parameters that are wider than the other tensors use what they have, or a kernel could read them as narrow."""
    operator, inputs = recipe.operator, {}
    span = operator.errors(recipe.geometry).span
    for name, tensor in operator.inputs(recipe.geometry).items():
        stored = tensor.stored_as(recipe.dtype)
        data_bits, operand_bits = fixed_point_bits(stored, span, operator.factors)
        bits = data_bits if name == operator.data else operand_bits
        drawn = recipe.stream(name).fixed_point(tensor.shape, bits, STORAGE[stored])
        inputs[name] = np.abs(drawn) if tensor.positive else drawn
    return inputs


def _bits(recipe: Recipe) -> Arrays:
    inputs = {}
    for name, tensor in recipe.operator.inputs(recipe.geometry).items():
        stored = tensor.stored_as(recipe.dtype)
        drawn = recipe.stream(name).significands(tensor.shape, FORMATS[stored].precision, STORAGE[stored])
        inputs[name] = np.abs(drawn) if tensor.positive else drawn
    return inputs


def _room(recipe: Recipe) -> int:
    """Integers up to here are exact in the storage format and in an fp32 accumulator."""
    return 1 << min(FORMATS[recipe.dtype].precision, FORMATS["fp32"].precision)


def _largest_integer(recipe: Recipe) -> int:
    """Of dense integers whose products cannot sum beyond `_room`; 0 where there are none."""
    most = _room(recipe) // recipe.terms
    return min(math.isqrt(most) if recipe.operator.factors == 2 else most, LARGEST_INTEGER)


def _integer(recipe: Recipe) -> Arrays:
    """Integers whose products cannot sum beyond `_room`.

    Long contractions of narrow formats get sparse -1, 0, 1: a quarter of the room is the expected number of terms other
    than zero, and filling it is out of reach (24 standard deviations for bf16).
    """
    room, dtype, factors = _room(recipe), STORAGE[recipe.dtype], recipe.operator.factors
    largest = _largest_integer(recipe)
    density = min(1.0, (room / 4 / recipe.terms) ** (1 / factors))
    inputs = {}
    for name, tensor in recipe.operator.inputs(recipe.geometry).items():
        stream = recipe.stream(name)
        if largest:
            inputs[name] = stream.integers(tensor.shape, largest, dtype)
        else:
            inputs[name] = stream.ternary(tensor.shape, density, dtype)
    return inputs


def _impulse(recipe: Recipe) -> Arrays:
    """One 1 in every image of the data, each at a place of its own, and integers in the other inputs."""
    dtype = STORAGE[recipe.dtype]
    largest = max(1, min(_room(recipe) // recipe.terms, LARGEST_INTEGER))
    inputs = {
        name: recipe.stream(name).integers(tensor.shape, largest, dtype)
        for name, tensor in recipe.operator.inputs(recipe.geometry).items()
    }
    data = np.zeros_like(inputs[recipe.operator.data])
    if not data.size:
        return inputs
    images = data.reshape(len(data), -1)
    places = recipe.stream("impulse").below(images.shape[1], len(images))
    images[np.arange(len(images)), places] = 1
    return inputs | {recipe.operator.data: data}


def _special(recipe: Recipe) -> Arrays:
    """Sparse -1, 0, 1 with the operator's special values among the data: NaN in the first element, and +Inf in the last
    (last image, last channel) where it has one right result.

    Every other input is -1 or 1: Inf * 0 would ask an implementation to tell a tap from an absent one. A second NaN in
    the operand, where that is a gradient, shows what leaks between filters and groups.
    """
    operator, geometry, inputs = recipe.operator, recipe.geometry, {}
    density = {operator.data: min(1.0, _room(recipe) / 4 / recipe.terms)}
    for name, tensor in operator.inputs(geometry).items():
        dtype = STORAGE[tensor.stored_as(recipe.dtype)]
        drawn = recipe.stream(name).ternary(tensor.shape, density.get(name, 1.0), dtype)
        inputs[name] = np.abs(drawn) if tensor.positive else drawn
    if not inputs[operator.data].size:
        return inputs
    for place, value in operator.specials:
        inputs[operator.data][place] = value
    if (index := operator.nan_place(geometry)) is not None:
        inputs[operator.operand][index] = np.nan
    return inputs


def _are_sums(recipe: Recipe) -> bool:
    """Whether results are plain sums of inputs or of products: of all families but batch normalisation."""
    return recipe.operator.errors(recipe.geometry).propagate is None


def _nonfinite(recipe: Recipe) -> Arrays:
    """The rest of `special`: -1, 0, 1 with the operator's `nonfinite` values; fractions in batch normalisation, where
    few integers may have a variance of zero."""
    operator, geometry = recipe.operator, recipe.geometry
    if not _are_sums(recipe):
        inputs = _fixed(recipe)
    else:
        inputs, density = {}, {operator.data: min(1.0, _room(recipe) / 4 / recipe.terms)}
        for name, tensor in operator.inputs(geometry).items():
            inputs[name] = recipe.stream(name).ternary(tensor.shape, density.get(name, 1.0), STORAGE[recipe.dtype])
    for name, place, value in operator.nonfinite(geometry):
        if inputs[name].size:
            inputs[name][place] = value
    return inputs


def _mixed(recipe: Recipe) -> Arrays:
    """-1, 0 and 1 with the operator's `nonfinite` values, others scattered over its data, and zeros that meet them.

    About one term in a sum is not finite. A plane has one NaN: of two in a window, frameworks differ in which gets the
    gradient. Data of dw are left out: algorithms that put zeros between gradients multiply them with these. Where
    results are elements of the inputs, every zero is -0.0, which then is the only right one.
    """
    operator, geometry = recipe.operator, recipe.geometry
    inputs: Arrays = {}
    density = min(0.25, 1 / max(recipe.terms, geometry.r * geometry.s))
    for name, tensor in operator.inputs(geometry).items():
        inputs[name] = recipe.stream(name).ternary(tensor.shape, 0.5, STORAGE[recipe.dtype])
    if operator.errors(geometry).selects:
        inputs[operator.data][inputs[operator.data] == 0] = -0.0
    scattered = [name for name in operator.scattered if inputs[name].size]
    for name in scattered:
        shape = inputs[name].shape
        signs = recipe.stream(f"{name} infinities").ternary(shape, density, np.dtype(np.float64))
        inputs[name][signs != 0] = math.inf
        inputs[name][signs < 0] = -math.inf
        planes = inputs[name].reshape(-1, shape[2] * shape[3])[1::2]  # the first has one of `nonfinite`
        planes[np.arange(len(planes)), recipe.stream(f"{name} NaN").below(planes.shape[1], len(planes))] = np.nan
    if operator.factors == 2:  # a filter, or a channel, of zeros
        other = inputs[operator.operand if scattered else operator.data]
        if other.shape[operator.free_axis] > 1:
            np.moveaxis(other, operator.free_axis, 0)[-1] = 0
    for name, place, value in operator.nonfinite(geometry):
        if inputs[name].size:
            inputs[name][place] = value
    return inputs


def _large(recipe: Recipe) -> Arrays:
    """Integers times powers of two: sums beyond 2^31. fp16 has none; there, sums of one sign leave its range on the way
    to averages, and to sums whose second half takes away most of the first."""
    operator, geometry, dtype = recipe.operator, recipe.geometry, STORAGE[recipe.dtype]
    inputs, factors = _integer(recipe), operator.factors
    if recipe.dtype != "fp16":
        exponents = {name: 32 if factors == 1 or name == "bias" else 16 for name in inputs}
        return {name: values * dtype.type(2.0 ** exponents[name]) for name, values in inputs.items()}
    data, operand = inputs[operator.data], inputs[operator.operand]
    positive = np.abs(recipe.stream("positive").integers(data.shape, LARGEST_INTEGER, np.dtype(np.float64))) + 1
    if factors == 1:
        (ones,) = operator.reference(geometry, {operator.data: np.ones(data.shape)}).values()
        return {operator.data: np.ldexp(positive + 127, math.floor(math.log2(255 / ones.max(initial=1)))).astype(dtype)}
    if (scale := 16 - term_bits(recipe.terms)) < 6:  # sums too long to be exact in fp32
        return inputs
    # products are of 8 bits each; filters, or images where these are summed over, have another of the opposite sign
    axis = 1 - operator.free_axis
    along = 0 if operator.operand == "dy" else 1
    extent = len(data) if along == 0 else data.shape[1] // geometry.groups
    half = extent // 2
    sign = np.repeat([1.0, -1.0, 0.0], [half, half, extent - 2 * half])
    first = np.arange(data.shape[along]) - half * (np.resize(sign, data.shape[along]) < 0)
    signs = np.resize(sign, operand.shape[axis]).reshape([-1 if other == axis else 1 for other in range(4)])
    rest = (recipe.stream("rest").ternary(operand.shape, 1.0, np.dtype(np.float64)) > 0) & (signs <= 0)
    return inputs | {
        operator.data: np.take(positive, first, along).astype(dtype),
        operator.operand: np.ldexp(signs + rest / 128, scale).astype(dtype),
    }


def _small(recipe: Recipe) -> Arrays:
    """As `_subnormal`, with the smallest normal numbers: what flushes subnormal ones must keep them."""
    lowest = FORMATS[recipe.dtype].emin
    return _powers(recipe, (lowest, 0), ((lowest, 0), (lowest + _highest(recipe), 0)), lowest, _highest(recipe))


def _close(recipe: Recipe) -> Arrays:
    """Integers, and for the choice of a maximum 1 and the two numbers above it."""
    inputs, step = _integer(recipe), 2.0 ** (1 - FORMATS[recipe.dtype].precision)
    steps = recipe.stream("steps").integers(inputs["x"].shape, 1, np.dtype(np.float64)) + 1
    return inputs | {"x": (1 + steps * step).astype(STORAGE[recipe.dtype])}


def _powers(
    recipe: Recipe, shifts: Sequence[int], units: Sequence[tuple[int, int]], lowest: int, highest: int
) -> Arrays:
    """Integers as in `_integer` times powers of two, so that all products of a result are multiples of one unit.

    `units` are exponents, each with the sign that its results have (0: any), in turn along the operand's free axis.
    Along the axis that is summed over, data are multiplied by 2^shifts in turn and the operand by the inverses; where
    that would be less than 2^lowest or more than 2^highest, the operand is zero. Where nothing is multiplied, channels
    of the data have the units. Which comes first is drawn: a single channel does not always get the same.
    """
    operator, geometry, inputs = recipe.operator, recipe.geometry, _integer(recipe)
    turns = recipe.stream("turns").below(len(shifts) * len(units), 2)
    exponents, signs = np.roll(np.array(units), turns[0], axis=0).T
    # dbias adds up what has different shifts
    shift = np.roll(shifts, turns[1]) if len(operator.outputs(geometry)) == 1 else np.array(shifts[:1])
    tensors = operator.inputs(geometry)
    data = inputs[operator.data].astype(np.float64)
    if operator.factors == 1:
        unit = np.resize(exponents, data.shape[1])[:, None, None]
        return inputs | {operator.data: np.ldexp(data, unit).astype(STORAGE[recipe.dtype])}

    first, second = np.indices(tensors[operator.operand].shape[:2])
    channels = 0
    if tensors[operator.operand].axes == "KCRS":  # the second axis counts channels within a group
        second += first // (geometry.k // geometry.groups) * (geometry.c // geometry.groups)
        channels = 1
    free, summed = (first, second) if operator.free_axis == 0 else (second, first)
    power = (exponents[free % len(units)] - shift[summed % len(shift)])[..., None, None]
    operand = _signed(inputs[operator.operand], signs[free % len(units)][..., None, None])
    along = np.resize(shift, data.shape[channels]).reshape(-1, *[1] * (3 - channels))
    scaled = {
        operator.data: np.ldexp(np.abs(data) if signs.any() else data, along),
        operator.operand: np.where(
            (power < lowest) | (power > highest), 0, np.ldexp(operand, np.minimum(power, highest))
        ),
    }
    if "bias" in inputs:
        unit, sign = np.resize(exponents, geometry.k), np.resize(signs, geometry.k)
        bias = np.ldexp(_signed(inputs["bias"], sign), np.minimum(unit, highest))
        scaled["bias"] = np.where(unit > highest, 0, bias)
    return inputs | {name: array.astype(STORAGE[recipe.dtype]) for name, array in scaled.items()}


def _signed(values: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """With the signs given, or their own where that is 0."""
    wide = values.astype(np.float64)
    return np.where(signs == 0, wide, signs * np.abs(wide))


def _range(recipe: Recipe) -> Arrays:
    """Normal numbers over the whole range, in both factors, and sums of one sign of which most overflow."""
    operator, geometry = recipe.operator, recipe.geometry
    if not _are_sums(recipe):
        narrow = recipe.dtype == "fp16"
        inputs = operator.ranged(geometry, _fixed(recipe), 8 if narrow or "dy" in operator.arguments else FUSED_POWER)
        return inputs | ({"x": inputs["x"] * np.float16(2**8)} if narrow else {})
    format, (bits, terms), largest = FORMATS[recipe.dtype], _bits_and_terms(recipe), _largest_integer(recipe)
    top, quarter = format.emax - 2 * bits - terms, (format.emax + 1) // 4
    if operator.factors == 1:
        most = top if recipe.dtype != "fp64" else FP64_POWER
        least = max(format.emin + _spare(recipe), -most)
        return _powers(recipe, (0,), [(e, 0) for e in (most, least, quarter, -quarter)], 0, 0)
    units = [(top, 0), (format.emin, 0)]
    if largest:  # sparse numbers stand for sums too long for one sign
        over = format.emax + 3 - max(1, recipe.terms * largest**2 // 4).bit_length()
        units = [(over - 2, 1), (format.emin, 0), (over, 1), (over, -1)]
    return _powers(recipe, (quarter, 0, -quarter), units, format.emin, _highest(recipe))


def _subnormal(recipe: Recipe) -> Arrays:
    """Subnormal numbers in the data, in the other factor, and in the results."""
    format = FORMATS[recipe.dtype]
    lowest, highest = format.emin - format.precision + 1, _highest(recipe)
    if recipe.operator.factors == 1:
        return _powers(recipe, (0,), ((lowest + _spare(recipe), 0), (0, 0)), 0, 0)
    return _powers(recipe, (lowest, 0), ((lowest, 0), (lowest + highest, 0)), lowest, highest)


def _highest(recipe: Recipe) -> int:
    """The largest power of two that integers can be multiplied with, and in gradients of a bias their sums."""
    bits, terms = _bits_and_terms(recipe)
    summed = terms if len(recipe.operator.outputs(recipe.geometry)) > 1 else 0
    return FORMATS[recipe.dtype].emax - bits - summed


def _spare(recipe: Recipe) -> int:
    """Bits that a division, before a sum or after it, may take."""
    return term_bits(recipe.operator.errors(recipe.geometry).divisor)


def _bits_and_terms(recipe: Recipe) -> tuple[int, int]:
    """Bits of the integers that are drawn, and of how many are added."""
    return max(1, _largest_integer(recipe).bit_length()), term_bits(recipe.operator.errors(recipe.geometry).span)


def _wide(recipe: Recipe) -> Arrays:
    """The fixed distribution with the operand's free axis scaled by powers of two: top of the range, bottom, middle,
    in turn.

    The top leaves room for the whole contraction, so that no order of a correct sum overflows. fp64 has no such
    distribution: its reference would leave float64's own range.
    """
    inputs = _fixed(recipe)
    format, span = FORMATS[recipe.dtype], recipe.operator.errors(recipe.geometry).span
    _, bits = fixed_point_bits(recipe.dtype, span, recipe.operator.factors)
    top = format.emax - term_bits(span) - 1
    bottom = format.emin - format.precision + 1 + bits
    return _with_scales(recipe, inputs, (top, bottom, 0))


def _with_scales(recipe: Recipe, inputs: Arrays, exponents: Sequence[int]) -> Arrays:
    """The operand's free axis multiplied by these powers of two in turn."""
    operand = inputs[recipe.operator.operand].astype(np.float64)
    axis = recipe.operator.free_axis
    shape = [-1] + [1] * (operand.ndim - 1 - axis)
    scaled = np.ldexp(operand, np.resize(exponents, operand.shape[axis]).reshape(shape))
    return inputs | {recipe.operator.operand: scaled.astype(STORAGE[recipe.dtype])}


def _scaled(recipe: Recipe) -> Arrays:
    return _with_scales(recipe, _fixed(recipe), SCALES)


def _shifted(recipe: Recipe) -> Arrays:
    """Images close to 1, so that means are large and variances small; what else it takes, the operator knows."""
    steps = recipe.stream("shift").ternary(recipe.geometry.x.shape, 1.0, np.dtype(np.float64))
    return recipe.operator.shifted(recipe.geometry, _fixed(recipe), steps * 2.0 ** -SHIFT_BITS[recipe.dtype])


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
            read = tensor == geometry.x
            other, links = (geometry.y, elements_of) if read else (geometry.x, windows_of)
            n, c, *pixel = np.unravel_index(_beside_powers(other.shape), other.shape)
            for _, _, rows, columns, exists in links(geometry, *pixel):
                index = (n, c % tensor.shape[1], rows, columns)
                places.append(np.ravel_multi_index(index, tensor.shape, "clip")[exists])
        found[name] = np.unique(np.concatenate(places))
    return found


def _beside_powers(shape: tuple[int, ...]) -> np.ndarray:
    """Flat positions [N, C, H, W] at both ends and beside powers of two, counted in NCHW and in NHWC."""
    size = math.prod(shape)
    powers = [(1 << bits) + step for bits in range(8, size.bit_length() + 1) for step in (-1, 0, 1)]
    linear = np.array([place for place in (0, 1, 2, size - 3, size - 2, size - 1, *powers) if 0 <= place < size])
    n, h, w, c = np.unravel_index(linear, tuple(shape[axis] for axis in (0, 2, 3, 1)))
    return np.union1d(linear, np.ravel_multi_index((n, c, h, w), shape))


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
    "integer": _integer,
    "fixed": _fixed,
    "bits": _bits,
    "impulse": _impulse,
    "special": _special,
    "nonfinite": _nonfinite,
    "range": _range,
    "subnormal": _subnormal,
    "wide": _wide,
    "mixed": _mixed,
    "large": _large,
    "small": _small,
    "scaled": _scaled,
    "shifted": _shifted,
    "close": _close,
    "sparse": _sparse,
}
