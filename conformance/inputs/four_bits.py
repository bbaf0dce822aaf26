"""Weights of 4 bits with scales and zero points: every number and every zero point, and scales none of which is 1 or
that of the block beside it.

On natural data scales have all bits of their format, so that weights have to be rounded to it. On all other data they
have 4 bits less: a number, or a zero point, times a scale is exact in the format of the problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from conformance.dtypes import FORMATS, PACKED, STORAGE
from conformance.inputs.drawing import LARGEST_INTEGER, Recipe
from conformance.inputs.shared_scales import FIXED_BITS, NATURAL_POWERS, POWERS, differing
from conformance.inputs.stream import term_bits
from conformance.operators import Arrays
from conformance.operators.matmul.geometry import MatmulGeometry
from conformance.operators.matmul_int4.operators import MIDDLE, PRODUCT

NUMBER_BITS, LARGEST = 4, 15
HALVES = (-1, 1)
"""Exponents of scales where results are exact: few, since sums in bf16 have 8 bits."""
NONFINITE = ("special", "nonfinite")
SINGLE = ("integer", "impulse", *NONFINITE)
"""Distributions whose scales are powers of two."""


def with_four_bits(recipe: Recipe, draw: Callable[[Recipe], Arrays]) -> Arrays:
    """Draw activations and a bias by a distribution, as those of a plain product, and weights that suit it."""
    g, distribution = recipe.workload.geometry, recipe.distribution
    if distribution == "integer":
        drawn = _integers(recipe)
    elif distribution in NONFINITE:
        drawn = _signs(recipe)
    else:
        plain = PRODUCT.on(MatmulGeometry(g.n, g.c, g.k, bias=g.bias))
        drawn = draw(replace(recipe, workload=plain, distribution="fixed" if distribution == "wide" else distribution))
    if distribution == "impulse" and g.bias:
        drawn["bias"] = _bias(recipe, 1 << (FORMATS[recipe.dtype].precision - 3))
    zero = _codes(recipe, "zero_point") if g.has_zero_points else np.full(g.scale.shape, MIDDLE, np.uint8)
    numbers = _codes(recipe, "b")
    if distribution == "special":  # NaN meets no weight of zero
        zero = np.clip(zero, 1, LARGEST - 1)
        numbers = np.repeat(zero, g.block or g.c, axis=1)[:, : g.c] - 1 + 2 * (numbers & 1)
    inputs = {"a": drawn["a"], "b": numbers, "scale": _scales(recipe)}
    inputs |= {"zero_point": zero} if g.has_zero_points else {}
    inputs |= {"bias": drawn["bias"]} if g.bias else {}
    for name in ("b", "zero_point"):
        if name in inputs:
            inputs[name] = inputs[name].astype(STORAGE[PACKED])
    if distribution in NONFINITE:
        specials = getattr(recipe.workload.operator, distribution)
        for name, place, value in specials(g):
            if inputs[name].size:
                inputs[name][place] = value
    return inputs


def _codes(recipe: Recipe, name: str) -> np.ndarray:
    """Draw numbers from 0 to 15."""
    codes = recipe.stream(name).codes(recipe.workload.inputs[name].shape, np.dtype(np.uint8))
    few: np.ndarray = codes & LARGEST
    return few


def _scales(recipe: Recipe) -> np.ndarray:
    """Draw scales [N, blocks]."""
    g, distribution, format = recipe.workload.geometry, recipe.distribution, FORMATS[recipe.dtype]
    powers = NATURAL_POWERS if distribution == "natural" else HALVES if distribution in SINGLE else POWERS
    shape = g.scale.shape
    exponents = np.array(powers)[differing(recipe, "scale", shape, len(powers))]
    bits = format.precision if distribution == "natural" else min(FIXED_BITS, format.precision - NUMBER_BITS)
    if distribution == "wide":
        # the largest sum is below the end of the range, and the smallest scale has all of its bits
        top = format.emax - term_bits(recipe.terms) - NUMBER_BITS - max(POWERS) - 1
        bottom = format.emin - format.precision + 1 + bits - min(POWERS)
        exponents = exponents + np.resize((top, bottom, 0), shape[0])[:, None]
    significands = np.ones(shape)
    if distribution not in SINGLE:
        significands = np.abs(recipe.stream("scale").significands(shape, bits, np.dtype(np.float64)))
    scales: np.ndarray = np.ldexp(significands, exponents).astype(STORAGE[recipe.dtype])
    return scales


def _bias(recipe: Recipe, largest: int) -> np.ndarray:
    """Draw a bias of integers."""
    return recipe.stream("bias").integers((recipe.workload.geometry.k,), largest, STORAGE[recipe.dtype])


def _integers(recipe: Recipe) -> Arrays:
    """Draw integers whose sums every format holds, in every order; long sums, or those of narrow formats, have few
    terms that are not zero, each 1 or -1.

    In units of the smallest scale, 1/2, a weight is at most 4 * 15, and so are a number and a zero point times a scale.
    Three quarters of the room are for products and the last one is for the bias.
    """
    g, dtype = recipe.workload.geometry, STORAGE[recipe.dtype]
    room = 1 << FORMATS[recipe.dtype].precision
    most = room * 3 // 4 // (LARGEST << (HALVES[1] - HALVES[0]))
    stream, shape = recipe.stream("a"), (g.n, g.c)
    if most >= g.c:
        a = stream.integers(shape, min(most // g.c, LARGEST_INTEGER, 1 << FORMATS[recipe.dtype].precision), dtype)
    else:
        a, signs = np.zeros(shape, dtype), stream.ternary((g.n, most), 1.0, dtype)
        places = np.array(recipe.stream("places").below(g.c, g.n * most), np.int64).reshape(g.n, most)
        a[np.arange(g.n)[:, None], places] = signs
    return {"a": a, "bias": _bias(recipe, min(room // 8, 1 << 20))}


def _signs(recipe: Recipe) -> Arrays:
    """Draw few -1 and 1, as `nonfinite` has them, and a bias of these."""
    g, dtype = recipe.workload.geometry, STORAGE[recipe.dtype]
    a = recipe.stream("a").ternary((g.n, g.c), min(1.0, 4 / recipe.terms), dtype)
    return {"a": a, "bias": recipe.stream("bias").ternary((g.k,), 1.0, dtype)}
