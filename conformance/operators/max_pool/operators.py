"""Max pooling in one to three dimensions, forward and backward; the formula is that of two.

    y[n,c,p,q] = max_{r,s} x[n, c, p*u + r*d - top, q*v + s*e - left]

Forward computes nothing: every result must be equal to an element of x. Backward takes x beside dy, like frameworks
that do not keep indices, and adds up the gradients of the windows that choose an element. The conventions
(padding, NaN, ties) are in `conformance.operators.max_pool.geometry`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from conformance.operators import double_double
from conformance.operators.base import (
    WINDOW_BEYOND_IMAGE,
    Arrays,
    ErrorModel,
    Given,
    Homogeneous,
    Operator,
    Request,
    Special,
    Spoil,
    WorkedExample,
    invalid_parameters,
)
from conformance.operators.double_double import Double
from conformance.operators.family import LINEAR, Brought, Family, Storages
from conformance.operators.max_pool.geometry import MaxPoolGeometry
from conformance.operators.pooling import covered, few_windows
from conformance.operators.sparse import Nonzero, Places, added, elements_of, read, windows_of
from conformance.operators.spatial import cropped, padded, spans, taps, taps_per_input


def _only_padding(geometry: MaxPoolGeometry, request: Request) -> Request:
    """Pad by the span of the window, so that the first window holds nothing but padding."""
    padding = tuple((span, span) for span in spans(geometry))
    return Request(request.inputs, {**request.parameters, "padding": padding})


PADDING: dict[str, Spoil] = {"a window of padding only": _only_padding}


def selected(
    g: MaxPoolGeometry, x: np.ndarray, order: Iterable[int] | None = None, padding: float | None = None
) -> np.ndarray:
    """Return the position in each window of its first maximum, [N, C, P, Q]; the last axis counts fastest.

    For mistakes: `order` compares positions in another order, or only some of them; `padding` is compared, too.
    """
    image = padded(x, g.overhang, x.dtype, -np.inf if padding is None else padding)
    inside = padded(np.ones(g.size, bool), g.overhang, np.dtype(bool))
    taps_of = np.full(g.y.shape, -1)
    if order is None and padding is None and few_windows(g):
        for place, elements in covered(g):
            within = np.flatnonzero(inside[elements])
            values = image[elements].reshape(g.n, g.c, inside[elements].size)
            taps_of[place] = within[values[..., within].argmax(-1)]  # the first maximum, or the first NaN
        return taps_of
    places = list(taps(g))
    best = np.full(g.y.shape, -np.inf, x.dtype)
    for tap in range(len(places)) if order is None else order:
        values = image[places[tap]]
        better = (values > best) | (np.isnan(values) & ~np.isnan(best)) | (taps_of < 0)
        if padding is None:
            better &= inside[places[tap]]
        best = np.where(better, values, best)
        taps_of[better] = tap
    return taps_of


def routed(g: MaxPoolGeometry, taps_of: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """Compute dx: add every gradient at the position of its window that `selected` found."""
    image = padded(np.zeros(g.x.shape, dy.dtype), g.overhang, dy.dtype)
    np.add.at(image, chosen(g, taps_of, np.indices(g.y.shape, sparse=True)), dy)
    return np.ascontiguousarray(cropped(image, g.overhang, g.size))


def chosen(g: MaxPoolGeometry, taps_of: np.ndarray, places: Sequence[Any]) -> tuple[Any, ...]:
    """Return the index into the image with `overhang` of positions `found` in the windows at places (n, c, p, q)."""
    n, c, *place = places
    # flattened: on arrays with axes of one element, numpy 2.4.6 unravels all beyond its buffer of 8,192 wrongly
    tap = [along.reshape(taps_of.shape) for along in np.unravel_index(taps_of.reshape(-1), g.window)]
    return n, c, *(p * u + t * d for p, t, u, d in zip(place, tap, g.stride, g.dilation, strict=True))


class _MaxPool(Operator):
    """Base of max pooling's two directions."""

    family = "max_pool"
    keywords: tuple[str, ...] = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "layout")
    invalid = WINDOW_BEYOND_IMAGE | PADDING | invalid_parameters(keywords)
    sparse_is_positive = True

    def flops(self, geometry: MaxPoolGeometry) -> int:
        """Count a comparison for every position of every window."""
        return geometry.y.size * math.prod(geometry.window)


def _sparse_forward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    """Return the nonzero maxima; the data must not be negative anywhere."""
    values, (n, c, *place) = read(inputs["x"], places["x"])
    maxima = [
        (np.ravel_multi_index((n, c, *window), g.y.shape, "clip")[ok], values[ok])
        for _, window, ok in windows_of(g, place)
    ]
    windows, which = np.unique(np.concatenate([place for place, _ in maxima]), return_inverse=True)
    largest = np.zeros(len(windows))
    np.maximum.at(largest, which, np.concatenate([value for _, value in maxima]))
    return windows[largest > 0], largest[largest > 0]


def _sparse_backward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    values, (n, c, *place) = read(inputs["dy"], places["dy"])
    last = np.array(g.size)[:, None] - 1
    links = [(np.clip(element, 0, last), ok) for _, element, ok in elements_of(g, place)]
    choices = np.array([np.where(ok, inputs["x"][(n, c, *at)].astype(np.float64), -np.inf) for at, ok in links])
    chosen = np.array([at for at, _ in links])[choices.argmax(axis=0), :, np.arange(len(n))]
    return added([(np.ravel_multi_index((n, c, *chosen.T), g.x.shape), values)])


class MaxPoolForward(_MaxPool):
    """x[N,C,H,W] -> y[N,C,P,Q]."""

    name, data, operand = "max_pool_forward", "x", "x"
    arguments, returns = ("x",), ("y",)
    homogeneous = Homogeneous(("x",), ("y",), signs=False)
    gradients = ("max_pool_backward",)
    sparse = (("y", _sparse_forward),)
    worked_example = WorkedExample(
        "maxpool n1 c1 h5 w5 r5 s5 u1 p2", {"x": np.arange(1.0, 26.0).reshape(1, 1, 5, 5)}, "on consecutive numbers"
    )
    """From the ONNX specification, MaxPool, maxpool_2d_precomputed_pads."""

    def special(self, geometry: MaxPoolGeometry) -> tuple[Special, ...]:
        """Return also minus infinity in a whole plane: its maximum is that, not the lowest finite number."""
        return ("x", (-1, 0), -math.inf), *super().special(geometry)

    def errors(self, geometry: MaxPoolGeometry) -> ErrorModel:
        return ErrorModel({"y": 1}, span=1, selects=True)

    def reference(self, geometry: MaxPoolGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        image = padded(inputs["x"], geometry.overhang, np.dtype(dtype), -np.inf)
        y = np.full(geometry.y.shape, -np.inf, dtype)
        if few_windows(geometry):
            axes = tuple(range(-geometry.rank, 0))
            for place, elements in covered(geometry):
                y[place] = image[elements].max(axis=axes)
            return {"y": y}
        for elements in taps(geometry):
            np.maximum(y, image[elements], out=y)
        return {"y": y}

    def magnitude(self, geometry: MaxPoolGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Return |y|."""
        return {"y": np.abs(self.reference(geometry, inputs, dtype)["y"])}


class MaxPoolBackward(_MaxPool):
    """dy[N,C,P,Q], x[N,C,H,W] -> dx[N,C,H,W]."""

    name, data, operand = "max_pool_backward", "dy", "dy"
    arguments, returns = ("dy", "x"), ("dx",)
    homogeneous = Homogeneous(("dy",), ("dx",))
    sparse = (("dx", _sparse_backward),)
    scattered = ("dy", "x")

    def nonfinite(self, geometry: MaxPoolGeometry) -> Iterator[Special]:
        """Yield also values in x: some gradients go to a NaN, and one image has both infinities."""
        yield from super().nonfinite(geometry)
        yield from (("x", index, value) for _, index, value in self.special(geometry))
        yield "x", (0, *(-1,) * (geometry.rank + 1)), -math.inf

    def errors(self, geometry: MaxPoolGeometry) -> ErrorModel:
        """Count one gradient for every window that holds an element."""
        terms = taps_per_input(geometry)
        return ErrorModel({"dx": terms}, span=terms)

    def reference(self, geometry: MaxPoolGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        taps_of = selected(geometry, inputs["x"].astype(dtype))
        return {"dx": routed(geometry, taps_of, inputs["dy"].astype(dtype))}

    def exact(self, geometry: MaxPoolGeometry, inputs: Arrays) -> dict[str, Double]:
        taps_of = selected(geometry, inputs["x"].astype(np.float64))
        dx = double_double.linear(partial(routed, geometry, taps_of), [inputs["dy"]], self.errors(geometry).span)
        return {"dx": dx}

    def magnitude(self, geometry: MaxPoolGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Return s2 = sqrt(sum of dy^2)."""
        squares = {**inputs, "dy": np.square(inputs["dy"].astype(dtype))}
        return {"dx": np.sqrt(self.reference(geometry, squares, dtype)["dx"])}


FAMILY = Family(
    geometry=MaxPoolGeometry,
    operators=(MaxPoolForward(), MaxPoolBackward()),
    distributions=(*LINEAR, "close"),
    place=3,
    storages=Storages(
        everywhere=("maxpool.3x3s2-padded", "maxpool.asymmetric-ceil", "maxpool.dilation-by-axis"),
        large=("resnet50.maxpool", "googlenet.branch"),
        odd=("maxpool.batch1-channel1",),
        mixed=(("resnet50.maxpool", "fp16", "fixed"),),
        one_image=("maxpool.tiles-4",),
        once={1: ("maxpool.rank1", "maxpool.rank1-ceil"), 3: ("maxpool.rank3", "maxpool.rank3-2x2x2")},
    ),
    equal_shapes=("maxpool n3 c4 h4 w5 r2 s2 u2 p1:0x0:1", "maxpool n2 c6 h6 w6 r3 s3 u1 p1"),
    partial=("maxpool n2 c5 h9 w8 r3 s3 u2 p1", "maxpool n2 c4 h8 w6 r2 s2"),
    unreached=("maxpool n2 c3 h7 w8 r2 s2 u3",),
    at_smoke=(
        # ties in the commonest window, in channels last: whole numbers repeat within it
        Brought(
            lambda geometry: geometry.window == (2, 2) and min(*geometry.output_size, geometry.c) > 1,
            lambda variant: variant.distribution == "integer" and variant.layout == "nhwc",
        ),
    ),
    goldens=(
        "max_pool_backward maxpool.values fp32 subnormal",
        "max_pool_backward maxpool.values-2x3 fp64 close",
        "max_pool_forward maxpool.3x3s2-ceil fp32 special",
        "max_pool_backward maxpool.dilation bf16 fixed",
    ),
)
