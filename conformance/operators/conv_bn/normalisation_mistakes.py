"""Mistakes of batch normalisation: the elements that statistics are taken of, epsilon, parameters, running averages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.operators.base import Arrays, Operator
from conformance.operators.conv_bn.geometry import ConvBnGeometry
from conformance.operators.conv_bn.steps import (
    BACKWARD,
    FORWARD,
    INFERENCE,
    Average,
    Parts,
    Statistics,
    Step,
    Steps,
    convolved,
    moved,
    of_batch,
    of_running,
    over_batch,
)
from conformance.operators.image_mistakes import TILES, within_tiles
from conformance.operators.mistakes import ROUNDING, H, InapplicableError, Mistake, W, in_format_of
from conformance.operators.spatial import per_channel, places

TRAINING = (FORWARD, BACKWARD)
OUTWARD = (FORWARD, INFERENCE)
EVERY = (FORWARD, BACKWARD, INFERENCE)

When = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class _Wrong:
    """The computation of a kernel with a wrong step."""

    steps: Steps

    def __call__(self, operator: Operator, geometry: Any, inputs: Arrays, dtype: Any) -> Arrays:
        return self.steps.outputs(operator.name, geometry, inputs)


def mistakes(
    operators: tuple[str, ...], named: Mapping[str, Steps], when: When = lambda geometry: True
) -> Iterator[Mistake]:
    """Yield one mistake for every name."""
    for name, steps in named.items():
        yield Mistake(name, "batchnorm", _Wrong(steps), operators, when)


def affine(geometry: ConvBnGeometry) -> bool:
    """Tell whether the problem has gamma and beta."""
    return geometry.affine


def over(*lead: int, without: int | None = None) -> Average:
    """Return the average over `lead` (axes N and K) and over the image, `without` one axis of it if given."""

    def average(values: np.ndarray, g: ConvBnGeometry) -> np.ndarray:
        if without is not None and (-without > g.rank or g.rank == 1):
            raise InapplicableError
        image = (axis for axis in range(2, values.ndim) if without is None or axis != values.ndim + without)
        return values.mean((*lead, *image), keepdims=True)

    return average


def _over_groups(values: np.ndarray, g: ConvBnGeometry) -> np.ndarray:
    """Average each image over groups of channels; over two halves if the convolution has one group."""
    groups = g.groups if g.groups > 1 else 2
    if g.k % groups or g.k == groups:
        raise InapplicableError
    return np.repeat(values.reshape(g.n, groups, -1).mean(2), g.k // groups, 1).reshape(g.n, g.k, *(1,) * g.rank)


def of_part(*where: Any) -> Average:
    """Return the average over the elements at an index."""

    def average(values: np.ndarray, g: ConvBnGeometry) -> np.ndarray:
        part = values[where]
        if part.size in (0, values.size):
            raise InapplicableError
        return over_batch(part, g)

    return average


def of_rows(kept: slice) -> Average:
    """Return the average over some rows."""

    def average(values: np.ndarray, g: ConvBnGeometry) -> np.ndarray:
        if g.rank < 2:
            raise InapplicableError
        return of_part(..., kept, slice(None))(values, g)

    return average


def counting(count: Callable[[ConvBnGeometry], int], average: Average = over_batch) -> Average:
    """Return the average whose sum is divided by another count than M."""

    def miscounted(values: np.ndarray, g: ConvBnGeometry) -> np.ndarray:
        if count(g) == g.count:
            raise InapplicableError
        return average(values, g) * (g.count / count(g))

    return miscounted


def not_added(where: Any) -> Average:
    """Return the average that counts the elements at `where`, but does not add them."""

    def average(values: np.ndarray, g: ConvBnGeometry) -> np.ndarray:
        kept = values.copy()
        kept[where] = 0
        return kept.mean(places(kept), keepdims=True)

    return average


def last_row_not_added(values: np.ndarray, g: ConvBnGeometry) -> np.ndarray:
    if g.rank < 2:
        raise InapplicableError
    return not_added((..., -1, slice(None)))(values, g)


def last_not_added(values: np.ndarray, g: ConvBnGeometry) -> np.ndarray:
    return not_added((-1, slice(None), *[-1] * g.rank))(values, g)


def _full_tiles(tile: int) -> Average:
    """Return the average without the elements beyond the last full tile of a channel."""

    def average(values: np.ndarray, g: ConvBnGeometry) -> np.ndarray:
        within_tiles(np.empty(g.count, bool), (0,), tile)
        channels = values.swapaxes(0, 1).reshape(g.k, -1)
        mean: np.ndarray = channels[:, : g.count // tile * tile].mean(1)
        return per_channel(mean, g.rank)[None]

    return average


def _equal_blocks(block: int) -> Average:
    """Return the average that merges blocks of a channel as if the last block were full."""

    def average(values: np.ndarray, g: ConvBnGeometry) -> np.ndarray:
        if g.count <= block or g.count % block == 0:
            raise InapplicableError
        channels = values.swapaxes(0, 1).reshape(g.k, -1)
        starts = range(0, g.count, block)
        mean = np.mean([channels[:, start : start + block].mean(1) for start in starts], axis=0)
        return per_channel(mean, g.rank)[None]

    return average


_AVERAGES: dict[str, Average] = {
    "statistics of every image apart (instance normalisation)": over(),
    "statistics of an image over all its channels (layer normalisation)": over(1),
    "statistics of an image over groups of channels (group normalisation)": _over_groups,
    "statistics over all channels of the batch": over(0, 1),
    "statistics of every place over the batch": lambda values, g: values.mean(0, keepdims=True),
    "statistics of every row apart": over(0, without=H),
    "statistics of every column apart": over(0, without=W),
    "statistics of the first half of the batch": lambda values, g: of_part(slice(0, g.n // 2))(values, g),
    "statistics of image 0": of_part(slice(0, 1)),
    "last image left out of the statistics": of_part(slice(0, -1)),
    "last row left out of the statistics": of_rows(slice(0, -1)),
    "last column left out of the statistics": of_part(..., slice(0, -1)),
    "first row left out of the statistics": of_rows(slice(1, None)),
    "every second row left out of the statistics": of_rows(slice(0, None, 2)),
    "last image counted in the statistics, but not added": not_added(-1),
    "last row counted in the statistics, but not added": last_row_not_added,
    "last element counted in the statistics, but not added": last_not_added,
    "statistics divided by M - 1 throughout": counting(lambda g: g.count - 1),
    "statistics divided by the number of places of x": counting(lambda g: g.n * math.prod(g.size)),
    "statistics divided by N": counting(lambda g: g.n),
    "statistics divided by P*Q": counting(lambda g: g.count // g.n),
    **{f"tail of the statistics beyond tiles of {tile} left out": _full_tiles(tile) for tile in TILES},
    **{
        f"statistics of blocks of {n} merged as if the last one were full": _equal_blocks(n) for n in (32, 64, 128, 256)
    },
}


def _about(mean: Average) -> Steps:
    """Return the steps that take the variance about `mean` instead of the right mean."""

    def statistics(steps: Steps, z: np.ndarray, g: ConvBnGeometry, inputs: Arrays) -> Statistics:
        return over_batch(z, g), over_batch((z - mean(z, g)) ** 2, g) * g.count / g.freedom

    return Steps(statistics=statistics)


def _previous(values: np.ndarray) -> np.ndarray:
    return np.roll(values, 1, 1)


def _next(values: np.ndarray) -> np.ndarray:
    return np.roll(values, -1, 1)


def _first(values: np.ndarray) -> np.ndarray:
    return np.repeat(values[:, :1], values.shape[1], 1)


_STATISTICS: dict[str, Steps] = {
    **{name: Steps(average=average) for name, average in _AVERAGES.items()},
    "variance biased where the unbiased one is due, or the reverse": Steps(
        freedom=lambda g: g.count - (not g.eps_outside)
    ),
    "variance about zero instead of the mean": _about(lambda z, g: np.zeros((1,) * z.ndim)),
    "variance about the mean of the channel before": _about(lambda z, g: _previous(over_batch(z, g))),
    "variance about the mean of image 0": _about(of_part(slice(0, 1))),
}

_OTHER_CHANNELS: dict[str, Steps] = {
    "statistics of the channel before": Steps(seen=_previous),
    "statistics of the next channel": Steps(seen=_next),
    "statistics of channel 0": Steps(seen=_first),
}


def _other_variance(p: Parts) -> np.ndarray:
    """Return the biased variance if the unbiased variance is required, and the reverse."""
    other = p.geometry.count - (not p.geometry.eps_outside)
    return p.var * p.geometry.freedom / other


_RETURNED: dict[str, Step] = {
    "var returned biased where the unbiased one is due, or the reverse": lambda p: (p.mean, _other_variance(p)),
    "deviation returned for the variance": lambda p: (p.mean, np.sqrt(p.var)),
    "inverse deviation returned for the variance": lambda p: (p.mean, p.inverse),
    "variance returned with epsilon in it": lambda p: (p.mean, p.var + p.geometry.eps),
    "sum of squares returned for the variance": lambda p: (p.mean, p.var * p.geometry.freedom),
    "sum returned for the mean": lambda p: (p.mean * p.geometry.count, p.var),
    "mean and variance returned in the wrong order": lambda p: (p.var, p.mean),
    "statistics of the next channel returned": lambda p: (_next(p.mean), _next(p.var)),
}


def _about_mean(p: Parts, mean: Any) -> Any:
    return (p.z - mean) * p.inverse * p.gamma + p.beta


def _by_running(p: Parts) -> Any:
    mean, var = of_running(p.steps, p.z, p.geometry, p.inputs)
    return replace(p, mean=mean, var=var, steps=Steps()).scaled(p.geometry.inverse(var))


_NORMALISED: dict[str, Step] = {
    "mean not subtracted": lambda p: _about_mean(p, 0.0),
    "mean added instead of subtracted": lambda p: _about_mean(p, -p.mean),
    "mean of the channel before subtracted": lambda p: _about_mean(p, _previous(p.mean)),
    "mean of the next channel subtracted": lambda p: _about_mean(p, _next(p.mean)),
    "mean of channel 0 subtracted": lambda p: _about_mean(p, _first(p.mean)),
    "not divided by the deviation": lambda p: p.scaled(np.ones_like(p.inverse)),
    "multiplied by the deviation instead of divided": lambda p: p.scaled(1 / p.inverse),
    "divided by the variance instead of its root": lambda p: p.scaled(p.inverse**2),
    "divided by the deviation of the channel before": lambda p: p.scaled(_previous(p.inverse)),
    "divided by the deviation of the next channel": lambda p: p.scaled(_next(p.inverse)),
    "divided by the deviation of channel 0": lambda p: p.scaled(_first(p.inverse)),
    "convolution not normalised": lambda p: p.z,
    "clamped at zero (a fused ReLU)": lambda p: np.maximum(p.scaled(p.inverse), 0),
}


def _with(change: Callable[[Any, Any], tuple[Any, Any]]) -> Step:
    """Return the step that computes y with changed gamma and beta."""

    def y(p: Parts) -> Any:
        gamma, beta = change(p.gamma, p.beta)
        return p.d * p.inverse * gamma + beta

    return y


_AFFINE: dict[str, Step] = {
    "gamma missing": _with(lambda gamma, beta: (1.0, beta)),
    "beta missing": _with(lambda gamma, beta: (gamma, 0.0)),
    "gamma and beta missing": _with(lambda gamma, beta: (1.0, 0.0)),
    "gamma and beta swapped": _with(lambda gamma, beta: (beta, gamma)),
    "gamma of the channel before": _with(lambda gamma, beta: (_previous(gamma), beta)),
    "gamma of the next channel": _with(lambda gamma, beta: (_next(gamma), beta)),
    "gamma of channel 0": _with(lambda gamma, beta: (_first(gamma), beta)),
    "beta of the channel before": _with(lambda gamma, beta: (gamma, _previous(beta))),
    "beta of the next channel": _with(lambda gamma, beta: (gamma, _next(beta))),
    "beta of channel 0": _with(lambda gamma, beta: (gamma, _first(beta))),
    "gamma squared": _with(lambda gamma, beta: (gamma**2, beta)),
    "gamma counted from one": _with(lambda gamma, beta: (1 + gamma, beta)),
    "gamma without its sign": _with(lambda gamma, beta: (np.abs(gamma), beta)),
    "beta subtracted": _with(lambda gamma, beta: (gamma, -beta)),
    "beta added twice": _with(lambda gamma, beta: (gamma, 2 * beta)),
    "beta added before gamma multiplies": _with(lambda gamma, beta: (gamma, beta * gamma)),
    "beta added before the deviation divides": lambda p: (p.d * p.gamma + p.beta) * p.inverse,
    "beta added to the convolution": lambda p: (p.d + p.beta) * p.inverse * p.gamma,
}


def _deviation(var: np.ndarray, eps: Any, outside: bool) -> np.ndarray:
    return np.sqrt(var) + eps if outside else np.sqrt(var + eps)


def _with_epsilon(change: Callable[[float], Any]) -> Steps:
    return Steps(inverse=lambda var, g: 1 / _deviation(var, change(g.eps), g.eps_outside))


_EPSILON: dict[str, Steps] = {
    "epsilon inside of the root where it belongs outside, or the reverse": Steps(
        inverse=lambda var, g: 1 / _deviation(var, g.eps, not g.eps_outside),
    ),
    "epsilon missing": _with_epsilon(lambda eps: 0.0),
    "epsilon squared": _with_epsilon(lambda eps: eps**2),
    "root of epsilon": _with_epsilon(np.sqrt),
    "epsilon added twice": _with_epsilon(lambda eps: 2 * eps),
    "epsilon subtracted": _with_epsilon(lambda eps: -eps),
    "epsilon of 1e-5 whatever was asked for": _with_epsilon(lambda eps: 1e-5),
    "epsilon of 1e-3 whatever was asked for": _with_epsilon(lambda eps: 1e-3),
    "epsilon of 1e-8 whatever was asked for": _with_epsilon(lambda eps: 1e-8),
    "variance clamped at epsilon": Steps(inverse=lambda var, g: 1 / np.sqrt(np.maximum(var, g.eps))),
    "deviation clamped at epsilon": Steps(inverse=lambda var, g: 1 / np.maximum(np.sqrt(var), g.eps)),
    "epsilon added to the inverse deviation": Steps(inverse=lambda var, g: 1 / np.sqrt(var) + g.eps),
}


def _moving(
    mean: Callable[[Parts], Any] = lambda p: p.mean,
    var: Callable[[Parts], Any] = lambda p: p.var * p.bessel,
    share: Callable[[float], float] = lambda momentum: momentum,
) -> Steps:
    return Steps(running=lambda p: moved(p, share(p.geometry.momentum), mean(p), var(p)))


def _of_an_image(g: Any) -> float:
    """Return the factor that would make the variance unbiased if a channel had only one image's elements."""
    count = g.count // g.n
    return count / (count - 1) * g.freedom / g.count if count > 1 else math.inf


def _crossed(p: Parts) -> Arrays:
    right = moved(p, p.geometry.momentum, p.mean, p.var * p.bessel)
    return {"running_mean": right["running_var"], "running_var": right["running_mean"]}


def _kept(name: str) -> Steps:
    """Return the steps that leave one of the running statistics unchanged."""

    def running(p: Parts) -> Arrays:
        right = moved(p, p.geometry.momentum, p.mean, p.var * p.bessel)
        return right | {name: p.inputs[name].astype(np.float64)}

    return Steps(running=running)


_RUNNING: dict[str, Steps] = {
    "running statistics not updated": _moving(share=lambda momentum: 0.0),
    "running_mean not updated": _kept("running_mean"),
    "running_var not updated": _kept("running_var"),
    "running statistics replaced by the batch's": _moving(share=lambda momentum: 1.0),
    "momentum of the old statistics instead of the new": _moving(share=lambda momentum: 1 - momentum),
    "momentum of 0.1 whatever was asked for": _moving(share=lambda momentum: 0.1),
    "momentum applied twice": _moving(share=lambda momentum: momentum**2),
    "running_var moved toward the biased variance": _moving(
        var=lambda p: p.var * p.geometry.freedom / p.geometry.count
    ),
    "running_var corrected for the bias of an image's P*Q elements": _moving(
        var=lambda p: p.var * _of_an_image(p.geometry)
    ),
    "running_var corrected for bias twice": _moving(
        var=lambda p: p.var * p.bessel * p.geometry.count / (p.geometry.count - 1)
    ),
    "running_var moved toward the deviation": _moving(var=lambda p: np.sqrt(p.var * p.bessel)),
    "running_var moved with epsilon in it": _moving(var=lambda p: p.var * p.bessel + p.geometry.eps),
    "running statistics moved to the next channel's": _moving(
        lambda p: _next(p.mean), lambda p: _next(p.var) * p.bessel
    ),
    "running_mean and running_var exchanged": Steps(running=_crossed),
    "running statistics returned for the batch's": Steps(
        returned=lambda p: (p.given("running_mean"), p.given("running_var"))
    ),
    "y normalised by the running statistics instead of the batch's": Steps(y=_by_running),
    "y normalised by the batch's mean and the running variance": Steps(
        y=lambda p: p.scaled(p.geometry.inverse(p.given("running_var")))
    ),
}

_INFERENCE: dict[str, Steps] = {
    "y normalised by the batch's statistics instead of the running ones": Steps(statistics=of_batch),
    "running_var taken for the deviation": Steps(inverse=lambda var, g: 1 / (var + g.eps)),
    "running_var taken for the inverse deviation": Steps(inverse=lambda var, g: var),
    "running_mean taken for running_var, and the reverse": Steps(
        statistics=lambda *arguments: of_running(*arguments)[::-1]
    ),
    "running_var corrected for bias once more": Steps(inverse=lambda var, g: g.inverse(var * g.count / (g.count - 1))),
}


def _folded(p: Parts) -> Any:
    """Compute y with the scale folded into the filters, which are then rounded to their storage format."""
    scale = p.inverse * p.gamma
    scaled = p.inputs["w"].astype(np.float64) * scale.reshape(-1, *[1] * (p.geometry.rank + 1))
    z = convolved(p.geometry, p.inputs | {"w": in_format_of(p.inputs["w"], scaled)})
    return z + p.beta - p.mean * scale


FOLDED = Mistake(
    "filters rounded to their format after they took the scale", ROUNDING, _Wrong(Steps(y=_folded)), (INFERENCE,)
)


def _merged(block: int) -> Steps:
    """Return the steps that take the mean of blocks of a channel as if the last block were full, and the variance about
    that mean."""

    def statistics(steps: Steps, z: np.ndarray, g: ConvBnGeometry, inputs: Arrays) -> Statistics:
        mean = _equal_blocks(block)(z, g)
        return mean, over_batch((z - mean) ** 2, g) * g.count / g.freedom

    return Steps(statistics=statistics)


MERGED = tuple(
    mistakes(
        TRAINING,
        {f"means of blocks of {n} merged as if the last one were full": _merged(n) for n in (32, 64, 128, 256, 512)},
    )
)

STORED = Mistake(
    "z rounded to the tensors' format before batch norm",
    ROUNDING,
    _Wrong(Steps(convolution=lambda g, inputs: in_format_of(inputs["x"], convolved(g, inputs)))),
)

NORMALISATION: tuple[Mistake, ...] = (
    *mistakes(TRAINING, _STATISTICS),
    *mistakes(EVERY, _OTHER_CHANNELS),
    *mistakes(OUTWARD, {name: Steps(y=y) for name, y in _NORMALISED.items()}),
    *mistakes((FORWARD,), {name: Steps(returned=returned) for name, returned in _RETURNED.items()}),
    *mistakes(OUTWARD, {name: Steps(y=y) for name, y in _AFFINE.items()}, affine),
    *mistakes(EVERY, _EPSILON),
    *mistakes((FORWARD,), _RUNNING, lambda g: g.running),
    *mistakes((INFERENCE,), _INFERENCE),
)
