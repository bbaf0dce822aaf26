"""Mean and variance of a channel, and what else batch normalisation makes of it, in the ways that kernels do it."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from conformance.operators.known_kernels.sums import pairwise as tree

Moments = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Elements [K, M] -> mean [K] and sum of squared distances from it [K], in the dtype of the elements."""
Reduce = Callable[[np.ndarray], np.ndarray]
"""[K, M] -> sums over the last axis, in the dtype of the elements."""

Group = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Count, mean, sum of squares."""


def in_turn(values: np.ndarray) -> np.ndarray:
    """One after the other."""
    return np.cumsum(values, axis=-1, dtype=values.dtype)[..., -1]


def in_pairs(values: np.ndarray) -> np.ndarray:
    """A tree."""
    return tree(np.moveaxis(values, -1, 0))


def in_float64(values: np.ndarray) -> np.ndarray:
    """A wider accumulator, rounded at the end."""
    return values.sum(axis=-1, dtype=np.float64).astype(values.dtype)


def shuffled(values: np.ndarray) -> np.ndarray:
    """As atomics arrive."""
    return in_turn(values[..., np.random.default_rng(values.shape[-1]).permutation(values.shape[-1])])


def two_passes(total: Reduce = in_turn) -> Moments:
    """The mean, then distances from it."""

    def moments(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean = total(z) / z.dtype.type(z.shape[-1])
        d = z - mean[:, None]
        return mean, total(d * d)

    return moments


CENTRED = two_passes()
"""One element after the other, twice."""


def corrected(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two passes, less what the mean's own error makes of the squares (Chan, Golub and LeVeque 1983, equation 1.7)."""
    count = z.dtype.type(z.shape[-1])
    mean = in_turn(z) / count
    d = z - mean[:, None]
    rest = in_turn(d)
    return mean, in_turn(d * d) - rest * rest / count


def welford(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One element after the other (Welford 1962)."""
    mean, squares = np.zeros_like(z[:, 0]), np.zeros_like(z[:, 0])
    for place, element in enumerate(z.T):
        before = element - mean
        mean = mean + before / z.dtype.type(place + 1)
        squares = squares + before * (element - mean)
    return mean, squares


def chan(size: int, total: Reduce = in_turn) -> Moments:
    """Blocks of `size` in two passes each, combined in turn (Chan, Golub and LeVeque 1983, equation 2.1)."""

    def moments(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        blocks = np.array_split(z, -(-z.shape[-1] // size), axis=-1)
        groups = [(np.asarray(block.shape[-1], z.dtype), *two_passes(total)(block)) for block in blocks]
        _, mean, squares = reduce(combined, groups)
        return mean, squares

    return moments


def combined(a: Group, b: Group) -> Group:
    """Two groups as one."""
    count, apart = a[0] + b[0], b[1] - a[1]
    return count, a[1] + apart * (b[0] / count), a[2] + b[2] + apart * apart * (a[0] * (b[0] / count))


def shifted(total: Reduce = in_turn) -> Moments:
    """Raw moments of the distances from the first element."""

    def moments(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, squares = raw(total)(z - z[:, :1])
        return z[:, 0] + mean, squares

    return moments


def raw(total: Reduce = in_turn) -> Moments:
    """The mean of squares less the square of the mean, which rounding may bring below zero."""

    def moments(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count = z.dtype.type(z.shape[-1])
        mean = total(z) / count
        return mean, np.maximum(total(z * z) / count - mean * mean, 0) * count

    return moments


Inverse = Callable[[np.ndarray, np.ndarray, bool], np.ndarray]
"""(variance, epsilon, whether it is outside of the root) -> inverse deviation."""


def divided(var: np.ndarray, eps: np.ndarray, outside: bool) -> np.ndarray:
    """A root and a division, each rounded."""
    one = var.dtype.type(1)
    return one / (np.sqrt(var) + eps) if outside else one / np.sqrt(var + eps)


def rsqrt(var: np.ndarray, eps: np.ndarray, outside: bool) -> np.ndarray:
    """A correctly rounded inverse root, where the convention has one."""
    if outside:
        return divided(var, eps, outside)
    return (1 / np.sqrt((var + eps).astype(np.float64))).astype(var.dtype)
