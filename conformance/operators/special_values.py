"""Places for NaN and infinities in inputs where IEEE 754 determines the results for every order of a sum.

Algorithms multiply padding by zero or skip it, and some insert zeros between the elements of a gradient. So an element
that is not finite must not meet padding. Only elements of the operator's data may be anywhere: algorithms read them at
their own places.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from conformance.operators.base import Special
from conformance.operators.spatial import spans

NONFINITE = (math.inf, math.nan, -math.inf)


def apart(extent: int, specials: Iterable[Special]) -> Iterator[Special]:
    """Yield the places, each in a channel of its own, as far as channels suffice; one channel is left without a place.
    `wanted` has indices without the channel, which is the first axis."""
    places = list(specials)[: max(1, extent - 1)]
    for i, (name, index, value) in enumerate(places):
        yield name, (i * extent // len(places), *index), value


def inner_tap(g: Any) -> tuple[int, ...] | None:
    """Return the first tap of the window that lies on padding at no output; None if there is none."""
    inside = []
    for axis, (size, window) in enumerate(zip(g.size, g.window, strict=True)):
        starts = np.arange(g.output_size[axis]) * g.stride[axis] - g.padding[axis][0]
        places = starts + g.dilation[axis] * np.arange(window)[:, None]
        inside.append(np.flatnonzero(((places >= 0) & (places < size)).all(axis=1)))
    return tuple(int(taps_inside[0]) for taps_inside in inside) if all(map(len, inside)) else None


def inner_pixel(g: Any) -> tuple[int, ...] | None:
    """Return the first output whose window lies within the image; None if there is none."""
    pixels = []
    for size, span, stride, (before, _) in zip(g.size, spans(g), g.stride, g.padding, strict=True):
        output = -(-before // stride)
        if output * stride - before + span > size:
            return None
        pixels.append(output)
    return tuple(pixels)


def centred_tap(g: Any) -> tuple[int, ...] | None:
    """Return the middle tap, which is in a product of every element of dx; None if there is no such tap. Algorithms
    that put zeros around dy or between its elements multiply other taps by these zeros."""
    middle = tuple(before // dilation for (before, _), dilation in zip(g.padding, g.dilation, strict=True))
    centred = all(m * d == p[0] for m, d, p in zip(middle, g.dilation, g.padding, strict=True))
    within = all(m < taps for m, taps in zip(middle, g.window, strict=True))
    return middle if centred and set(g.stride) == {1} and g.output_size == g.size and within else None


def filters_and_bias(tap: tuple[int, ...] | None, bias: bool) -> list[Special]:
    """Return values for a tap and for the bias, without channels."""
    specials: list[Special] = []
    for value in NONFINITE:
        specials += [("w", tap, value)] if tap else []
        specials += [("bias", (), value)] if bias else []
    return specials


def in_filters(g: Any) -> Iterator[Special]:
    """Yield places in filters, and in the bias of other filters."""
    tap = inner_tap(g)
    yield from apart(g.k, filters_and_bias((0, *tap) if tap else None, g.bias))


def in_gradient(g: Any) -> Iterator[Special]:
    """Yield places in dy whose window lies within the image."""
    if pixel := inner_pixel(g):
        for name, (k, *place), value in apart(g.k, [("dy", pixel, value) for value in NONFINITE]):
            yield name, (0, k, *place), value


def leak(operand: str, g: Any) -> tuple[Special, ...]:
    """Return a NaN in an operand that is a gradient, which shows leaks between filters; none for few filters.

    It is in the middle filter of the first image. With three groups, the first group, which has the NaN of x, and the
    last one, which has its infinity, stay distinguishable.
    """
    pixel = inner_pixel(g)
    return ((operand, (0, g.k // 2, *pixel), math.nan),) if pixel and g.k >= 3 else ()
