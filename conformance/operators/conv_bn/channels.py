"""[N, K, P, Q] by channel, and back."""

from __future__ import annotations

import numpy as np

from conformance.operators.conv.geometry import ConvGeometry


def by_channel(image: np.ndarray) -> np.ndarray:
    """[N, K, P, Q] as [K, M]."""
    return np.ascontiguousarray(image.swapaxes(0, 1)).reshape(image.shape[1], -1)


def as_image(channels: np.ndarray, geometry: ConvGeometry) -> np.ndarray:
    """[K, M] as [N, K, P, Q]."""
    n, k, *size = geometry.y.shape
    return np.ascontiguousarray(channels.reshape(k, n, *size).swapaxes(0, 1))


def places(image: np.ndarray) -> tuple[int, ...]:
    """All axes of [N, K, P, Q] but the channels'."""
    return (0, *range(2, image.ndim))


def column(values: np.ndarray | None) -> np.ndarray | float:
    """A parameter [K] as [K, 1] in float64; one where there is none."""
    return 1.0 if values is None else values.astype(np.float64)[:, None]
