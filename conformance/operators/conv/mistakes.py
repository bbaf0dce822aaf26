"""Mistakes of convolution: wrong taps, groups, biases, and gradients added to wrong elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.operators.base import Arrays, Operator
from conformance.operators.conv.geometry import ConvGeometry
from conformance.operators.image_mistakes import (
    DILATIONS,
    FURTHER_DILATIONS,
    FURTHER_IMAGES,
    FURTHER_WINDOWS,
    IMAGES,
    TAILS,
    TILES,
    WINDOWS,
    enlarged,
    filled,
    within_tiles,
)
from conformance.operators.mistakes import (
    ROUNDING,
    Change,
    Compute,
    D,
    H,
    InapplicableError,
    Mistake,
    W,
    channels_last,
    in_format_of,
    misread,
    of_neighbours,
    on_outputs,
    rolled,
    spanning,
    swapped,
    zeroed,
)
from conformance.operators.spatial import Index, cropped, padded, per_channel, spans, taps

FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT = "conv_forward", "conv_backward_data", "conv_backward_weight"


def _exchanged(w: np.ndarray, g: ConvGeometry) -> np.ndarray:
    if g.k != g.c:
        raise InapplicableError
    grouped = w.reshape(g.groups, g.k // g.groups, g.c // g.groups, *g.window)
    return grouped.swapaxes(1, 2).reshape(w.shape)


MISREAD_FILTERS: dict[str, Compute] = {
    "filter flipped in H": misread(rank=2, w=lambda w, g: np.flip(w, H)),
    "filter flipped in W": misread(w=lambda w, g: np.flip(w, W)),
    "filter flipped in H and W": misread(rank=2, w=lambda w, g: np.flip(w, (H, W))),
    "filter transposed (R and S swapped)": misread(
        lambda g: replace(g, window=swapped(g.window)), rank=2, w=lambda w, g: w.swapaxes(H, W)
    ),
    "filter strides of R and S swapped": misread(
        rank=2, w=lambda w, g: w.reshape(*w.shape[:2], *swapped(g.window)).swapaxes(H, W)
    ),
    "filter read as KRSC instead of KCRS": misread(w=lambda w, g: channels_last(w, w.shape)),
    "filter rotated by one in H": misread(rank=2, w=rolled(H)),
    "filter rotated by one in W": misread(w=rolled(W)),
    "K and C of the filter exchanged": misread(w=_exchanged),
    "last row of the filter left out": misread(rank=2, w=zeroed(..., -1, slice(None))),
    "last column of the filter left out": misread(w=zeroed(..., -1)),
    "last tap of the filter left out": misread(rank=2, w=lambda w, g: zeroed(..., *[-1] * g.rank)(w, g)),
    "filter flipped in D": misread(rank=3, w=lambda w, g: np.flip(w, D)),
    "filter flipped in D, H and W": misread(rank=3, w=lambda w, g: np.flip(w, (D, H, W))),
    "filter transposed (T and R swapped)": misread(
        lambda g: replace(g, window=(g.r, g.t, g.s)), rank=3, w=lambda w, g: w.swapaxes(D, H)
    ),
    "filter rotated by one in D": misread(rank=3, w=rolled(D)),
    "last plane of the filter left out": misread(rank=3, w=zeroed(slice(None), slice(None), -1)),
}


_FILLED: dict[str, Compute] = {
    "padding circular instead of zero": misread(enlarged, x=filled("wrap")),
    "padding reflected instead of zero": misread(enlarged, x=filled("reflect")),
    "padding repeats the edge instead of zero": misread(enlarged, x=filled("edge")),
}

Summed = Mapping[str, tuple[str, int]]
"""Operator -> a tensor, and its axis (not spatial) that is summed over; w is taken as [G, K/g, C/g, R, S]."""


def over_places(dy: np.ndarray, dtype: Any) -> np.ndarray:
    """Sum every channel."""
    return dy.sum(axis=(0, *range(2, dy.ndim)), dtype=dtype)


def _tail_of_sum(summed: Summed, tile: int) -> Compute:
    def compute(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        name, axis = summed[operator.name]
        array, g = inputs[name], geometry
        seen = array.reshape(g.groups, len(array) // g.groups, *array.shape[1:]) if name in "wb" else array
        kept = within_tiles(seen, (axis, *range(seen.ndim - g.rank, seen.ndim)), tile).reshape(array.shape)
        outputs = operator.reference(geometry, inputs | {name: kept}, dtype)
        if "dbias" in outputs:
            outputs["dbias"] = over_places(inputs["dy"], dtype)
        return outputs

    return compute


def tails_of_sums(summed: Summed) -> tuple[Mistake, ...]:
    """Return the mistakes that drop the tail of the main output's sum; dbias, a sum of its own, stays correct."""
    name = "tail of the sum beyond tiles of {} dropped"
    return tuple(Mistake(name.format(tile), "index", _tail_of_sum(summed, tile), tuple(summed)) for tile in TILES)


def _in_blocks_of_images(block: int) -> Compute:
    """Return the mistake that computes dw in full blocks of images and leaves out the remaining images."""

    def compute(operator: Operator, g: ConvGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        kept = operator.reference(g, inputs | {"dy": within_tiles(inputs["dy"], (0,), block)}, dtype)
        return operator.reference(g, inputs, dtype) | {"dw": kept["dw"]}

    return compute


BATCHES = tuple(
    Mistake(f"images beyond blocks of {block} left out", "index", _in_blocks_of_images(block), (BACKWARD_WEIGHT,))
    for block in (4, 8, 16)
)


def _in_turn(axis: int) -> Change:
    """Return a change that counts channels along an axis [inner, group] instead of [group, inner]."""
    return lambda array, g: array.take(np.arange(array.shape[axis]).reshape(-1, g.groups).T.reshape(-1), axis)


def in_reverse(axis: int) -> Change:
    """Return a change that reverses the groups along an axis."""
    return lambda array, g: array.take(np.arange(array.shape[axis]).reshape(g.groups, -1)[::-1].reshape(-1), axis)


def first_group(axis: int) -> Change:
    """Return a change that uses the first group's channels for every group."""

    def change(array: np.ndarray, g: ConvGeometry) -> np.ndarray:
        size = array.shape[axis] // g.groups
        return np.take(array, np.arange(array.shape[axis]) % size, axis)

    return change


def neighbour(axis: int, by: int = 1) -> Change:
    """Return a change that uses the channels of the group before along an axis (or of the next one)."""
    return lambda array, g: np.roll(array, by * array.shape[axis] // g.groups, axis)


_GROUPS: dict[str, Compute] = {
    "input channels interleaved over groups": misread(x=_in_turn(1)),
    "output channels interleaved over groups (multiplier order)": misread(y=_in_turn(1)),
    "filters interleaved over groups": misread(w=_in_turn(0)),
    "group off by one": misread(x=neighbour(1)),
    "group off by one the other way": misread(x=neighbour(1, -1)),
    "filters of the group before": misread(w=neighbour(0)),
    "filters of the next group": misread(w=neighbour(0, -1)),
    "first group's input for every group": misread(x=first_group(1)),
    "first group's filters for every group": misread(w=first_group(0)),
    "groups in reverse": misread(x=in_reverse(1)),
    "last group left out": misread(y=lambda y, g: zeroed(slice(None), slice(g.k - g.k // g.groups, None))(y, g)),
}


def _bias_along(axis: int) -> Compute:
    """Return the mistake that indexes the bias by another axis than the channel's, repeated if that is longer."""

    def compute(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        if -axis > geometry.rank:
            raise InapplicableError
        bare = {name: array for name, array in inputs.items() if name != "bias"}
        y = operator.reference(replace(geometry, bias=False), bare, dtype)["y"]
        shape = [-1 if place == axis % y.ndim else 1 for place in range(y.ndim)]
        return {"y": y + np.resize(inputs["bias"], y.shape[axis]).astype(dtype).reshape(shape)}

    return compute


def bias_twice(operator: Operator, geometry: Any, inputs: Arrays, dtype: Any) -> Arrays:
    y = operator.reference(geometry, inputs, dtype)["y"]
    return {"y": y + per_channel(inputs["bias"].astype(dtype), geometry.rank)}


def rounded_before_bias(forward: str) -> Mistake:
    """Return the mistake of an epilogue that adds the bias to sums that were stored and read back."""

    def compute(operator: Operator, geometry: Any, inputs: Arrays, dtype: Any) -> Arrays:
        bare = {name: array for name, array in inputs.items() if name != "bias"}
        y = in_format_of(inputs[operator.data], operator.reference(replace(geometry, bias=False), bare, dtype)["y"])
        return {"y": y + per_channel(inputs["bias"].astype(dtype), geometry.rank)}

    name = "sum rounded to the tensors' format before the bias is added"
    return Mistake(name, ROUNDING, compute, (forward,), lambda g: g.bias)


def _dbias_of(kept: slice) -> Compute:
    """Return the mistake that sums dbias over some images only."""

    def compute(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        outputs = operator.reference(geometry, inputs, dtype)
        return outputs | {"dbias": over_places(inputs["dy"][kept], dtype)}

    return compute


def _dbias_in_tiles(tile: int, of_image: bool) -> Compute:
    """Return the mistake that leaves places beyond the last full tile out of dbias, over all images or in each."""

    def compute(operator: Operator, g: ConvGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        outputs = operator.reference(g, inputs, dtype)
        if "dbias" not in outputs:
            raise InapplicableError
        places = tuple(range(2, 2 + g.rank))
        kept = within_tiles(inputs["dy"], places if of_image else (0, *places), tile)
        return outputs | {"dbias": over_places(kept, dtype)}

    return compute


def _interleaved(bias: np.ndarray, g: Any) -> np.ndarray:
    """Read the bias as if channels were ordered [inner, group] instead of [group, inner]."""
    if 1 in (g.groups, g.k // g.groups):
        raise InapplicableError
    return bias.reshape(g.groups, -1).T.reshape(-1)


BIAS: dict[str, tuple[Compute, tuple[str, ...]]] = {
    "bias (dbias) missing": (misread(bias=lambda bias, g: np.zeros_like(bias)), (FORWARD, BACKWARD_WEIGHT)),
    "bias (dbias) of the channel before": (misread(bias=rolled(0)), (FORWARD, BACKWARD_WEIGHT)),
    "bias (dbias) of the next channel": (misread(bias=rolled(0, -1)), (FORWARD, BACKWARD_WEIGHT)),
    "bias of channel 0 for every channel": (misread(bias=lambda bias, g: np.repeat(bias[:1], g.k)), (FORWARD,)),
    "bias interleaved over groups": (misread(bias=_interleaved), (FORWARD,)),
    "bias added along N": (_bias_along(0), (FORWARD,)),
    "bias added along H": (_bias_along(H), (FORWARD,)),
    "bias added along W": (_bias_along(W), (FORWARD,)),
    "bias added along D": (_bias_along(D), (FORWARD,)),
    "bias added twice": (bias_twice, (FORWARD,)),
    "dbias of the first image only": (_dbias_of(slice(0, 1)), (BACKWARD_WEIGHT,)),
    "dbias without the last image": (_dbias_of(slice(0, -1)), (BACKWARD_WEIGHT,)),
    "dbias averaged instead of summed": (
        on_outputs(lambda dbias, g: dbias / (g.y.size // g.k), "dbias"),
        (BACKWARD_WEIGHT,),
    ),
    **{
        f"dbias without {of_what} tail beyond tiles of {tile}": (_dbias_in_tiles(tile, of_image), (BACKWARD_WEIGHT,))
        for of_what, of_image in (("the", False), ("each image's", True))
        for tile in (*TILES, 256)
    },
    "dbias averaged over images": (on_outputs(lambda dbias, g: dbias / g.n, "dbias"), (BACKWARD_WEIGHT,)),
}


def overwritten(operator: Operator, g: ConvGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Compute dx with overlapping windows overwriting each other: the last one that touches an element wins."""
    dy = inputs["dy"].astype(dtype).reshape(g.n, g.groups, g.k // g.groups, -1)
    w = inputs["w"].astype(dtype).reshape(g.groups, g.k // g.groups, -1, *g.window)
    image = padded(np.zeros(g.x.shape, dtype), g.padding, np.dtype(dtype))
    for tap, seen in zip(np.ndindex(*g.window), taps(g), strict=True):
        image[seen] = (w[..., *tap].swapaxes(1, 2) @ dy).reshape(g.n, g.c, *g.output_size)
    return {"dx": np.ascontiguousarray(cropped(image, g.padding, g.size))}


def _gathered(dilated: bool) -> Compute:
    """Return the mistake of a dx that divides by the stride, rounded down, to find the window of each element and tap:
    elements between steps of the stride are not skipped or, if not `dilated`, are tested as for a dilation of 1."""

    def compute(operator: Operator, g: ConvGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        if max(g.stride) == 1 or (max(g.dilation) == 1 and not dilated):
            raise InapplicableError
        dy = inputs["dy"].astype(dtype).reshape(g.n, g.groups, g.k // g.groups, *g.output_size)
        w = inputs["w"].astype(dtype).reshape(g.groups, g.k // g.groups, -1, *g.window)
        dx = np.zeros((g.n, g.groups, g.c // g.groups, *g.size), dtype)
        axes = [*zip(g.size, g.stride, g.padding, g.dilation, g.output_size, strict=True)]
        for tap in np.ndindex(*g.window):
            held, read = [], []
            for t, (size, u, (before, _), d, count) in zip(tap, axes, strict=True):
                at = np.arange(size) + before - t * d
                meets = (at >= 0) & (at // u < count) & (dilated | ((at + t * (d - 1)) % u == 0))
                held.append(np.flatnonzero(meets))
                read.append(at[meets] // u)
            elements: Index = (..., *np.ix_(*held))
            windows: Index = (..., *np.ix_(*read))
            dx[elements] += np.einsum("gkc,ngk...->ngc...", w[..., *tap], dy[windows])
        return {"dx": dx.reshape(g.x.shape)}

    return compute


def gaps(operator: Operator, g: Any) -> np.ndarray:
    """Return the mask of an output image's elements that no window reaches. Raises InapplicableError if it is empty."""
    one = replace(g, n=1, c=1, k=1, groups=1, bias=False)
    ones = {name: np.ones(tensor.shape) for name, tensor in operator.inputs(one).items()}
    found: np.ndarray = next(iter(operator.reference(one, ones).values())) == 0
    if not found.any():
        raise InapplicableError
    return found


def gaps_filled(operator: Operator, g: Any, inputs: Arrays, dtype: Any) -> Arrays:
    """Compute an image in which elements that no window touches repeat their neighbours."""
    empty = gaps(operator, g)
    ((name, image),) = operator.reference(g, inputs, dtype).items()
    return {name: np.where(empty, of_neighbours(image, g.rank), image)}


def remainder(g: ConvGeometry) -> tuple[int, ...]:
    """Return, for each axis, the number of last elements of the padded image that no window reaches: the remainder of
    the stride."""
    axes = zip(g.size, g.padding, g.output_size, g.stride, spans(g), strict=True)
    return tuple(size + sum(sides) - (count - 1) * u - span for size, sides, count, u, span in axes)


def _rounded_up(g: ConvGeometry) -> Any:
    """Return the geometry with one more window, beyond the padding, on axes with a remainder of the stride."""
    return spanning(g, tuple(p + (rest > 0) for p, rest in zip(g.output_size, remainder(g), strict=True)))


def _remainder_in_front(x: np.ndarray, g: ConvGeometry) -> np.ndarray:
    if not any(remainder(g)):
        raise InapplicableError
    return np.roll(x, tuple(-extra for extra in remainder(g)), tuple(range(-g.rank, 0)))


def _packed(operator: Operator, g: ConvGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Compute dx of the size that dy alone implies, written row after row into the larger buffer."""
    left = [size - rest for size, rest in zip(g.size, remainder(g), strict=True)]
    if not any(remainder(g)[1:] or remainder(g)) or min(left) <= 0:
        raise InapplicableError
    dx = operator.reference(g, inputs, dtype)["dx"]
    kept: Index = (..., *map(slice, left))
    small = dx[kept].reshape(-1)
    return {"dx": np.resize(np.append(small, np.zeros(dx.size - small.size, dx.dtype)), dx.shape)}


OF_WEIGHTS: dict[str, Compute] = {
    "dw of the first image only": misread(x=zeroed(slice(1, None))),
    "dw of the last image only": misread(x=zeroed(slice(0, -1))),
    "dw averaged over images": on_outputs(lambda dw, g: dw / g.n, "dw"),
    "dw averaged over all places": on_outputs(lambda dw, g: dw / (g.y.size // g.k), "dw"),
    "dw of the flipped image": misread(x=lambda x, g: np.flip(x, tuple(range(2, x.ndim)))),
}

_GRADIENTS: dict[str, tuple[Compute, str]] = {
    "dx overwritten instead of accumulated where windows overlap": (overwritten, BACKWARD_DATA),
    "dx filled where no window reaches": (gaps_filled, BACKWARD_DATA),
    "dx packed as if the stride left no remainder": (_packed, BACKWARD_DATA),
    "dx averaged over the window": (on_outputs(lambda dx, g: dx / math.prod(g.window), "dx"), BACKWARD_DATA),
    "dx of the stride's remainder in front": (misread(x=_remainder_in_front), BACKWARD_DATA),
    "dw of the stride's remainder in front": (misread(x=_remainder_in_front), BACKWARD_WEIGHT),
    **{name: (compute, BACKWARD_WEIGHT) for name, compute in OF_WEIGHTS.items()},
}

_INDEX: tuple[Mistake, ...] = (
    *(Mistake(name, "index", compute) for name, compute in MISREAD_FILTERS.items()),
    *IMAGES,
    *WINDOWS,
    *DILATIONS,
    *(Mistake(name, "index", compute) for name, compute in _FILLED.items()),
)
GROUPS = tuple(Mistake(name, "groups", compute, when=lambda g: g.groups > 1) for name, compute in _GROUPS.items())

CONVOLVING = (*_INDEX, *GROUPS)
"""Mistakes of every operator that contains a convolution and whose reference can be run on other parameters."""

MISTAKES: tuple[Mistake, ...] = (
    *_INDEX,
    *TAILS,
    *tails_of_sums({FORWARD: ("w", 2), BACKWARD_DATA: ("w", 1), BACKWARD_WEIGHT: ("dy", 0)}),
    *BATCHES,
    *GROUPS,
    *(Mistake(name, "bias", compute, where, lambda g: g.bias) for name, (compute, where) in BIAS.items()),
    *(Mistake(name, "gradients", compute, (where,)) for name, (compute, where) in _GRADIENTS.items()),
)

FURTHER: tuple[Mistake, ...] = (
    Mistake("ceil instead of floor", "index", misread(_rounded_up)),
    Mistake(
        "bias of the first group for every group",
        "bias",
        misread(bias=first_group(0)),
        (FORWARD,),
        lambda g: g.bias and g.groups > 1,
    ),
    Mistake(
        "filters dealt out to groups in turn (k % groups)",
        "groups",
        misread(w=_in_turn(0), bias=_in_turn(0), y=_in_turn(1)),
        when=lambda g: g.groups > 1,
    ),
    Mistake("taps between the steps of the stride added to dx", "gradients", _gathered(True), (BACKWARD_DATA,)),
    Mistake("taps of dx chosen by the stride without the dilation", "gradients", _gathered(False), (BACKWARD_DATA,)),
    rounded_before_bias(FORWARD),
    *FURTHER_IMAGES,
    *FURTHER_WINDOWS,
    *FURTHER_DILATIONS,
)
