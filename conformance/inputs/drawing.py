"""The recipe that determines a problem's inputs, and the integers and fractions of most distributions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from conformance.dtypes import FORMATS, STORAGE, WHOLE, sums_of
from conformance.inputs.stream import GENERATOR, Stream, term_bits
from conformance.operators import Arrays, Workload

EXACT_BITS = 53
FIXED_POINT_BITS = {"fp32": 19, "bf16": 8, "fp16": 11, "fp8_e4m3": 4, "fp8_e5m2": 3, "fp8_e5m2_e4m3": 3}
"""Largest number of bits of a fixed-point input. 19 is more than TF32's 11 and few enough for long exact sums."""
SUMMAND_BITS = {"fp32": 24, "bf16": 8, "fp16": 11, "fp64": 30}
"""Bits of an input that is added, not multiplied: all bits of the format, so that sums have to be rounded."""
FP64_DATA_BITS = 27
"""Bits of fp64 data: more than fp32 holds; the operand gets the rest of the 53 bits."""
LARGEST_INTEGER = 127
"""Largest integer input: it fits in the 8 bits of the narrowest input rounding, so no contract makes it inexact."""


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a problem's inputs. Layouts are not part of it: they permute the same tensors."""

    workload: Workload
    dtype: str
    distribution: str
    seed: int

    @cached_property
    def key(self) -> str:
        """Readable identity: fields joined by `|`, the same in every programming language."""
        fields = (self.workload.operator.name, self.workload.geometry.descriptor, self.dtype, self.distribution)
        return "|".join((GENERATOR, str(self.seed), *fields))

    @cached_property
    def terms(self) -> int:
        """Number of terms of the longest contraction among the outputs; at least 1."""
        return max(1, *self.workload.errors.terms.values())

    def stream(self, purpose: str) -> Stream:
        """Return the random numbers for one tensor or decision."""
        return Stream(f"{self.key}|{purpose}")


def fixed_point_bits(dtype: str, span: int, factors: int = 2) -> tuple[int, int]:
    """Return the bits of data and operand for which sums of `span` terms (of `factors` inputs) are exact in float64."""
    spare = EXACT_BITS - term_bits(span)
    if factors == 1:
        bits = min(SUMMAND_BITS[dtype], spare)
        return bits, bits
    if dtype == "fp64":
        return FP64_DATA_BITS, spare - FP64_DATA_BITS
    bits = min(FIXED_POINT_BITS[dtype], spare // 2)
    return bits, bits


def fixed(recipe: Recipe) -> Arrays:
    """Draw fixed-point fractions; wider parameters use all their bits, so that reading them as narrow ones shows."""
    operator, inputs = recipe.workload.operator, {}
    for name, tensor in recipe.workload.inputs.items():
        stored = tensor.stored_as(recipe.dtype)
        data_bits, operand_bits = fixed_point_bits(stored, recipe.workload.errors.span, operator.factors)
        bits = data_bits if name == operator.data else operand_bits
        drawn = recipe.stream(name).fixed_point(tensor.shape, bits, STORAGE[stored])
        inputs[name] = np.abs(drawn) if tensor.positive else drawn
    return inputs


def room(recipe: Recipe) -> int:
    """Return the largest integer up to which all integers are exact in the results' format and in an fp32
    accumulator."""
    # an fp32 accumulator holds the impulse results of integer dtypes
    results = "fp32" if recipe.dtype in WHOLE else sums_of(recipe.dtype)
    return 1 << min(FORMATS[results].precision, FORMATS["fp32"].precision)


def largest_integer(recipe: Recipe) -> int:
    """Return the largest dense integers whose products cannot sum beyond `room`; 0 if there are none."""
    most = room(recipe) // recipe.terms
    return min(math.isqrt(most) if recipe.workload.operator.factors == 2 else most, LARGEST_INTEGER, held(recipe))


def held(recipe: Recipe) -> int:
    """Return the largest integer up to which all integers are exact in the format of the inputs."""
    return np.iinfo(STORAGE[recipe.dtype]).max if recipe.dtype in WHOLE else 1 << FORMATS[recipe.dtype].precision


def integer(recipe: Recipe) -> Arrays:
    """Draw integers whose products cannot sum beyond `room`.

    Long contractions of narrow formats get sparse -1, 0, 1: a quarter of the room is the expected number of nonzero
    terms, and filling it is out of reach (24 standard deviations for bf16). Integer dtypes get all of their numbers.
    """
    if recipe.dtype in WHOLE:
        return _whole(recipe)
    factors = recipe.workload.operator.factors
    largest = largest_integer(recipe)
    density = min(1.0, (room(recipe) / 4 / recipe.terms) ** (1 / factors))
    inputs = {}
    for name, tensor in recipe.workload.inputs.items():
        stream, dtype = recipe.stream(name), STORAGE[tensor.stored_as(recipe.dtype)]
        if largest:
            inputs[name] = stream.integers(tensor.shape, largest, dtype)
        else:
            inputs[name] = stream.ternary(tensor.shape, density, dtype)
    return inputs


def _whole(recipe: Recipe) -> Arrays:
    """Draw every 8-bit number; a bias of 32 bits stays within half of its range."""
    inputs = {}
    for name, tensor in recipe.workload.inputs.items():
        stream, dtype = recipe.stream(name), STORAGE[tensor.stored_as(recipe.dtype)]
        inputs[name] = stream.integers(tensor.shape, 2**30, dtype) if tensor.sums else stream.codes(tensor.shape, dtype)
    return inputs
