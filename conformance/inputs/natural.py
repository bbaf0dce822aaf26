"""Natural numbers: every bit of the format, at all magnitudes inside a window of binades, in every tensor.

Fixed-point data make sums exact, but their small numbers have few bits: a kernel that is correct only on such numbers
passed, and so did one that stores an image in 24 bits with one scale. Here every number in the window has the whole
significand of its format. Numbers follow a normal or a heavy-tailed law (Student's t with two degrees of freedom);
channels and filters have their own scales, and half of every image is darker.

The window is as large as exact references allow without more slices (`conformance.operators.double_double`); in formats
of 16 and 8 bits it ends above the subnormal numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from statistics import NormalDist

import numpy as np

from conformance.dtypes import FORMATS, STORAGE, WHOLE, ends, middle
from conformance.inputs.drawing import Recipe
from conformance.inputs.requantized import with_scale
from conformance.inputs.stream import Law
from conformance.operators import Arrays, Tensor

HIGHEST = 2
"""Numbers lie below 2^HIGHEST: four standard deviations of the normal law."""
BINADES = {"fp64": 20, "fp32": 20, "bf16": 20, "fp16": 14, "fp8_e4m3": 7, "fp8_e5m2": 12}
"""Number of binades in the window. Half of an image may be a millionth of the rest; fp16 and fp8 numbers are normal."""
CELLS = 8
"""Intervals of a binade, in each of which a law is uniform; fewer if the format has fewer numbers in a binade."""
SPREAD = 16
"""Divisor of Student's t, with which 1 in 2,000 of its numbers would lie beyond the window."""
DEVIATION = 32
"""Standard deviation of 8-bit integers."""


def natural(recipe: Recipe) -> Arrays:
    """Draw every input in its own format; variances and scales are above zero."""
    inputs = {}
    for name, tensor in recipe.workload.inputs.items():
        if tensor.stored_as(recipe.dtype) in WHOLE:
            inputs[name] = _whole(recipe, name, tensor)
            continue
        drawn = _drawn(recipe, name, tensor)
        inputs[name] = np.abs(drawn) if tensor.positive else drawn
    if "scale" in inputs:
        return with_scale(recipe, inputs, np.frexp(inputs["scale"])[0])
    return inputs


def _drawn(recipe: Recipe, name: str, tensor: Tensor) -> np.ndarray:
    """Draw a tensor: a law for each channel or filter, times powers of two by channel or filter and by pixel."""
    stored = tensor.stored_as(recipe.dtype)
    lowest = HIGHEST - BINADES[stored]
    axis = 0 if tensor.is_filter or len(tensor.shape) == 1 else 1
    along = [-1 if place == axis else 1 for place in range(len(tensor.shape))]
    extent = tensor.shape[axis]
    laws = [recipe.stream(f"{name} {law.__name__}").numbers(tensor.shape, law_of(law, stored)) for law in LAWS]
    chosen = np.array(recipe.stream(f"{name} law").below(2, extent), bool).reshape(along)
    values = np.where(chosen, *laws)
    powers = np.zeros((1,) * len(tensor.shape), np.int64)
    if len(tensor.shape) > 1:
        steps = BINADES[stored] // 3
        powers = powers - np.array(recipe.stream(f"{name} channels").below(steps, extent), np.int64).reshape(along)
    if len(tensor.shape) > 1 and not tensor.is_filter:
        powers = powers - _darkness(recipe, name, tensor.shape, BINADES[stored])
    _, exponents = np.frexp(values)
    # a number that would leave the window keeps its significand at the window's end
    powers = np.maximum(powers, lowest + 1 - exponents)
    scaled: np.ndarray = np.ldexp(values, powers).astype(STORAGE[stored])
    return scaled


def _darkness(recipe: Recipe, name: str, shape: tuple[int, ...], binades: int) -> np.ndarray:
    """Draw exponents [N, 1, H, W] by which half of each image (every second one-pixel image) is darker."""
    images, pixels = shape[0], math.prod(shape[2:])
    depths = binades // 2 + np.array(recipe.stream(f"{name} depth").below(max(1, binades // 5), images), np.int64)
    halves = np.array(recipe.stream(f"{name} dark").below(2, images), np.int64)
    is_dark = 2 * np.arange(pixels) // pixels == halves[:, None]
    if pixels == 1:
        is_dark = np.arange(images)[:, None] % 2 == 1
    darkness: np.ndarray = np.where(is_dark, depths[:, None], 0).reshape(images, 1, *shape[2:])
    return darkness


def _whole(recipe: Recipe, name: str, tensor: Tensor) -> np.ndarray:
    """Draw integers of a normal law, like quantised weights and activations, and biases of their sums: around the
    middle of a format without a sign."""
    deviation = DEVIATION**2 * math.sqrt(recipe.terms) if tensor.sums else DEVIATION
    law = law_of(normal, "fp32")
    drawn = recipe.stream(f"{name} {normal.__name__}").numbers(tensor.shape, law)
    stored = tensor.stored_as(recipe.dtype)
    whole: np.ndarray = np.clip(np.rint(drawn * deviation) + middle(stored), *ends(stored))
    return whole.astype(STORAGE[stored])


def normal(size: float) -> float:
    """Return the probability of numbers smaller than `size` in magnitude under the standard normal law."""
    return 2 * NormalDist().cdf(size) - 1


def heavy(size: float) -> float:
    """Return this probability for Student's t with two degrees of freedom, divided by SPREAD, in closed form."""
    t = SPREAD * size
    return t / math.sqrt(2 + t * t)


LAWS: tuple[Callable[[float], float], ...] = (normal, heavy)


@cache
def law_of(probability: Callable[[float], float], format: str) -> Law:
    """Return the cells of a law inside the window of a format, the lowest first."""
    precision = FORMATS[format].precision
    cells = min(CELLS, 1 << (precision - 1))
    edges = [
        2.0**exponent * (1 + cell / cells)
        for exponent in range(HIGHEST - BINADES[format], HIGHEST)
        for cell in range(cells)
    ]
    tops = [*edges[1:], 2.0**HIGHEST]
    least, most = probability(edges[0]), probability(tops[-1])
    within = [(probability(top) - least) / (most - least) for top in tops]
    bits = precision - 1 - cells.bit_length() + 1
    return Law(
        np.array([min(round(share * 2**32), 2**32 - 1) for share in within], np.uint32),
        np.array(edges), np.array(tops) - np.array(edges), bits,
    )  # fmt: skip
