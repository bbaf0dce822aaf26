"""Mistakes of a convolution with batch normalisation: the mistakes of its two parts and, defined here, mistakes of the
gradients and of recomputing z for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.operators.base import Arrays
from conformance.operators.conv.mistakes import CONVOLVING
from conformance.operators.conv.mistakes import FURTHER as OF_CONVOLUTION
from conformance.operators.conv_bn.geometry import ConvBnGeometry
from conformance.operators.conv_bn.normalisation_mistakes import (
    FOLDED,
    MERGED,
    NORMALISATION,
    STORED,
    affine,
    counting,
    last_not_added,
    last_row_not_added,
    mistakes,
    not_added,
    of_part,
    over,
)
from conformance.operators.conv_bn.steps import BACKWARD, Average, Parts, Step, Steps, convolved, summed
from conformance.operators.mistakes import Change, InapplicableError, Mistake, Sees, swapped
from conformance.operators.spatial import fitted, unpadded


def _inner(p: Parts, mean: Any, pull: Any) -> Any:
    """Return dy minus the contributions of mean (`mean`) and variance (d * `pull`)."""
    return p.dy - mean - p.d * pull


def _dz(p: Parts, mean: Any, pull: Any) -> Any:
    return p.gamma * p.inverse * _inner(p, mean, pull)


def _with_sums(average: Average) -> Step:
    """Return the step that takes the sums of dy and of dy*d over other elements, by `average`."""

    def dz(p: Parts) -> Any:
        pull = average(p.dy * p.d, p.geometry) * p.inverse * p.steps.slope(p)
        return _dz(p, average(p.dy, p.geometry), pull)

    return dz


_DZ: dict[str, Step] = {
    "gradient of the mean missing in dz": lambda p: _dz(p, 0.0, p.pull),
    "gradient of the variance missing in dz": lambda p: _dz(p, p.mean_dy, 0.0),
    "statistics taken for constants in dz": lambda p: _dz(p, 0.0, 0.0),
    "gradient of the mean added instead of subtracted": lambda p: _dz(p, -p.mean_dy, p.pull),
    "gradient of the variance added instead of subtracted": lambda p: _dz(p, p.mean_dy, -p.pull),
    "sums of dz not divided by M": lambda p: _dz(p, p.mean_dy * p.geometry.count, p.pull * p.geometry.count),
    "sum of dy not divided by M in dz": lambda p: _dz(p, p.mean_dy * p.geometry.count, p.pull),
    "sum of dy*d not divided by M in dz": lambda p: _dz(p, p.mean_dy, p.pull * p.geometry.count),
    "gradient of the variance not divided by the variance": lambda p: _dz(p, p.mean_dy, p.average(p.dy * p.d)),
    "gradient of the variance divided by the deviation once": lambda p: _dz(p, p.mean_dy, p.pull / p.inverse),
    "gradient of the variance twice as large": lambda p: _dz(p, p.mean_dy, 2 * p.pull),
    "gradient of the variance half as large": lambda p: _dz(p, p.mean_dy, p.pull / 2),
    "gradient of the variance for z instead of z - mean": lambda p: (
        p.gamma * p.inverse * (p.dy - p.mean_dy - p.z * p.pull)
    ),
    "product of dy with z instead of z - mean in dz": lambda p: _dz(
        p, p.mean_dy, p.average(p.dy * p.z) * p.inverse * p.steps.slope(p)
    ),
    "deviation missing in dz": lambda p: p.gamma * _inner(p, p.mean_dy, p.pull),
    "dz divided by the variance": lambda p: _dz(p, p.mean_dy, p.pull) * p.inverse,
    "dy taken for dz": lambda p: p.dy,
    "sums of dz over every image apart": _with_sums(over()),
    "sums of dz over image 0": _with_sums(of_part(slice(0, 1))),
    "sums of dz without the last image": _with_sums(not_added(-1)),
    "sums of dz without the last row": _with_sums(last_row_not_added),
    "sums of dz without the last element": _with_sums(last_not_added),
    "sums of dz divided by M - 1": _with_sums(counting(lambda g: g.count - 1)),
    "sums of dz divided by the number of places of x": _with_sums(counting(lambda g: g.n * math.prod(g.size))),
    "sums of dz divided by N": _with_sums(counting(lambda g: g.n)),
    "sums of dz divided by P*Q": _with_sums(counting(lambda g: g.count // g.n)),
    "sums of dz of the next channel": lambda p: _dz(p, np.roll(p.mean_dy, -1, 1), np.roll(p.pull, -1, 1)),
}

_DZ_AFFINE: dict[str, Step] = {
    "gamma missing in dz": lambda p: p.inverse * _inner(p, p.mean_dy, p.pull),
    "gamma multiplied twice in dz": lambda p: _dz(p, p.mean_dy, p.pull) * p.gamma,
    "gamma of the next channel in dz": lambda p: np.roll(p.gamma, -1, 1) * p.inverse * _inner(p, p.mean_dy, p.pull),
    "gamma only of dy in dz": lambda p: p.inverse * (p.gamma * p.dy - p.mean_dy - p.d * p.pull),
}

_OUTSIDE: dict[str, Steps] = {
    "derivative of an epsilon inside of the root where it is outside": Steps(slope=lambda p: p.inverse),
    "variance's gradient divided by M instead of M - 1": Steps(
        slope=lambda p: Steps().slope(p) * p.geometry.freedom / p.geometry.count
    ),
}


def _but_last_row(values: np.ndarray) -> np.ndarray:
    if values.ndim < 4:
        raise InapplicableError
    return summed(values[..., :-1, :])


def _dgamma(p: Parts) -> np.ndarray:
    return summed(p.dy * p.d * p.inverse)


_DGAMMA: dict[str, Step] = {
    "dgamma of z instead of its normalised value": lambda p: summed(p.dy * p.z),
    "dgamma without the mean subtracted": lambda p: summed(p.dy * p.z * p.inverse),
    "dgamma not divided by the deviation": lambda p: summed(p.dy * p.d),
    "dgamma divided by the variance": lambda p: summed(p.dy * p.d * p.inverse**2),
    "dgamma multiplied by gamma": lambda p: _dgamma(p) * p.inputs["gamma"],
    "dgamma averaged instead of summed": lambda p: _dgamma(p) / p.geometry.count,
    "dgamma averaged over images": lambda p: _image_mean(p, _dgamma(p)),
    "dgamma of image 0": lambda p: _of_images(p, slice(0, 1), p.dy * p.d * p.inverse),
    "dgamma without the last image": lambda p: _of_images(p, slice(0, -1), p.dy * p.d * p.inverse),
    "dgamma without the last row": lambda p: _but_last_row(p.dy * p.d * p.inverse),
    "dgamma of the next channel": lambda p: np.roll(_dgamma(p), -1),
    "dgamma of the channel before": lambda p: np.roll(_dgamma(p), 1),
    "dgamma with its sign changed": lambda p: -_dgamma(p),
}

_DBETA: dict[str, Step] = {
    "dbeta averaged over all places": lambda p: summed(p.dy) / p.geometry.count,
    "dbeta averaged over the batch": lambda p: _image_mean(p, summed(p.dy)),
    "dbeta of image 0": lambda p: _of_images(p, slice(0, 1), p.dy),
    "dbeta of all images but the last": lambda p: _of_images(p, slice(0, -1), p.dy),
    "dbeta without the last row": lambda p: _but_last_row(p.dy),
    "dbeta one channel further": lambda p: np.roll(summed(p.dy), -1),
    "dbeta one channel back": lambda p: np.roll(summed(p.dy), 1),
    "dbeta multiplied by gamma": lambda p: summed(p.dy) * p.inputs["gamma"],
    "dbeta of dz instead of dy, which is zero": lambda p: summed(p.steps.dz(p)),
}

_BOTH: dict[str, Steps] = {
    "dgamma and dbeta swapped": Steps(dgamma=lambda p: summed(p.dy), dbeta=_dgamma),
}


def _image_mean(p: Parts, sums: np.ndarray) -> np.ndarray:
    if p.geometry.n == 1:
        raise InapplicableError
    return sums / p.geometry.n


def _of_images(p: Parts, where: slice, values: np.ndarray) -> np.ndarray:
    if p.geometry.n == 1:
        raise InapplicableError
    return summed(values[where])


def _again(sees: Sees = lambda geometry: geometry, **changes: Change) -> Steps:
    """Return the steps that recompute z from changed tensors, or with other parameters than forward had."""

    def convolution(g: ConvBnGeometry, inputs: Arrays) -> np.ndarray:
        seen: Any = sees(g)
        given = {name: changes[name](inputs[name], g) if name in changes else inputs[name] for name in ("x", "w")}
        z = fitted(convolved(seen, given), g.y.shape)
        if np.array_equal(z, convolved(g, inputs), equal_nan=True):
            raise InapplicableError
        return z

    return Steps(convolution=convolution)


_RECOMPUTED: dict[str, Steps] = {
    "z recomputed with the filter flipped": _again(w=lambda w, g: _flipped(w)),
    "z recomputed with the stride ignored": _again(lambda g: replace(g, stride=(1,) * g.rank)),
    "z recomputed with the dilation ignored": _again(lambda g: replace(g, dilation=(1,) * g.rank)),
    "z recomputed with the padding ignored": _again(lambda g: replace(g, padding=unpadded(g.rank))),
    "z recomputed with padding swapped between H and W": _again(lambda g: replace(g, padding=swapped(g.padding))),
    "z recomputed from the image before": _again(x=lambda x, g: np.roll(x, 1, 0)),
    "z recomputed from image 0": _again(x=lambda x, g: np.repeat(x[:1], g.n, 0)),
    "z recomputed with the filters of the next channel": _again(w=lambda w, g: np.roll(w, -1, 0)),
    "z recomputed from the input channels in reverse": _again(x=lambda x, g: x[:, ::-1]),
    "z recomputed without the last tap": _again(w=lambda w, g: _without_last_tap(w)),
}


def _without_last_tap(w: np.ndarray) -> np.ndarray:
    kept = w.copy()
    kept.reshape(*w.shape[:2], -1)[..., -1] = 0
    return kept


def _flipped(w: np.ndarray) -> np.ndarray:
    return np.flip(w, tuple(range(2, w.ndim)))


def _scaled(factor: Callable[[Parts], Any]) -> Step:
    return lambda p: p.steps.dz(p) * factor(p)


_GRADIENTS: dict[str, Steps] = {
    "dx with the filter flipped once too often": Steps(w_of_dx=_flipped),
    "dx of dy instead of dz": Steps(dz_of_dx=lambda p: p.dy),
    "dw of dy instead of dz": Steps(dz_of_dw=lambda p: p.dy),
    "dx with statistics taken for constants": Steps(dz_of_dx=_DZ["statistics taken for constants in dz"]),
    "dw with statistics taken for constants": Steps(dz_of_dw=_DZ["statistics taken for constants in dz"]),
    "dx of the next image": Steps(dz_of_dx=lambda p: np.roll(p.steps.dz(p), -1, 0)),
    "dw of dz from the image before": Steps(dz_of_dw=lambda p: np.roll(p.steps.dz(p), 1, 0)),
    "dw divided by M": Steps(dz_of_dw=_scaled(lambda p: 1 / p.geometry.count)),
    "dw divided by N": Steps(dz_of_dw=_scaled(lambda p: 1 / p.geometry.n)),
    "dx without the deviation": Steps(dz_of_dx=_scaled(lambda p: 1 / p.inverse)),
    "dw without the deviation": Steps(dz_of_dw=_scaled(lambda p: 1 / p.inverse)),
}
_GRADIENTS_AFFINE: dict[str, Steps] = {
    "dx without gamma": Steps(dz_of_dx=_scaled(lambda p: 1 / p.gamma)),
    "dw without gamma": Steps(dz_of_dw=_scaled(lambda p: 1 / p.gamma)),
}
_WHERE = (BACKWARD,)

MISTAKES: tuple[Mistake, ...] = (
    *CONVOLVING,
    *NORMALISATION,
    *mistakes(_WHERE, {name: Steps(dz=dz) for name, dz in _DZ.items()}),
    *mistakes(_WHERE, {name: Steps(dz=dz) for name, dz in _DZ_AFFINE.items()}, affine),
    *mistakes(_WHERE, _OUTSIDE, lambda geometry: geometry.eps_outside),
    *mistakes(_WHERE, {name: Steps(dgamma=dgamma) for name, dgamma in _DGAMMA.items()}, affine),
    *mistakes(_WHERE, {name: Steps(dbeta=dbeta) for name, dbeta in _DBETA.items()}, affine),
    *mistakes(_WHERE, _BOTH, affine),
    *mistakes(_WHERE, _RECOMPUTED),
    *mistakes(_WHERE, _GRADIENTS),
    *mistakes(_WHERE, _GRADIENTS_AFFINE, affine),
)

FURTHER: tuple[Mistake, ...] = (FOLDED, STORED, *MERGED, *OF_CONVOLUTION)
