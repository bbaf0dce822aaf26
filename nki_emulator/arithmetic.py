"""Arithmetic of instructions that both generations of the API have, on arrays [P, F] of float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

IDENTITIES = {"add": 0.0, "multiply": 1.0, "maximum": -np.inf, "minimum": np.inf}


def scan(step: Callable[..., np.ndarray], initial: Any, *terms: np.ndarray) -> np.ndarray:
    """[P, F] of state = step(state, terms[:, i]...) from `initial`, a number or one of each partition, on."""
    result: np.ndarray = np.empty(terms[0].shape, np.float32)
    state = np.broadcast_to(np.reshape(initial, -1), (len(result),))
    for i in range(result.shape[1]):
        result[:, i] = state = step(state, *[term[:, i] for term in terms])
    return result


def bn_stats(values: np.ndarray) -> np.ndarray:
    """[P, 6]: count, mean and variance * count of the even elements of a partition, then of the odd ones, of which
    there may be none."""
    parts = []
    for half in (values[:, ::2], values[:, 1::2]):
        partitions, count = half.shape
        mean = squares = np.zeros(partitions, np.float32)
        if count:
            mean = half.sum(axis=1, dtype=np.float32) / np.float32(count)
            squares = np.square(half - mean[:, None]).sum(axis=1, dtype=np.float32)
        parts += [np.full(partitions, count, np.float32), mean, squares]
    return np.stack(parts, axis=1)


def bn_aggr(values: np.ndarray) -> np.ndarray:
    """[P, 2]: mean and variance of the elements behind F / 3 groups of (count, mean, variance * count)."""
    count, mean, squares = np.moveaxis(values.reshape(len(values), -1, 3), 2, 0)
    total = count.sum(axis=1, dtype=np.float32)
    average = (count * mean).sum(axis=1, dtype=np.float32) / total
    spread = squares + count * np.square(mean - average[:, None])
    return np.stack([average, spread.sum(axis=1, dtype=np.float32) / total], axis=1)
