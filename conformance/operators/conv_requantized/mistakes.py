"""Mistakes of requantized convolution: zero points, scales, rounding, overflow of 8 bits, and the mistakes of a plain
convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.operators.base import Arrays, Operator
from conformance.operators.conv.mistakes import CONVOLVING
from conformance.operators.conv_requantized.geometry import RequantizedGeometry as Geometry
from conformance.operators.conv_requantized.steps import Steps, around
from conformance.operators.mistakes import Compute, InapplicableError, Mistake, misread
from conformance.operators.requantized_geometry import HIGHEST, LOWEST
from conformance.operators.requantized_mistakes import (
    FP8,
    OF_FP8,
    OF_SUMS,
    OF_WHOLE,
    WHOLE_NUMBERS,
    biases,
    moved,
    scales,
    with_steps,
)
from conformance.operators.requantized_steps import Store, wrapped

Image = Callable[[Geometry, np.ndarray], np.ndarray]
_made = partial(with_steps, Steps)


_EXCHANGED: dict[str, Compute] = {
    "zero point of x not taken off": misread(lambda g: replace(g, x_zero_point=0)),
    "zero point of x added": misread(lambda g: replace(g, x_zero_point=-g.x_zero_point)),
    "zero point of y left out": misread(lambda g: replace(g, y_zero_point=0)),
    "zero point of y taken off": misread(lambda g: replace(g, y_zero_point=-g.y_zero_point)),
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


_WHOLE: dict[str, Store] = OF_WHOLE | {"zero point of x added to y": moved(lambda g: g.x_zero_point)}
_SUMS: dict[str, dict[str, Any]] = {"filters read as unsigned": {"filters": lambda w: w % 256}} | OF_SUMS


def _corrected_by_first_group(operator: Operator, g: Geometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Correct sums of an uncentred x with zero point * sum(w), but use the first group's filters for every group."""
    if g.groups == 1 or not g.x_zero_point:
        raise InapplicableError
    own = inputs["w"].astype(np.float64).reshape(g.k, -1).sum(1)
    left = g.x_zero_point * (own - own[np.arange(g.k) % (g.k // g.groups)]).reshape(-1, *(1,) * g.rank)
    return _made(WHOLE_NUMBERS, scaled=lambda g, sums, scale: (sums + left) * scale)(operator, g, inputs, dtype)


_CORRECTED: dict[str, Compute] = {
    "zero point of x taken off with the sums of the first group's filters": _corrected_by_first_group,
}

MISTAKES: tuple[Mistake, ...] = (
    *(Mistake(name, "formats", compute) for name, compute in (_EXCHANGED | _CORRECTED).items()),
    *(Mistake(name, "formats", _made(WHOLE_NUMBERS, image=image)) for name, image in _IMAGES.items()),
    *(Mistake(name, "formats", _made(WHOLE_NUMBERS, stored=store)) for name, store in _WHOLE.items()),
    *(Mistake(name, "formats", _made(FP8, stored=store)) for name, store in OF_FP8.items()),
    *(Mistake(name, "formats", _made(scale=scale)) for name, scale in scales("filter").items()),
    *(Mistake(name, "formats", _made(**steps), when=lambda g: g.bias) for name, steps in biases("filter").items()),
    *(Mistake(name, "formats", _made(WHOLE_NUMBERS, **steps)) for name, steps in _SUMS.items()),
    *CONVOLVING,
)
