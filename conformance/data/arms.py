"""The arms: five ways of drawing a problem's inputs, each blind to something that another one sees.

integer   small integers, exact in any order and in every format's accumulator: index, edge, flip and group bugs
fixed     fixed-point fractions that use all the bits the format has: precision bugs, by bound and statistics
impulse   one 1 an image, everything else 0: the exact index map
special   one NaN and one infinity: who reads what, and whether padding or masks leak
wide      channels scaled by powers of two to the ends of the format's range: overflow, subnormals
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.data.stream import GENERATOR, Stream, term_bits
from conformance.dtypes import FORMATS, STORAGE
from conformance.operators import Arrays, Operator

EXACT_BITS = 53
FIXED_POINT_BITS = {"fp32": 19, "bf16": 8, "fp16": 11}
"""Most bits of a fixed-point input. 19 is more than TF32's 11 and few enough for long exact sums."""
FP64_DATA_BITS = 27
"""fp64 data has more bits than fp32 holds; its operand gets what is left of the 53."""
LARGEST_INTEGER = 127
"""Every integer input fits in the 8 bits of the narrowest input rounding, so no contract makes it inexact."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines a problem's inputs. Layouts are not part of it: they permute the same tensors."""

    operator: Operator
    geometry: Any
    """What the operator takes: a `conformance.operators.Geometry`."""
    dtype: str
    arm: str
    seed: int

    @property
    def key(self) -> str:
        """Readable identity, the same in every language: fields joined by `|`."""
        fields = (self.operator.name, self.geometry.descriptor, self.dtype, self.arm)
        return "|".join((GENERATOR, str(self.seed), *fields))

    @property
    def terms(self) -> int:
        """Longest contraction among the outputs."""
        return max(self.operator.terms(self.geometry).values())

    def stream(self, purpose: str) -> Stream:
        """Random numbers for one tensor or decision."""
        return Stream(f"{self.key}|{purpose}")

    def draw(self) -> Arrays:
        """The inputs, in canonical order and storage dtype."""
        return ARMS[self.arm](self)


def fixed_point_bits(dtype: str, terms: int) -> tuple[int, int]:
    """Bits of the data and of the operand, so that every sum of `terms` products is exact in float64."""
    spare = EXACT_BITS - term_bits(terms)
    if dtype == "fp64":
        return FP64_DATA_BITS, spare - FP64_DATA_BITS
    bits = min(FIXED_POINT_BITS[dtype], spare // 2)
    return bits, bits


def _fixed(recipe: Recipe) -> Arrays:
    data, operand = fixed_point_bits(recipe.dtype, recipe.terms)
    bits = {recipe.operator.data: data}
    return {
        name: recipe.stream(name).fixed_point(tensor.shape, bits.get(name, operand), STORAGE[recipe.dtype])
        for name, tensor in recipe.operator.inputs(recipe.geometry).items()
    }


def _room(recipe: Recipe) -> int:
    """Integers up to here are exact in the storage format and in an fp32 accumulator."""
    return 1 << min(FORMATS[recipe.dtype].precision, FORMATS["fp32"].precision)


def _integer(recipe: Recipe) -> Arrays:
    """Integers whose products cannot sum beyond `_room`.

    Long contractions of narrow formats get sparse -1, 0, 1: a quarter of the room is the expected number of products
    other than zero, and filling it is out of reach (24 standard deviations for bf16).
    """
    room, dtype = _room(recipe), STORAGE[recipe.dtype]
    largest = min(math.isqrt(room // recipe.terms), LARGEST_INTEGER)
    density = min(1.0, math.sqrt(room / 4 / recipe.terms))
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
    images = data.reshape(len(data), -1)
    places = recipe.stream("impulse").below(images.shape[1], len(images))
    images[np.arange(len(images)), places] = 1
    return inputs | {recipe.operator.data: data}


def _special(recipe: Recipe) -> Arrays:
    """Sparse -1, 0, 1 with NaN in the first element of the data and +Inf in the last (last image, last channel).

    Every other input is -1 or 1: Inf * 0 would ask an implementation to tell a tap from an absent one.
    """
    dtype = STORAGE[recipe.dtype]
    density = {recipe.operator.data: min(1.0, _room(recipe) / 4 / recipe.terms)}
    inputs = {
        name: recipe.stream(name).ternary(tensor.shape, density.get(name, 1.0), dtype)
        for name, tensor in recipe.operator.inputs(recipe.geometry).items()
    }
    data = inputs[recipe.operator.data].reshape(-1)
    data[-1] = np.inf
    data[0] = np.nan
    return inputs


def _wide(recipe: Recipe) -> Arrays:
    """The fixed arm with the operand's free axis scaled by powers of two: top of the range, bottom, middle, in turn.

    The top leaves room for the whole contraction, so that no order of a correct sum overflows. fp64 has no such arm:
    its reference would leave float64's own range.
    """
    inputs = _fixed(recipe)
    format = FORMATS[recipe.dtype]
    _, bits = fixed_point_bits(recipe.dtype, recipe.terms)
    top = format.emax - term_bits(recipe.terms) - 1
    bottom = format.emin - format.precision + 1 + bits
    operand = inputs[recipe.operator.operand].astype(np.float64)
    axis = recipe.operator.free_axis
    exponents = np.resize([top, bottom, 0], operand.shape[axis]).reshape([-1] + [1] * (operand.ndim - 1 - axis))
    inputs[recipe.operator.operand] = np.ldexp(operand, exponents).astype(STORAGE[recipe.dtype])
    return inputs


ARMS: dict[str, Callable[[Recipe], Arrays]] = {
    "integer": _integer,
    "fixed": _fixed,
    "impulse": _impulse,
    "special": _special,
    "wide": _wide,
}
