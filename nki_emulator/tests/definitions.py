"""What common NKI kernels compute, in float64, and how far float32 arithmetic in any order may be from it.

Bounds are those of Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, section 3.1: n roundings in a
row change a value by at most gamma(n) of the sum of the magnitudes that went into it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Function = Callable[..., np.ndarray]
UNIT = 2.0**-24


def gamma(roundings: float | np.ndarray) -> float | np.ndarray:
    """Of so many roundings to float32."""
    return roundings * UNIT / (1 - roundings * UNIT)


@dataclass(frozen=True)
class Definition:
    """A function of float64 arrays, and the bound on each element of its result in float32; no bound is equality."""

    expected: Function
    bound: Function | None = None


def rounded_bound(bound: np.ndarray, expected: np.ndarray, unit: float) -> np.ndarray:
    """With one more rounding to a format of this unit roundoff."""
    return np.asarray(bound + unit * (np.abs(expected) + bound))


def _windows(x: np.ndarray, side: int) -> np.ndarray:
    channels, height, width = x.shape
    return x.reshape(channels, height // side, side, width // side, side)


def _mean(x: np.ndarray, side: int) -> np.ndarray:
    return np.asarray(_windows(x, side).mean(axis=(2, 4)))


AVERAGE_POOL = Definition(_mean, lambda x, side: gamma(side * side + 1) * _mean(np.abs(x), side))
"""side^2 - 1 additions, the reciprocal and the product."""
MAX_POOL = Definition(lambda x, side: _windows(x, side).max(axis=(2, 4)))
PRODUCT = Definition(lambda x, y: x.T @ y, lambda x, y: gamma(len(x)) * (np.abs(x).T @ np.abs(y)))
PRODUCT_OF_ROWS = Definition(lambda x, y: x @ y, lambda x, y: gamma(len(y)) * (np.abs(x) @ np.abs(y)))
SUM = Definition(lambda x, y: x + y, lambda x, y: gamma(1) * np.abs(x + y))
EXPONENTIAL = Definition(np.exp, lambda x: gamma(2) * np.exp(x))
COPY = Definition(lambda x: x)
TRANSPOSE = Definition(np.transpose)


def _transposed(x: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    return x.reshape(len(x), *shape).transpose(0, 2, 1).reshape(x.shape)


TRANSPOSE_FREE = Definition(_transposed)


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _softmax_bound(x: np.ndarray) -> np.ndarray:
    """Rounding x - max changes exp by that much of |x - max|; then two roundings of it, the sum and the quotient."""
    reach = np.abs(x - x.max(axis=1, keepdims=True)).max(axis=1, keepdims=True)
    return gamma(2 * reach + x.shape[1] + 6) * _softmax(x)


SOFTMAX = Definition(_softmax, _softmax_bound)


def _rms_norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.sqrt(np.square(x).mean(axis=1, keepdims=True)) * gain)


RMS_NORM = Definition(_rms_norm, lambda x, gain: gamma(x.shape[1] + 8) * np.abs(_rms_norm(x, gain)))
"""The mean of squares is right to gamma(columns + 2), its root to half of it, with six roundings after that."""


def _layer_norm(x: np.ndarray, epsilon: float, gain: np.ndarray, shift: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=1, keepdims=True)
    return np.asarray(centred / np.sqrt(x.var(axis=1, keepdims=True) + epsilon) * gain + shift)


def _layer_norm_bound(x: np.ndarray, epsilon: float, gain: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """The mean is off by gamma(columns + 4) of mean |x|, the variance by its own roundings and twice that shift.

    Covers a variance of distances as well as mean(x^2) - mean(x)^2, whose roundings are of mean(x^2).
    """
    mean, count = x.mean(axis=1, keepdims=True), x.shape[1]
    centred, variance = np.abs(x - mean), x.var(axis=1, keepdims=True)
    off = gamma(count + 4) * np.abs(x).mean(axis=1, keepdims=True)
    spread = gamma(count + 8) * 2 * np.square(x).mean(axis=1, keepdims=True)
    spread = spread + 2 * off * np.abs(x).mean(axis=1, keepdims=True) + off**2
    relative = spread / (variance + epsilon) + gamma(8)
    scaled = np.abs(gain) / np.sqrt(variance + epsilon)
    bound = scaled * (off * (1 + relative) + centred * relative) + gamma(4) * (scaled * centred + np.abs(shift))
    return np.asarray(bound)


LAYER_NORM = Definition(_layer_norm, _layer_norm_bound)


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.asarray(_softmax(q.T @ k) @ v.T)


def _attention_bound(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Scores are off by gamma(depth) of |q| |k|, powers by twice the worst of it, and the rest is a softmax."""
    scores, depth = q.T @ k, len(q)
    off = 2 * gamma(depth) * (np.abs(q).T @ np.abs(k)).max(axis=1, keepdims=True)
    reach = (scores.max(axis=1) - scores.min(axis=1))[:, None]
    relative = np.expm1(off) + gamma(2 * reach + 2 * scores.shape[1] + 8)
    return np.asarray(relative * (_softmax(scores) @ np.abs(v).T))


ATTENTION = Definition(_attention, _attention_bound)
"""q, k and v are [depth, positions]; the result is [positions, depth]."""


def _state_space(delta: np.ndarray, u: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """h = exp(delta a) h + delta u b, y = sum of h c: delta and u [N, C, T], a [C, S], b and c [N, S, T]."""
    y = np.zeros(delta.shape)
    state = np.zeros((len(delta), *a.shape))
    for t in range(delta.shape[2]):
        step = delta[:, :, t, None]
        state = np.exp(step * a) * state + step * u[:, :, t, None] * b[:, None, :, t]
        y[:, :, t] = (state * c[:, None, :, t]).sum(axis=2)
    return y


def _state_space_bound(delta: np.ndarray, u: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """A step rounds delta a (felt as that much of itself), the power twice, a product and a sum."""
    steps = delta.shape[2] * (4 + np.abs(delta).max() * np.abs(a).max())
    return gamma(steps + a.shape[1] + 4) * _state_space(delta, np.abs(u), a, np.abs(b), np.abs(c))


STATE_SPACE = Definition(_state_space, _state_space_bound)
"""With delta of at least 0."""
EVEN_AND_ODD = (Definition(lambda x: x[:, 0::2]), Definition(lambda x: x[:, 1::2]))
