"""Results that are nearly right: a gain, an offset, one element, one tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.calibration.kernels.kernel import PLAIN, Mutant, exact, on_outputs

Deviation = Callable[[np.ndarray, Any], np.ndarray]
"""(exact output in float64, of any rank, and the geometry) -> the deviating output."""

_TILE = slice(0, 4)
"""Extent of the first tile in each of the last two axes, or in the only one."""


def times(factor: float) -> Deviation:
    return lambda y, _: y * factor


def with_(where: Callable[[np.ndarray], Any], value: Callable[[np.ndarray], np.ndarray | float]) -> Deviation:
    """Return a change of one place; `value` is computed from the old element."""

    def change(exact: np.ndarray, geometry: Any) -> np.ndarray:
        out = exact.copy()
        place = where(exact)
        out[place] = value(exact[place])
        return out

    return change


def inside(array: np.ndarray) -> tuple[Any, ...]:
    """Return the place of an element that is neither first nor last of the tensor, where it has a third one."""
    return np.unravel_index(array.size * 5 // 7, array.shape)


def largest(array: np.ndarray) -> tuple[Any, ...]:
    return np.unravel_index(np.nan_to_num(np.abs(array)).argmax(), array.shape)


def last(array: np.ndarray) -> tuple[Any, ...]:
    return (-1,) * array.ndim


def _offset(share: float) -> Deviation:
    """Add a share of the finite elements' rms."""

    def change(y: np.ndarray, geometry: Any) -> np.ndarray:
        finite = y[np.isfinite(y)]
        return y + share * (np.sqrt(np.mean(np.square(finite))) if finite.size else 0.0)

    return change


def _first_tile(rank: int) -> tuple[Any, ...]:
    return (..., *(_TILE,) * min(rank, 2))


def _stale_tile(array: np.ndarray, geometry: Any) -> np.ndarray:
    """Let the first tile of an image (filter) still hold that of the one before; of a matrix, the tile beside it."""
    out = array.copy()
    if array.ndim == 2:
        beside = out[_TILE, 4:8]
        beside[...] = array[_TILE, : beside.shape[1]]
    elif array.ndim > 2:
        tile = _first_tile(array.ndim - 2)
        out[1:][tile] = array[:-1][tile]
    return out


def _zero_tile(array: np.ndarray, geometry: Any) -> np.ndarray:
    out = array.copy()
    if array.ndim == 2:
        out[-4:, -4:] = 0
    elif array.ndim > 2:
        out[-1, -1][_first_tile(array.ndim - 2)] = 0
    return out


DEVIATIONS: dict[str, Deviation] = {
    "gain of 1e-3": times(1 + 1e-3),
    "gain of 2e-5": times(1 + 2e-5),
    "gain of 2e-6": times(1 + 2e-6),
    "loss of 2e-6": times(1 - 2e-6),
    "gain of one channel by 1e-4": with_(lambda y: (slice(None), -1) if y.ndim > 1 else -1, lambda v: v * (1 + 1e-4)),
    "offset of 1e-4 rms": _offset(1e-4),
    "offset of 2e-6 rms": _offset(2e-6),
    "sign of the result changed": lambda y, _: -y,
    "absolute value of the result": lambda y, _: np.abs(y),
    "result clamped at zero (a fused ReLU)": lambda y, _: np.maximum(y, 0),
    "one element off by 0.4%": with_(inside, lambda v: v * 1.004),
    "largest element off by 0.4%": with_(largest, lambda v: v * 1.004),
    "last element off by 0.4%": with_(last, lambda v: v * 1.004),
    "one element NaN": with_(inside, lambda v: np.nan),
    "one element infinite": with_(inside, lambda v: np.inf),
    "one element zero": with_(inside, lambda v: 0.0),
    "last element of another": with_(last, lambda v: v + 1),
    "one tile stale": _stale_tile,
    "one tile zero": _zero_tile,
    "all zero": lambda y, _: np.zeros_like(y),
    "all NaN": lambda y, _: np.full_like(y, np.nan),
}


KNOWN_BAD: tuple[Mutant, ...] = tuple(
    Mutant(name, "scale", on_outputs(deviation), operators=PLAIN, base=exact) for name, deviation in DEVIATIONS.items()
)
"""Kernels that change the exact result and then round it."""
