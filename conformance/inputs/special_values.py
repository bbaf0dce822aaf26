"""Places for NaN and infinities in inputs: those whose results IEEE 754 determines for every order of a sum.

Algorithms multiply padding by zero or skip it, and some insert zeros between the elements of a gradient. So an element
that is not finite must not meet padding. Only the operator's data may: algorithms read them at their own places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from conformance.operators import Operator
from conformance.operators.spatial import spans

Place = tuple[str, tuple[int, ...], float]
"""Name of an input, an index into it, and the value to put there."""
NONFINITE = (math.inf, math.nan, -math.inf)


def _corners(operator: Operator, geometry: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    dimensions = len(operator.inputs(geometry)[operator.data].shape)
    return ((-1,) * dimensions, math.inf), ((0,) * dimensions, math.nan)


def specials(operator: Operator, geometry: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Return indices into the data with the values of the special distribution: infinity last, NaN first."""
    corners = _corners(operator, geometry)
    if operator.family == "conv_bn":  # whether infinity becomes Inf or NaN in a statistic depends on the order
        return corners[1:]
    if operator.name == "max_pool_forward":  # their maximum is minus infinity, not the lowest finite number
        return (((-1, 0), -math.inf), *corners)
    return corners


def nan_place(operator: Operator, geometry: Any) -> tuple[int, ...] | None:
    """Return the index of a NaN in an operand that is a gradient, which shows leaks between filters, or None.

    It is in the middle filter of the first image. With three groups, the first group, which has the NaN of x, and the
    last one, which has its infinity, stay distinguishable.
    """
    if not operator.name.endswith("backward_weight"):
        return None
    seen = getattr(geometry, "mirror", geometry)
    pixel = _inner_pixel(seen)
    return (0, seen.k // 2, *pixel) if pixel and seen.k >= 3 else None


def scattered(operator: Operator) -> tuple[str, ...]:
    """Return the inputs of which any element may be NaN or infinite, because none is multiplied by padding or by zeros
    that an algorithm inserts."""
    if operator.name.endswith("backward_weight"):
        return ()
    return ("dy", "x") if operator.name == "max_pool_backward" else (operator.data,)


def nonfinite(operator: Operator, geometry: Any) -> Iterator[Place]:
    """Yield the places of the nonfinite distribution: minus infinity in the data, and those that suit the operator."""
    if operator.name not in ("conv_bn_forward", "conv_bn_backward"):
        yield operator.data, (-1, *(0,) * (1 + geometry.rank)), -math.inf
    if operator.name in _BESIDES:
        yield from _BESIDES[operator.name](geometry)
    elif operator.name == "max_pool_backward":  # some gradients go to a NaN, and one image has both infinities
        yield from (("x", index, value) for index, value in _corners(operator, geometry))
        yield "x", (0, *(-1,) * (geometry.rank + 1)), -math.inf


def _apart(extent: int, wanted: Iterable[Place]) -> Iterator[Place]:
    """Yield the places, each in a channel of its own, as far as channels suffice; one channel is left without a place.
    `wanted` has indices without the channel, which is the first axis."""
    places = list(wanted)[: max(1, extent - 1)]
    for i, (name, index, value) in enumerate(places):
        yield name, (i * extent // len(places), *index), value


def _inner_tap(g: Any) -> tuple[int, ...] | None:
    """Return the first tap of the window that lies on padding at no output; None if there is none."""
    found = []
    for axis, (size, window) in enumerate(zip(g.size, g.window, strict=True)):
        starts = np.arange(g.output_size[axis]) * g.stride[axis] - g.padding[axis][0]
        places = starts + g.dilation[axis] * np.arange(window)[:, None]
        found.append(np.flatnonzero(((places >= 0) & (places < size)).all(axis=1)))
    return tuple(int(each[0]) for each in found) if all(map(len, found)) else None


def _inner_pixel(g: Any) -> tuple[int, ...] | None:
    """Return the first output whose window lies within the image; None if there is none."""
    pixels = []
    for size, span, stride, (before, _) in zip(g.size, spans(g), g.stride, g.padding, strict=True):
        output = -(-before // stride)
        if output * stride - before + span > size:
            return None
        pixels.append(output)
    return tuple(pixels)


def _centred_tap(g: Any) -> tuple[int, ...] | None:
    """Return the middle tap, which is in a product of every element of dx; None if there is no such tap. Algorithms
    that put zeros around dy or between its elements multiply other taps by these zeros."""
    middle = tuple(before // dilation for (before, _), dilation in zip(g.padding, g.dilation, strict=True))
    centred = all(m * d == p[0] for m, d, p in zip(middle, g.dilation, g.padding, strict=True))
    within = all(m < taps for m, taps in zip(middle, g.window, strict=True))
    return middle if centred and set(g.stride) == {1} and g.output_size == g.size and within else None


def _filters_and_bias(tap: tuple[int, ...] | None, bias: bool) -> list[Place]:
    wanted: list[Place] = []
    for value in NONFINITE:
        wanted += [("w", tap, value)] if tap else []
        wanted += [("bias", (), value)] if bias else []
    return wanted


def _of_forward(g: Any) -> Iterator[Place]:
    """Yield places in filters, and in the bias of other filters."""
    tap = _inner_tap(g)
    yield from _apart(g.k, _filters_and_bias((0, *tap) if tap else None, g.bias))


def _of_backward_data(g: Any) -> Iterator[Place]:
    """Yield places in the middle of filters."""
    if middle := _centred_tap(g):
        for name, (c, *tap), value in _apart(g.c // g.groups, [("w", middle, value) for value in NONFINITE]):
            yield name, (0, c, *tap), value


def _of_backward_weight(g: Any) -> Iterator[Place]:
    """Yield places in dy whose window lies within the image."""
    if pixel := _inner_pixel(g):
        for name, (k, *place), value in _apart(g.k, [("dy", pixel, value) for value in NONFINITE]):
            yield name, (0, k, *place), value


def _of_transposed_forward(g: Any) -> Iterator[Place]:
    """Yield places in the middle of filters, as `_of_backward_data` does, and in the bias of other channels."""
    for name, (k, *place), value in _apart(g.k // g.groups, _filters_and_bias(_centred_tap(g.mirror), g.bias)):
        yield name, ((0, k, *place) if name == "w" else (k,)), value


def _of_transposed_backward_weight(g: Any) -> Iterator[Place]:
    """Yield places in x whose window lies within the output."""
    yield from (("x", index, value) for _, index, value in _of_backward_weight(g.mirror))


def _of_normalised(g: Any) -> Iterator[Place]:
    """Yield NaN in a filter and gamma, without channels; infinities would depend on the order of correct operations."""
    if tap := _inner_tap(g):
        yield "w", (0, *tap), math.nan
    if g.affine:
        yield "gamma", (), math.nan


def _of_training(g: Any) -> Iterator[Place]:
    """Yield also beta, and NaN in running statistics unless momentum is 0 or 1: products with 0 may be skipped."""
    yield from _of_normalised(g)
    if g.running and 0 < g.momentum < 1:
        yield from (("running_mean", (), math.nan), ("running_var", (), math.nan))
    if g.affine:
        yield from (("beta", (), value) for value in NONFINITE)


def _of_inference(g: Any) -> Iterator[Place]:
    """Yield places in every input: given statistics do not spread infinities. An infinite variance leaves beta."""
    yield from _of_normalised(g)
    for value in NONFINITE:
        yield "running_mean", (), value
        if value >= 0 or math.isnan(value):
            yield "running_var", (), value
        if g.affine:
            yield "beta", (), value


def _of_normalised_backward(g: Any) -> Iterator[Place]:
    """Yield NaN in a filter, in gamma and in dy, each in its own channel."""
    wanted: list[Place] = [*_of_normalised(g), ("dy", (0,) * g.rank, math.nan)]
    for name, (k, *place), value in _apart(g.k, wanted):
        yield name, (0, k, *place) if name == "dy" else (k, *place), value


_BESIDES: dict[str, Callable[[Any], Iterator[Place]]] = {
    "conv_forward": _of_forward,
    "conv_backward_data": _of_backward_data,
    "conv_backward_weight": _of_backward_weight,
    "conv_transpose_forward": _of_transposed_forward,
    "conv_transpose_backward_data": lambda g: _of_forward(g.mirror),
    "conv_transpose_backward_weight": _of_transposed_backward_weight,
    "conv_bn_forward": lambda g: _apart(g.k, _of_training(g)),
    "conv_bn_backward": _of_normalised_backward,
    "conv_bn_inference": lambda g: _apart(g.k, _of_inference(g)),
}
"""Operator -> further places of the nonfinite distribution; operators not listed have minus infinity in the data only
(max_pool_backward: see `nonfinite`)."""
