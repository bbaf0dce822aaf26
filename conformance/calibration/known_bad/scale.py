"""Results that are nearly right: a gain, an offset, one element, one tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.calibration.known_bad.base import PLAIN, Mutant, exact, stored
from conformance.operators import Arrays, Operator

Deviation = Callable[[np.ndarray], np.ndarray]
"""From an exact output in float64, of any rank, to the deviating one."""

_TILE = (..., slice(0, 4), slice(0, 4))


def _with(where: Callable[[np.ndarray], Any], value: Callable[[np.ndarray], np.ndarray | float]) -> Deviation:
    """Something else at one place; `value` is computed from what stood there."""

    def change(exact: np.ndarray) -> np.ndarray:
        out = exact.copy()
        place = where(exact)
        out[place] = value(exact[place])
        return out

    return change


def _inside(array: np.ndarray) -> tuple[int, ...]:
    """An element that is neither first nor last of the tensor, where it has a third one."""
    return tuple(int(i) for i in np.unravel_index(array.size * 5 // 7, array.shape))


def _last(array: np.ndarray) -> tuple[int, ...]:
    return (-1,) * array.ndim


def _largest(array: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(np.nan_to_num(np.abs(array)).argmax(), array.shape))


def _finite_rms(array: np.ndarray) -> float:
    finite = array[np.isfinite(array)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0


def _stale_tile(array: np.ndarray) -> np.ndarray:
    """The first tile of an image (filter) still holds that of the one before."""
    out = array.copy()
    if array.ndim == 4:
        out[1:][_TILE] = array[:-1][_TILE]
    return out


def _zero_tile(array: np.ndarray) -> np.ndarray:
    out = array.copy()
    if array.ndim == 4:
        out[-1, -1][_TILE] = 0
    return out


_DEVIATIONS: dict[str, Deviation] = {
    "gain of 1e-3": lambda y: y * (1 + 1e-3),
    "gain of 2e-5": lambda y: y * (1 + 2e-5),
    "gain of 2e-6": lambda y: y * (1 + 2e-6),
    "loss of 2e-6": lambda y: y * (1 - 2e-6),
    "gain of one channel by 1e-4": _with(lambda y: (slice(None), -1) if y.ndim > 1 else -1, lambda v: v * (1 + 1e-4)),
    "offset of 1e-4 rms": lambda y: y + 1e-4 * _finite_rms(y),
    "offset of 2e-6 rms": lambda y: y + 2e-6 * _finite_rms(y),
    "sign of the result changed": lambda y: -y,
    "absolute value of the result": np.abs,
    "result clamped at zero (a fused ReLU)": lambda y: np.maximum(y, 0),
    "one element off by 0.4%": _with(_inside, lambda v: v * 1.004),
    "largest element off by 0.4%": _with(_largest, lambda v: v * 1.004),
    "last element off by 0.4%": _with(_last, lambda v: v * 1.004),
    "one element NaN": _with(_inside, lambda v: np.nan),
    "one element infinite": _with(_inside, lambda v: np.inf),
    "one element zero": _with(_inside, lambda v: 0.0),
    "last element of another": _with(_last, lambda v: v + 1),
    "one tile stale": _stale_tile,
    "one tile zero": _zero_tile,
    "all zero": np.zeros_like,
    "all NaN": lambda y: np.full_like(y, np.nan),
}


def deviating(name: str, deviation: Deviation) -> Mutant:
    """The exact result, changed and then rounded."""

    def run(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        outputs = operator.reference(geometry, inputs)
        return stored({key: deviation(array) for key, array in outputs.items()}, dtype)

    return Mutant(name, "scale", run, operators=PLAIN, base=exact)


SCALE: tuple[Mutant, ...] = tuple(deviating(name, deviation) for name, deviation in _DEVIATIONS.items())
