"""Mistakes of requantized convolution: zero points, scales, rounding, overflow of 8 bits, and the mistakes of a plain
convolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.operators.base import Arrays, Operator
from conformance.operators.conv.mistakes import CONVOLVING
from conformance.operators.conv_requantized.geometry import RequantizedGeometry as Geometry
from conformance.operators.conv_requantized.steps import Steps, Sums, around
from conformance.operators.mistakes import Compute, InapplicableError, Mistake, misread
from conformance.operators.requantized_geometry import HIGHEST, LOWEST
from conformance.operators.requantized_mistakes import (
    FP8,
    OF_FP8,
    OF_SUMS,
    OF_WHOLE,
    SIGNED,
    UNSIGNED,
    WHOLE_NUMBERS,
    as_signed,
    biases,
    formats_of,
    moved,
    negated,
    scales,
    with_steps,
)
from conformance.operators.requantized_steps import Store, pairs_saturated, wrapped
from conformance.operators.spatial import as_image, windows

Image = Callable[[Geometry, np.ndarray], np.ndarray]
_made = partial(with_steps, Steps)


_EXCHANGED: dict[str, Compute] = {
    "zero point of x not taken off": misread(lambda g: replace(g, x_zero_point=0)),
    "zero point of x added": misread(lambda g: replace(g, x_zero_point=negated(g.x_zero_point))),
    "zero point of y left out": misread(lambda g: replace(g, y_zero_point=0)),
    "zero point of y taken off": misread(lambda g: replace(g, y_zero_point=negated(g.y_zero_point))),
    "zero points of x and y exchanged": misread(
        lambda g: replace(g, x_zero_point=g.y_zero_point, y_zero_point=g.x_zero_point)
    ),
}


def _in_padding(side: int, axes: Sequence[int] = ()) -> Image:
    """Return the mistake that also subtracts the zero point from padding before (0) or after (1) the image, along
    `axes` or all axes."""

    def image(g: Geometry, x: np.ndarray) -> np.ndarray:
        found = around(g, x - g.x_zero_point)
        for axis in axes or range(-g.rank, 0):
            size, (before, after) = g.size[axis], g.padding[axis]
            beyond = [slice(None)] * found.ndim
            beyond[axis] = slice(0, before) if side == 0 else slice(before + size, before + size + after)
            found[tuple(beyond)] = -g.x_zero_point
        return found

    return image


_IMAGES: dict[str, Image] = {
    "zero point of x taken off of padding before the image": _in_padding(0),
    "zero point of x taken off of padding after the image": _in_padding(1),
    "zero point of x taken off of padding before the rows": _in_padding(0, (-1,)),
    "zero point of x taken off of padding after the rows": _in_padding(1, (-1,)),
    "zero point of x taken off of padding": lambda g, x: around(g, x) - g.x_zero_point,
    "zero point of x not taken off, padding holds it": lambda g, x: around(g, x, g.x_zero_point),
    "padding holds the zero point after it is taken off": lambda g, x: around(g, x - g.x_zero_point, g.x_zero_point),
    "zero point of x taken off twice": lambda g, x: around(g, x - 2 * g.x_zero_point),
    "zero point of y taken off of x": lambda g, x: around(g, x - g.y_zero_point),
    "x read as unsigned": lambda g, x: around(g, x % 256 - g.x_zero_point),
    "x less its zero point wraps around at 8 bits": lambda g, x: around(g, wrapped(x - g.x_zero_point)),
    "x less its zero point saturates at 8 bits": lambda g, x: around(g, np.clip(x - g.x_zero_point, LOWEST, HIGHEST)),
}
_OF_UNSIGNED: dict[str, Image] = {
    "x read as signed": lambda g, x: around(g, as_signed(x) - g.x_zero_point),
    "x and its zero point read as signed": lambda g, x: around(g, as_signed(x) - as_signed(g.x_zero_point)),
    "zero point of x read as signed": lambda g, x: around(g, x - as_signed(g.x_zero_point)),
    "128 taken off of x instead of its zero point": lambda g, x: around(g, x - 128),
    "128 taken off of x beside its zero point": lambda g, x: around(g, x - 128 - g.x_zero_point),
    "padding holds 128": lambda g, x: around(g, x, 128) - g.x_zero_point,
    "x saturates at 127": lambda g, x: around(g, np.minimum(x, HIGHEST) - g.x_zero_point),
    "x less its zero point saturates at 0": lambda g, x: around(g, np.maximum(x - g.x_zero_point, 0)),
}


_WHOLE: dict[str, Store] = OF_WHOLE | {"zero point of x added to y": moved(lambda g: g.x_zero_point)}
_SUMS: dict[str, dict[str, Any]] = {"filters read as unsigned": {"filters": lambda w: w % 256}} | OF_SUMS


def _as_it_is(sums: Sums) -> Compute:
    """Return the mistake of a kernel that sums x as it is, with zero points as padding, and takes the zero point times
    the sum of each filter off."""

    def compute(operator: Operator, g: Geometry, inputs: Arrays, dtype: Any) -> Arrays:
        of_filter = inputs["w"].astype(np.float64).reshape(g.k, -1).sum(axis=1).reshape(-1, *(1,) * g.rank)
        kernel = _made(
            UNSIGNED,
            image=lambda g, x: around(g, x, g.x_zero_point),
            sums=lambda inner, image, w: sums(inner, image, w) - g.x_zero_point * of_filter,
        )
        return kernel(operator, g, inputs, dtype)

    return compute


def _corrected_by_first_group(operator: Operator, g: Geometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Correct sums of an uncentred x with zero point * sum(w), but use the first group's filters for every group."""
    if g.groups == 1 or not g.x_zero_point:
        raise InapplicableError
    own = inputs["w"].astype(np.float64).reshape(g.k, -1).sum(1)
    left = g.x_zero_point * (own - own[np.arange(g.k) % (g.k // g.groups)]).reshape(-1, *(1,) * g.rank)
    return _made(WHOLE_NUMBERS, scaled=lambda g, sums, scale: (sums + left) * scale)(operator, g, inputs, dtype)


MOST_PRODUCTS = 1 << 22
"""Most elements of a matrix of windows whose products are added pair by pair, which takes a moment."""


def _in_pairs(of_channels: bool) -> Sums:
    """Return the sums in which two products saturate at 16 bits: of two channels, or of two places of the window."""

    def sums(inner: Any, image: np.ndarray, w: np.ndarray) -> np.ndarray:
        g, rank = inner, inner.rank
        if g.y.size // g.k * g.c * math.prod(g.window) > MOST_PRODUCTS:
            raise InapplicableError
        view = windows(np.ascontiguousarray(image), g.window, g.stride, g.dilation, g.output_size)
        by_group = view.reshape(g.n, g.groups, g.c // g.groups, *view.shape[2:])
        by_group = by_group.transpose(1, 2, *range(3, 3 + rank), 0, *range(3 + rank, 3 + 2 * rank))
        filters = w.reshape(g.groups, g.k // g.groups, *w.shape[1:])
        if of_channels:
            by_group, filters = np.moveaxis(by_group, 1, 1 + rank), np.moveaxis(filters, 2, 2 + rank)
        a = filters.reshape(*filters.shape[:2], -1)
        y = pairs_saturated(a, by_group.reshape(g.groups, a.shape[2], -1))
        return as_image(y.reshape(g.k, -1), g)

    return sums


_CORRECTED: dict[str, Compute] = {
    "zero point of x taken off with the sums of the first group's filters": _corrected_by_first_group,
}

MISTAKES: tuple[Mistake, ...] = (
    *(Mistake(name, "formats", compute) for name, compute in (_EXCHANGED | _CORRECTED).items()),
    *(
        Mistake(name, "formats", _made(SIGNED if name == "x read as unsigned" else WHOLE_NUMBERS, image=image))
        for name, image in _IMAGES.items()
    ),
    *(Mistake(name, "formats", _made(formats_of(name), stored=store)) for name, store in _WHOLE.items()),
    *(Mistake(name, "formats", _made(FP8, stored=store)) for name, store in OF_FP8.items()),
    *(Mistake(name, "formats", _made(scale=scale)) for name, scale in scales("filter").items()),
    *(Mistake(name, "formats", _made(**steps), when=lambda g: g.bias) for name, steps in biases("filter").items()),
    *(Mistake(name, "formats", _made(WHOLE_NUMBERS, **steps)) for name, steps in _SUMS.items()),
    *(Mistake(name, "formats", _made(UNSIGNED, image=image)) for name, image in _OF_UNSIGNED.items()),
    Mistake("sums of two channels' products saturate at 16 bits", "formats", _as_it_is(_in_pairs(of_channels=True))),
    Mistake("sums of two products of a window saturate at 16 bits", "formats", _as_it_is(_in_pairs(of_channels=False))),
    *CONVOLVING,
)
