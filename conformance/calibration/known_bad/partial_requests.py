"""Batches without images: gradients of parameters that are not the zeros that sums of nothing are.

What is asked for alone needs a process of its own: `tests/field/partial_requests.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conformance.calibration.known_bad.base import Mutant, on_outputs
from conformance.dtypes import FORMATS
from conformance.inputs.stream import Stream

EMPTY = "partial-requests"

_LEFT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "never written (NaN)": lambda zeros: zeros + np.nan,
    "never written (what the batch before left)": lambda zeros: Stream("left").fixed_point(zeros.shape, 8, zeros.dtype),
    "divided by the images": lambda zeros: zeros / 0,
    "of one image of ones": np.ones_like,
    "one element never written": lambda zeros: np.where(np.arange(zeros.size).reshape(zeros.shape), 0, 1.0),
    "never written (subnormal)": lambda zeros: zeros + FORMATS["bf16"].smallest_subnormal,
}

PARTIAL_REQUESTS: tuple[Mutant, ...] = tuple(
    Mutant(
        f"empty batch: gradient {name}",
        EMPTY,
        on_outputs(lambda zeros, _, left=left: left(zeros)),  # type: ignore[misc]
        operators=("conv_backward_weight",),
        when=lambda geometry: geometry.n == 0,
    )
    for name, left in _LEFT.items()
)
