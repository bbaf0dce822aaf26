"""Mistakes of max pooling: wrong choices from a window, and gradients that go to wrong elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.operators.base import Arrays, Operator
from conformance.operators.image_mistakes import DILATIONS, FURTHER_DILATIONS, IMAGES, TAILS, WINDOWS, enlarged, filled
from conformance.operators.max_pool.geometry import MaxPoolGeometry
from conformance.operators.max_pool.operators import chosen, routed, selected
from conformance.operators.mistakes import Compute, InapplicableError, Mistake, on_outputs
from conformance.operators.pooling import covered, scattered
from conformance.operators.pooling_mistakes import POOL_FURTHER, POOL_WINDOWS, POSITIONS
from conformance.operators.spatial import cropped, is_padded, padded, taps

FORWARD, BACKWARD = "max_pool_forward", "max_pool_backward"

Choice = Callable[[MaxPoolGeometry, np.ndarray], np.ndarray]
"""(geometry, x) -> position in each window that is taken for its maximum, [N, C, P, Q]."""


def choosing(choice: Choice, padding: float = -np.inf) -> Compute:
    """Return the mistake that chooses another element of each window (or padding) for y, and as the target of dy."""

    def compute(operator: Operator, g: MaxPoolGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        x = inputs["x"].astype(dtype)
        found = choice(g, x)
        if operator.name == BACKWARD:
            return {"dx": routed(g, found, inputs["dy"].astype(dtype))}
        image = padded(x, g.overhang, np.dtype(dtype), padding)
        y = np.full(g.y.shape, -np.inf, dtype)
        for tap, seen in enumerate(taps(g)):
            y = np.where(found == tap, image[seen], y)
        return {"y": y}

    return compute


def _of_some(kept: Callable[[Any], np.ndarray]) -> Compute:
    """Return the mistake that looks at some positions of the window only; outside the image they are minus infinity."""

    def choice(g: MaxPoolGeometry, x: np.ndarray) -> np.ndarray:
        if not (order := np.flatnonzero(kept(g)).tolist()):  # empty: the window has one row, which is left out
            raise InapplicableError
        return selected(g, x, order, -np.inf)

    return choosing(choice)


def _zero_padding(g: MaxPoolGeometry, x: np.ndarray) -> np.ndarray:
    if not is_padded(g.overhang):
        raise InapplicableError
    return selected(g, x, padding=0.0)


def _circular(operator: Operator, g: MaxPoolGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Compute the maximum over an image that is padded circularly, with its own elements."""
    wide, x = enlarged(g), filled("wrap")(inputs["x"], g)
    if wide.output_size != g.output_size:  # ceil mode has dropped a window that starts behind the image
        raise InapplicableError
    return operator.reference(wide, {"x": x}, dtype)


def _average(operator: Operator, g: MaxPoolGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Compute the average over all positions, with padding of zero, or its gradient."""
    places = list(taps(g))
    if operator.name == BACKWARD:
        return {"dx": scattered(g, inputs["dy"].astype(dtype) / len(places), places)}
    image = padded(inputs["x"].astype(dtype), g.overhang, np.dtype(dtype))
    return {"y": np.mean([image[place] for place in places], axis=0)}


_CHOICES: dict[str, Compute] = {
    "minimum instead of maximum": choosing(lambda g, x: selected(g, -x)),
    "largest magnitude instead of maximum": choosing(lambda g, x: selected(g, np.abs(x))),
    "padding is zero instead of minus infinity": choosing(_zero_padding, 0.0),
    **{name: _of_some(kept) for name, kept in POSITIONS.items()},
    "average instead of maximum": _average,
}


def _clamped(operator: Operator, g: MaxPoolGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Compute y with every window that begins before the image moved to the image's first element; taps beyond the
    window's true end are dropped."""
    if max(g.dilation) == 1 or not is_padded(g.padding):
        raise InapplicableError
    taps_of = []
    for size, window, u, d, (before, _), count in zip(
        g.size, g.window, g.stride, g.dilation, g.padding, g.output_size, strict=True
    ):
        start = np.arange(count)[:, None] * u - before
        at = np.maximum(start, 0) + np.arange(window) * d
        within = (at <= start + (window - 1) * d) & (at < size)
        taps_of.append(np.where(within, at, size))  # index `size` is a border of minus infinity
    image = np.pad(inputs["x"].astype(dtype), ((0, 0), (0, 0), *((0, 1),) * g.rank), constant_values=-np.inf)
    seen = (np.ix_(*(of[:, t] for of, t in zip(taps_of, tap, strict=True))) for tap in np.ndindex(*g.window))
    return {"y": np.max([image[(..., *places)] for places in seen], axis=0)}


_FORWARD: dict[str, Compute] = {
    "maximum of the magnitudes": on_outputs(lambda y, g: np.abs(y), "y"),
    "maximum starts at zero": on_outputs(lambda y, g: np.maximum(y, 0), "y"),
    "maximum starts at the lowest number of fp16": on_outputs(lambda y, g: np.maximum(y, -65504), "y"),
    "maximum over circular padding": _circular,
}


def _in_a_byte(g: MaxPoolGeometry, x: np.ndarray) -> np.ndarray:
    if math.prod(g.window) <= 256:
        raise InapplicableError
    return selected(g, x) % 256


def _every_maximum(g: MaxPoolGeometry, x: np.ndarray, places: list[Any]) -> list[np.ndarray]:
    """Return for every position a mask of the windows whose maximum is at it."""
    image = padded(x, g.overhang, x.dtype, -np.inf)
    largest = np.max([image[place] for place in places], axis=0)
    return [image[place] == largest for place in places]


def _to_every_maximum(shared: bool) -> Compute:
    """Return the mistake that gives every maximum of a window the whole gradient, or (`shared`) an equal share."""

    def compute(operator: Operator, g: MaxPoolGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        places, dy = list(taps(g)), inputs["dy"].astype(dtype)
        masks = _every_maximum(g, inputs["x"].astype(dtype), places)
        if shared:
            dy = dy / np.sum(masks, axis=0)
        dx = np.zeros(g.x.shape, dtype)
        for mask, place in zip(masks, places, strict=True):
            dx += scattered(g, np.where(mask, dy, 0), [place])
        return {"dx": dx}

    return compute


def _overwritten(order: int) -> Compute:
    """Return the mistake that takes dx of an element from one window only: with `order` 1 the last that chose it, with
    -1 the first, in row-major order."""

    def compute(operator: Operator, g: MaxPoolGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        found, dy = selected(g, inputs["x"].astype(dtype)), inputs["dy"].astype(dtype)
        image = padded(np.zeros(g.x.shape, dtype), g.overhang, np.dtype(dtype))
        images, channels = np.ogrid[: g.n, : g.c]
        for place, _ in list(covered(g))[::order]:
            image[chosen(g, found[place], (images, channels, *place[1:]))] = dy[place]
        return {"dx": cropped(image, g.overhang, g.size).copy()}

    return compute


def _rolled_by_padding(dx: np.ndarray, g: MaxPoolGeometry) -> np.ndarray:
    shift = tuple(before for before, _ in g.padding)
    if not any(shift):
        raise InapplicableError
    return np.roll(dx, shift, tuple(range(2, dx.ndim)))


_BACKWARD: dict[str, Compute] = {
    "tie to the last maximum instead of the first": choosing(
        lambda g, x: selected(g, x, range(math.prod(g.window) - 1, -1, -1)),
    ),
    "tie to the first maximum in column-major order": choosing(
        lambda g, x: selected(g, x, np.arange(math.prod(g.window)).reshape(g.window).T.reshape(-1).tolist())
    ),
    "tie to every maximum": _to_every_maximum(shared=False),
    "tie shared by every maximum": _to_every_maximum(shared=True),
    "dx of the last window where windows overlap": _overwritten(1),
    "dx of the first window where windows overlap": _overwritten(-1),
    "dx to every element of the window": lambda operator, g, inputs, dtype: {
        "dx": scattered(g, inputs["dy"].astype(dtype))
    },
    "dx at the index of the padded image": on_outputs(_rolled_by_padding, "dx"),
    "dx divided by the size of the window": on_outputs(lambda dx, g: dx / math.prod(g.window), "dx"),
}

MISTAKES: tuple[Mistake, ...] = (
    *(*IMAGES, *POOL_WINDOWS, *WINDOWS, *DILATIONS, *TAILS),
    *(Mistake(f"max pooling: {name}", "pooling", compute) for name, compute in _CHOICES.items()),
    *(Mistake(f"max pooling: {name}", "pooling", compute, (FORWARD,)) for name, compute in _FORWARD.items()),
    *(Mistake(f"max pooling: {name}", "gradients", compute, (BACKWARD,)) for name, compute in _BACKWARD.items()),
)

FURTHER: tuple[Mistake, ...] = (
    Mistake("max pooling: windows begin at the image's edge, whatever the dilation", "pooling", _clamped, (FORWARD,)),
    Mistake("max pooling: place of the maximum kept in a byte", "gradients", choosing(_in_a_byte), (BACKWARD,)),
    *(*POOL_FURTHER, *FURTHER_DILATIONS),
)
