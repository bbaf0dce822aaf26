"""Mistakes of transposed convolution: output padding, cropping, filters, sums where windows overlap or leave gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.operators.base import Arrays, Operator
from conformance.operators.conv.mistakes import (
    BIAS,
    GROUPS,
    MISREAD_FILTERS,
    OF_WEIGHTS,
    gaps,
    gaps_filled,
    over_places,
    overwritten,
    rounded_before_bias,
    tails_of_sums,
)
from conformance.operators.conv_transpose.geometry import TransposedGeometry
from conformance.operators.image_mistakes import (
    DILATIONS,
    FURTHER_DILATIONS,
    FURTHER_IMAGES,
    FURTHER_WINDOWS,
    IMAGES,
    TAILS,
    WINDOWS,
)
from conformance.operators.mistakes import (
    Change,
    Compute,
    D,
    H,
    InapplicableError,
    Mistake,
    W,
    everywhere,
    misread,
)
from conformance.operators.spatial import Extents, Index, fitted, is_padded, per_channel, unpadded

FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT = (
    "conv_transpose_forward",
    "conv_transpose_backward_data",
    "conv_transpose_backward_weight",
)


def _exchanged(w: np.ndarray, g: TransposedGeometry) -> np.ndarray:
    """Read a buffer of [C, K/g, R, S] as if it were [K, C/g, R, S], the layout of a convolution."""
    own, other = g.c // g.groups, g.k // g.groups
    if min(own, other) == 1:
        raise InapplicableError
    return w.reshape(g.groups, other, own, *g.window).swapaxes(1, 2).reshape(w.shape)


_FILTERS: dict[str, Compute] = MISREAD_FILTERS | {"K and C of the filter exchanged": misread(w=_exchanged)}


def _shifted(by: Callable[[TransposedGeometry], Extents]) -> Change:
    """Return a change that moves y toward its start by this many places on each axis and fills the end with zeros."""

    def change(y: np.ndarray, g: TransposedGeometry) -> np.ndarray:
        moved, steps = np.zeros_like(y), by(g)
        kept = tuple(max(0, size - step) for size, step in zip(g.output_size, steps, strict=True))
        before: Index = (..., *map(slice, kept))
        behind: Index = (..., *(slice(step, step + size) for step, size in zip(steps, kept, strict=True)))
        moved[before] = y[behind]
        return moved

    return change


def _without(g: TransposedGeometry) -> TransposedGeometry:
    """Return the geometry without output padding. Raises InapplicableError if there is none."""
    if not any(g.output_padding):
        raise InapplicableError
    return replace(g, output_padding=(0,) * g.rank)


def _taken_from_front(g: TransposedGeometry) -> TransposedGeometry:
    """Return the geometry that crops less at the front instead of adding output padding at the end."""
    axes = zip(g.padding, g.output_padding, strict=True)
    return replace(_without(g), padding=tuple((before - more, after) for (before, after), more in axes))


def _uncropped(g: TransposedGeometry) -> TransposedGeometry:
    if not is_padded(g.padding):
        raise InapplicableError
    return replace(g, padding=unpadded(g.rank))


def _bias_alone(operator: Operator, g: TransposedGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Compute y with only the bias in the elements that output padding adds; gradients ignore dy there, except in
    dbias."""
    seen = replace(_without(g), bias=False)
    given = {name: array for name, array in inputs.items() if name != "bias"}
    if operator.name == FORWARD:
        y = fitted(operator.reference(seen, given, dtype)["y"], g.y.shape)
        return {"y": y + per_channel(inputs["bias"].astype(dtype), g.rank)}
    outputs = operator.reference(seen, given | {"dy": fitted(inputs["dy"], seen.y.shape)}, dtype)
    return outputs | {"dbias": over_places(inputs["dy"], dtype)}


_OUTPUT_PADDING: dict[str, Compute] = {
    "output padding ignored": misread(_without),
    "output padding in front": misread(_without, y=_shifted(lambda g: g.output_padding)),
    "output padding taken from the padding in front": misread(_taken_from_front),
    "output padding reversed": misread(lambda g: replace(g, output_padding=g.output_padding[::-1]), rank=2),
    "output padding of H used for every axis": misread(
        lambda g: replace(g, output_padding=everywhere(g.output_padding, H)), rank=2
    ),
    "output padding of W used for every axis": misread(
        lambda g: replace(g, output_padding=everywhere(g.output_padding, W)), rank=2
    ),
    "output padding of D used for every axis": misread(
        lambda g: replace(g, output_padding=everywhere(g.output_padding, D)), rank=3
    ),
    "padding added instead of cropped": misread(
        _uncropped, y=_shifted(lambda g: tuple(before for before, _ in g.padding))
    ),
}


def _overwritten(operator: Operator, g: TransposedGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Compute y with overlapping windows overwriting each other: the last one that touches an element wins."""
    y = fitted(overwritten(operator, g.mirror, inputs | {"dy": inputs["x"]}, dtype)["dx"], g.y.shape)
    return {"y": y + per_channel(inputs["bias"].astype(dtype), g.rank) if g.bias else y}


def _bias_where_reached(operator: Operator, g: TransposedGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Compute y with zeros, without the bias, where no window reaches."""
    empty = gaps(operator, g)
    return {"y": np.where(empty, np.zeros((), dtype), operator.reference(g, inputs, dtype)["y"])}


def _dbias_where_reached(operator: Operator, g: TransposedGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Compute dbias without the elements of dy that no window reaches."""
    whole = np.ones((1, 1, *g.mirror.size))
    empty = fitted(whole, (1, 1, *g.output_size)) == 0
    if not empty.any():
        raise InapplicableError
    outputs = operator.reference(g, inputs, dtype)
    return outputs | {"dbias": over_places(np.where(empty, 0, inputs["dy"]), dtype)}


_SUMS: dict[str, tuple[Compute, str]] = {
    "y overwritten instead of accumulated where windows overlap": (_overwritten, FORWARD),
    "y filled where no window reaches": (gaps_filled, FORWARD),
    **{name: (compute, BACKWARD_WEIGHT) for name, compute in OF_WEIGHTS.items()},
}

_BIAS: dict[str, tuple[Compute, tuple[str, ...]]] = {
    **{
        name: (compute, tuple(operator.replace("conv_", "conv_transpose_") for operator in where))
        for name, (compute, where) in BIAS.items()
    },
    "bias missing where no window reaches": (_bias_where_reached, (FORWARD,)),
    "dbias without what no window reaches": (_dbias_where_reached, (BACKWARD_WEIGHT,)),
    "output padding with the bias alone": (_bias_alone, (FORWARD, BACKWARD_WEIGHT)),
}

_LONGER = tuple(mistake for mistake in WINDOWS if mistake.name.endswith("one too small after"))
"""Mistakes that crop too little at the end: the extra elements lie behind a correct output; only its shape differs."""

MISTAKES: tuple[Mistake, ...] = (
    *(Mistake(name, "index", compute) for name, compute in _OUTPUT_PADDING.items()),
    *(Mistake(name, "index", compute) for name, compute in _FILTERS.items()),
    *IMAGES,
    *(mistake for mistake in WINDOWS if mistake not in _LONGER),
    *DILATIONS,
    *TAILS,
    *tails_of_sums({FORWARD: ("w", 1), BACKWARD_DATA: ("w", 2), BACKWARD_WEIGHT: ("x", 0)}),
    *GROUPS,
    *(Mistake(name, "bias", compute, where, lambda g: g.bias) for name, (compute, where) in _BIAS.items()),
    *(Mistake(name, "gradients", compute, (where,)) for name, (compute, where) in _SUMS.items()),
)

FURTHER: tuple[Mistake, ...] = (
    rounded_before_bias(FORWARD),
    *(*_LONGER, *FURTHER_IMAGES, *FURTHER_WINDOWS, *FURTHER_DILATIONS),
)
