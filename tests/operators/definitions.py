"""What every family computes, written down once more as loops in exact arithmetic, and small problems to try it on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.operators import OPERATORS, Arrays, GeometryError
from conformance.operators.spatial import IMAGE, WINDOW
from conformance.problems.parameters import SIMPLEST, geometry

OPTIONS = {
    "n": (1, 2), "c": (1, 2), "k": (1, 2), "g": (1, 2, 3), "b": (0, 1), "ceil": (0, 1), "valid": (1, 0),
    "outside": (0, 1), "div": (0, 0, 1, 3, 8), "zx": (0, 3, -128, 127), "zy": (0, -5, -128, 127),
    "affine": (1, 0), "run": (1, 0),
}  # fmt: skip


@st.composite
def geometries(draw: st.DrawFn, family: str) -> Any:
    """A small problem of a family in one to three dimensions; the simplest where what was drawn has no result."""

    def number(least: int, most: int) -> int:
        return draw(st.integers(least, most))

    rank = number(1, 3)
    simplest = SIMPLEST[family, rank] | {"n": 2}
    drawn = {name: draw(st.sampled_from(values)) for name, values in OPTIONS.items()}
    for axis, (image, window) in enumerate(zip(IMAGE[rank], WINDOW[rank], strict=True)):
        taps, stride, dilation = number(1, 5 - rank), number(1, 4), number(1, 3)
        padding = 3 if "k" in simplest else taps - 1
        drawn |= {image: number(1, 10 - 2 * rank), window: taps, f"u{axis}": stride}
        drawn |= {f"d{axis}": dilation, f"dil{axis}": dilation, f"o{axis}": number(0, max(stride, dilation) - 1)}
        drawn |= {f"p{2 * axis}": number(0, padding), f"p{2 * axis + 1}": number(0, padding)}
    try:
        return geometry(family, simplest | {name: value for name, value in drawn.items() if name in simplest})
    except GeometryError:
        return geometry(family, simplest)


def products(g: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Every product of a convolution, of all images at once: its places in x, in w and in y.

    A transposed one lays its window over the output.
    """
    transposed = g.family == "conv_transpose"
    under, over = (g.output_size, g.size) if transposed else (g.size, g.output_size)
    outer, inner, *_ = g.filter.shape
    axes = [*zip(g.stride, g.dilation, g.padding, strict=True)]
    for first, second, *tap in np.ndindex(*g.filter.shape):
        channel = first // (outer // g.groups) * inner + second
        for place in np.ndindex(*over):
            at = [p * u + t * d - before for p, t, (u, d, (before, _)) in zip(place, tap, axes, strict=True)]
            if all(0 <= position < size for position, size in zip(at, under, strict=True)):
                one, other = (slice(None), first, *place), (slice(None), channel, *at)
                yield (one, (first, second, *tap), other) if transposed else (other, (first, second, *tap), one)


def convolved(g: Any, x: np.ndarray, w: np.ndarray, zero: Any = 0.0) -> np.ndarray:
    """The sums of products, in whatever arithmetic `zero` is of."""
    y = np.full(g.y.shape, zero)
    for at, tap, to in products(g):
        y[to] += x[at] * w[tap]
    return y


def gradients(g: Any, dy: np.ndarray, x: Any = None, w: Any = None, zero: Any = 0.0) -> Arrays:
    """dx where w is given, dw where x is."""
    dx, dw = np.full(g.x.shape, zero), np.full(g.filter.shape, zero)
    for at, tap, to in products(g):
        if w is not None:
            dx[at] += dy[to] * w[tap]
        if x is not None:
            dw[tap] += (x[at] * dy[to]).sum()
    return ({} if w is None else {"dx": dx}) | ({} if x is None else {"dw": dw})


def convolution(direction: str, g: Any, inputs: Arrays) -> Arrays:
    """In float64, which holds the sums of the `fixed` distribution whatever their order."""
    given = {name: array.astype(np.float64) for name, array in inputs.items()}
    if direction == "forward":
        bias = given.get("bias", np.zeros(g.k)).reshape(-1, *[1] * g.rank)
        return {"y": convolved(g, given["x"], given["w"]) + bias}
    found = gradients(g, given["dy"], given.get("x"), given.get("w"))
    if g.bias and "dw" in found:
        found["dbias"] = given["dy"].swapaxes(0, 1).reshape(g.k, -1).sum(axis=1)
    return found


def requantized(g: Any, inputs: Arrays) -> Arrays:
    """In whole numbers and fractions; what lies in the padding is no zero point, but nothing. Ties go to even."""
    x = inputs["x"].astype(np.float64) - g.x_zero_point
    y = convolution("forward", g, inputs | {"x": x})["y"]
    for n, k, *place in np.ndindex(*y.shape):
        scaled = Fraction(float(inputs["scale"][k])) * int(y[n, k, *place])
        y[n, k, *place] = min(127, max(-128, round(scaled) + g.y_zero_point))
    return {"y": y}


def windows(g: Any, axis: int) -> list[range]:
    """The windows of one axis of a pooling as positions of the image, cut off at the padded image's end.

    One follows the other until a window reaches that end (in ceil mode) or would go beyond it (in floor mode).
    """
    size, dilation = g.size[axis], getattr(g, "dilation", (1, 1, 1))[axis]
    span, stride = dilation * (g.window[axis] - 1) + 1, g.stride[axis]
    before, end = g.padding[axis][0], size + g.padding[axis][1]
    starts = [*itertools.takewhile(lambda start: start + span <= end, itertools.count(-before, stride))]
    following = starts[-1] + stride
    if g.ceil_mode and following < size and starts[-1] + span < end:
        starts.append(following)
    return [range(start, min(start + span, end), dilation) for start in starts]


def pooled(g: Any) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...]], int]]:
    """Of every window its place in y, its elements of x in row-major order, and how many it has in the padded image."""
    for window in itertools.product(*(enumerate(windows(g, axis)) for axis in range(g.rank))):
        place, ranges = zip(*window, strict=True)
        inside = ([at for at in positions if 0 <= at < size] for positions, size in zip(ranges, g.size, strict=True))
        yield place, [*itertools.product(*inside)], math.prod(map(len, ranges))


def average(direction: str, g: Any, inputs: Arrays) -> Arrays:
    """In exact rational arithmetic, rounded once to float64."""
    (data,), forward = inputs.values(), direction == "forward"
    size = tuple(len(windows(g, axis)) for axis in range(g.rank)) if forward else g.size
    out = np.full((g.n, g.c, *size), Fraction(0), dtype=object)
    for place, inside, counted in pooled(g):
        share = Fraction(1, g.divisor_override or (counted if g.count_include_pad else max(1, len(inside))))
        for x in inside:
            to, source = (place, x) if forward else (x, place)
            for n, c in np.ndindex(g.n, g.c):
                out[n, c, *to] += share * Fraction(float(data[n, c, *source]))
    return {"y" if forward else "dx": out.astype(np.float64)}


def maximum(direction: str, g: Any, inputs: Arrays) -> Arrays:
    """The first of those that no other exceeds."""
    y, dx = np.empty((g.n, g.c, *(len(windows(g, axis)) for axis in range(g.rank)))), np.zeros(g.x.shape)
    for n, c in np.ndindex(g.n, g.c):
        image = inputs["x"][n, c].astype(np.float64)
        for place, inside, _ in pooled(g):
            chosen = max(inside, key=lambda at: float(image[at]))  # max takes the first
            y[n, c, *place] = image[chosen]
            if direction == "backward":
                dx[n, c, *chosen] += float(inputs["dy"][n, c, *place])
    return {"y": y} if direction == "forward" else {"dx": dx}


def by_definition(operator: str, g: Any, inputs: Arrays) -> Arrays:
    """The outputs of an operator of any family without batch normalisation."""
    family = OPERATORS[operator].family
    if family == "conv_requantized":
        return requantized(g, inputs)
    kinds = {"avg_pool": average, "max_pool": maximum}
    return kinds.get(family, convolution)(operator.removeprefix(f"{family}_"), g, inputs)
