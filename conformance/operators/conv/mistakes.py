"""Mistakes of convolution: the wrong taps; groups, bias and gradients, where what is added to what."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.operators.base import Arrays, Operator
from conformance.operators.conv.geometry import ConvGeometry
from conformance.operators.mistakes import (
    DILATIONS,
    FURTHER_DILATIONS,
    FURTHER_WINDOWS,
    IMAGES,
    TAILS,
    TILES,
    WINDOWS,
    Change,
    Compute,
    InapplicableError,
    Mistake,
    misread,
    on_outputs,
    rolled,
    spanning,
    within_tiles,
    zeroed,
)
from conformance.operators.spatial import UNPADDED, cropped, padded

FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT = "conv_forward", "conv_backward_data", "conv_backward_weight"


def _exchanged(w: np.ndarray, g: ConvGeometry) -> np.ndarray:
    if g.k != g.c:
        raise InapplicableError
    grouped = w.reshape(g.groups, g.k // g.groups, g.c // g.groups, g.r, g.s)
    return grouped.swapaxes(1, 2).reshape(w.shape)


_MISREAD_KERNELS: dict[str, Compute] = {
    "filter flipped in H": misread(w=lambda w, g: w[:, :, ::-1]),
    "filter flipped in W": misread(w=lambda w, g: w[..., ::-1]),
    "filter flipped in H and W": misread(w=lambda w, g: w[:, :, ::-1, ::-1]),
    "filter transposed (R and S swapped)": misread(lambda g: replace(g, r=g.s, s=g.r), w=lambda w, g: w.swapaxes(2, 3)),
    "filter strides of R and S swapped": misread(
        w=lambda w, g: w.reshape(*w.shape[:2], g.s, g.r).swapaxes(2, 3),
    ),
    "filter read as KRSC instead of KCRS": misread(
        w=lambda w, g: w.reshape(g.k, g.r, g.s, -1).transpose(0, 3, 1, 2),
    ),
    "filter rotated by one in H": misread(w=rolled(2)),
    "filter rotated by one in W": misread(w=rolled(3)),
    "K and C of the filter exchanged": misread(w=_exchanged),
    "last row of the filter left out": misread(w=zeroed(..., -1, slice(None))),
    "last column of the filter left out": misread(w=zeroed(..., -1)),
    "last tap of the filter left out": misread(w=zeroed(..., -1, -1)),
}


def _filled(mode: Any) -> Compute:
    """Padding with something else than zero: the kernel sees an unpadded image that is already enlarged."""

    def enlarged(g: ConvGeometry) -> ConvGeometry:
        return replace(g, h=g.h + sum(g.padding[0]), w=g.w + sum(g.padding[1]), padding=UNPADDED)

    def change(x: np.ndarray, g: ConvGeometry) -> np.ndarray:
        if g.padding == UNPADDED:
            raise InapplicableError
        return np.pad(x, ((0, 0), (0, 0), *g.padding), mode=mode)

    return misread(enlarged, x=change)


_FILLED: dict[str, Compute] = {
    "padding circular instead of zero": _filled("wrap"),
    "padding reflected instead of zero": _filled("reflect"),
    "padding repeats the edge instead of zero": _filled("edge"),
}

_SUMMED = {FORWARD: ("w", (2, 3, 4)), BACKWARD_DATA: ("w", (1, 3, 4)), BACKWARD_WEIGHT: ("dy", (0, 2, 3))}
"""Operator -> tensor and axes; w is seen as [G, K/g, C/g, R, S]."""


def _tail_of_sum(tile: int) -> Compute:
    def compute(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        name, axes = _SUMMED[operator.name]
        array, g = inputs[name], geometry
        seen = array.reshape(g.groups, g.k // g.groups, g.c // g.groups, g.r, g.s) if name == "w" else array
        kept = within_tiles(seen, axes, tile).reshape(array.shape)
        outputs = operator.reference(geometry, inputs | {name: kept}, dtype)
        if "dbias" in outputs:
            outputs["dbias"] = array.sum(axis=(0, 2, 3), dtype=dtype)
        return outputs

    return compute


def _by_groups(axis: int, *, interleaved: bool) -> Change:
    """Channels along an axis counted [inner, group] instead of [group, inner], or the groups in reverse."""

    def change(array: np.ndarray, g: ConvGeometry) -> np.ndarray:
        order = np.arange(array.shape[axis])
        moved = order.reshape(-1, g.groups).T if interleaved else order.reshape(g.groups, -1)[::-1]
        out: np.ndarray = np.take(array, moved.reshape(-1), axis)
        return out

    return change


def _first_group(axis: int) -> Change:
    """The first group's channels for every group."""

    def change(array: np.ndarray, g: ConvGeometry) -> np.ndarray:
        size = array.shape[axis] // g.groups
        out: np.ndarray = np.take(array, np.arange(array.shape[axis]) % size, axis)
        return out

    return change


def _neighbour(axis: int, by: int = 1) -> Change:
    return lambda array, g: np.roll(array, by * array.shape[axis] // g.groups, axis)


def _without_last_group(y: np.ndarray, g: ConvGeometry) -> np.ndarray:
    return zeroed(slice(None), slice(g.k - g.k // g.groups, None))(y, g)


_GROUPS: dict[str, Compute] = {
    "input channels interleaved over groups": misread(x=_by_groups(1, interleaved=True)),
    "output channels interleaved over groups (multiplier order)": misread(y=_by_groups(1, interleaved=True)),
    "filters interleaved over groups": misread(w=_by_groups(0, interleaved=True)),
    "group off by one": misread(x=_neighbour(1)),
    "group off by one the other way": misread(x=_neighbour(1, -1)),
    "filters of the group before": misread(w=_neighbour(0)),
    "filters of the next group": misread(w=_neighbour(0, -1)),
    "first group's input for every group": misread(x=_first_group(1)),
    "first group's filters for every group": misread(w=_first_group(0)),
    "groups in reverse": misread(x=_by_groups(1, interleaved=False)),
    "last group left out": misread(y=_without_last_group),
}


def _bias_along(axis: int) -> Compute:
    """bias[index along another axis than the channel's], counted round when it is longer."""

    def compute(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        bare = {name: array for name, array in inputs.items() if name != "bias"}
        y = operator.reference(replace(geometry, bias=False), bare, dtype)["y"]
        shape = [-1 if a == axis else 1 for a in range(4)]
        return {"y": y + np.resize(inputs["bias"], y.shape[axis]).astype(dtype).reshape(shape)}

    return compute


def _bias_twice(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    y = operator.reference(geometry, inputs, dtype)["y"]
    return {"y": y + inputs["bias"].astype(dtype)[:, None, None]}


def _dbias_of(kept: slice) -> Compute:
    """dbias summed over some images only."""

    def compute(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        outputs = operator.reference(geometry, inputs, dtype)
        return outputs | {"dbias": inputs["dy"][kept].sum(axis=(0, 2, 3), dtype=dtype)}

    return compute


_BIAS: dict[str, tuple[Compute, tuple[str, ...]]] = {
    "bias (dbias) missing": (misread(bias=lambda bias, g: np.zeros_like(bias)), (FORWARD, BACKWARD_WEIGHT)),
    "bias (dbias) of the channel before": (misread(bias=rolled(0)), (FORWARD, BACKWARD_WEIGHT)),
    "bias (dbias) of the next channel": (misread(bias=rolled(0, -1)), (FORWARD, BACKWARD_WEIGHT)),
    "bias of channel 0 for every channel": (misread(bias=lambda bias, g: np.repeat(bias[:1], g.k)), (FORWARD,)),
    "bias added along N": (_bias_along(0), (FORWARD,)),
    "bias added along H": (_bias_along(2), (FORWARD,)),
    "bias added along W": (_bias_along(3), (FORWARD,)),
    "bias added twice": (_bias_twice, (FORWARD,)),
    "dbias of the first image only": (_dbias_of(slice(0, 1)), (BACKWARD_WEIGHT,)),
    "dbias without the last image": (_dbias_of(slice(0, -1)), (BACKWARD_WEIGHT,)),
    "dbias averaged instead of summed": (
        on_outputs(lambda dbias, g: dbias / (g.y.size // g.k), "dbias"),
        (BACKWARD_WEIGHT,),
    ),
    "dbias averaged over images": (on_outputs(lambda dbias, g: dbias / g.n, "dbias"), (BACKWARD_WEIGHT,)),
}


def _overwritten(operator: Operator, g: ConvGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """dx where the last window that touches an element wins."""
    (p, q), (u, v), (d, e) = g.output_size, g.stride, g.dilation
    dy = inputs["dy"].astype(dtype).reshape(g.n, g.groups, -1, p * q)
    w = inputs["w"].astype(dtype).reshape(g.groups, g.k // g.groups, -1, g.r, g.s)
    image = padded(np.zeros(g.x.shape, dtype), g.padding, np.dtype(dtype))
    for r, s in itertools.product(range(g.r), range(g.s)):
        rows, columns = slice(r * d, r * d + (p - 1) * u + 1, u), slice(s * e, s * e + (q - 1) * v + 1, v)
        image[:, :, rows, columns] = (w[..., r, s].swapaxes(1, 2) @ dy).reshape(g.n, g.c, p, q)
    return {"dx": np.ascontiguousarray(cropped(image, g.padding, (g.h, g.w)))}


def _gaps_filled(operator: Operator, g: ConvGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """dx where elements that no window touches repeat a neighbour."""
    one = replace(g, n=1, c=1, k=1, groups=1)
    ones = {name: np.ones(tensor.shape) for name, tensor in operator.inputs(one).items()}
    gaps = operator.reference(one, ones)["dx"] == 0
    if not gaps.any():
        raise InapplicableError
    dx = operator.reference(g, inputs, dtype)["dx"]
    return {"dx": np.where(gaps, np.roll(dx, 1, 3) + np.roll(dx, 1, 2), dx)}


def remainder(g: ConvGeometry) -> tuple[int, int]:
    """Rows and columns of the padded image that no window reaches, because the stride does not divide."""
    (p, q), (u, v), (d, e) = g.output_size, g.stride, g.dilation
    rows = g.h + sum(g.padding[0]) - (p - 1) * u - d * (g.r - 1) - 1
    return rows, g.w + sum(g.padding[1]) - (q - 1) * v - e * (g.s - 1) - 1


def _rounded_up(g: ConvGeometry) -> Any:
    """With a last window that reaches beyond the padding where the stride leaves a remainder."""
    rows, columns = g.output_size
    return spanning(g, (rows + (remainder(g)[0] > 0), columns + (remainder(g)[1] > 0)))


def _remainder_in_front(x: np.ndarray, g: ConvGeometry) -> np.ndarray:
    if remainder(g) == (0, 0):
        raise InapplicableError
    return np.roll(x, tuple(-extra for extra in remainder(g)), (2, 3))


def _packed(operator: Operator, g: ConvGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """dx of the size that dy alone implies, written row after row into the larger buffer."""
    rows, columns = remainder(g)
    if columns == 0 or columns >= g.w or rows >= g.h:
        raise InapplicableError
    dx = operator.reference(g, inputs, dtype)["dx"]
    small = dx[..., : g.h - rows, : g.w - columns].reshape(-1)
    return {"dx": np.resize(np.append(small, np.zeros(dx.size - small.size, dx.dtype)), dx.shape)}


_GRADIENTS: dict[str, tuple[Compute, str]] = {
    "dx overwritten instead of accumulated where windows overlap": (_overwritten, BACKWARD_DATA),
    "dx filled where no window reaches": (_gaps_filled, BACKWARD_DATA),
    "dx packed as if the stride left no remainder": (_packed, BACKWARD_DATA),
    "dx averaged over the window": (on_outputs(lambda dx, g: dx / (g.r * g.s), "dx"), BACKWARD_DATA),
    "dx of the stride's remainder in front": (misread(x=_remainder_in_front), BACKWARD_DATA),
    "dw of the stride's remainder in front": (misread(x=_remainder_in_front), BACKWARD_WEIGHT),
    "dw of the first image only": (misread(x=zeroed(slice(1, None))), BACKWARD_WEIGHT),
    "dw of the last image only": (misread(x=zeroed(slice(0, -1))), BACKWARD_WEIGHT),
    "dw averaged over images": (on_outputs(lambda dw, g: dw / g.n, "dw"), BACKWARD_WEIGHT),
    "dw averaged over all places": (on_outputs(lambda dw, g: dw / (g.y.size // g.k), "dw"), BACKWARD_WEIGHT),
    "dw of the flipped image": (misread(x=lambda x, g: x[..., ::-1, ::-1]), BACKWARD_WEIGHT),
}

_INDEX: tuple[Mistake, ...] = (
    *(Mistake(name, "index", compute) for name, compute in _MISREAD_KERNELS.items()),
    *IMAGES,
    *WINDOWS,
    *DILATIONS,
    *(Mistake(name, "index", compute) for name, compute in _FILLED.items()),
)
_MISTAKEN_GROUPS = tuple(
    Mistake(name, "groups", compute, when=lambda g: g.groups > 1) for name, compute in _GROUPS.items()
)

CONVOLVING = (*_INDEX, *_MISTAKEN_GROUPS)
"""Those of every operator with a convolution in it, whose reference can be asked for on other parameters."""

MISTAKES: tuple[Mistake, ...] = (
    *_INDEX,
    *TAILS,
    *(Mistake(f"tail of the sum beyond tiles of {tile} dropped", "index", _tail_of_sum(tile)) for tile in TILES),
    *_MISTAKEN_GROUPS,
    *(Mistake(name, "bias", compute, where, lambda g: g.bias) for name, (compute, where) in _BIAS.items()),
    *(Mistake(name, "gradients", compute, (where,)) for name, (compute, where) in _GRADIENTS.items()),
)

FURTHER: tuple[Mistake, ...] = (
    Mistake("ceil instead of floor", "index", misread(_rounded_up)),
    *FURTHER_WINDOWS,
    *FURTHER_DILATIONS,
)
