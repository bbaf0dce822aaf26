"""Legitimate kernels of max pooling: orders of the comparison, and orders and formats of the gradients' sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import BF16
from conformance.operators import MAXIMA, Arrays, Operator
from conformance.operators.max_pool.geometry import MaxPoolGeometry
from conformance.operators.max_pool.operators import chosen
from conformance.operators.pooling import covered
from conformance.operators.spatial import cropped, padded, taps
from tests.calibration.kernels.kernel import DEFAULT, STORED, CampaignRow, KnownGood
from tests.calibration.kernels.rounding import rounded, stored

FORWARD, BACKWARD = MAXIMA
Keep = Callable[[np.ndarray, str], np.ndarray]
"""(sum, storage dtype) -> the sum, as the accumulator keeps it."""


def _separable(operator: Operator, g: MaxPoolGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Return maxima of rows, then of columns, then of planes."""
    image = padded(inputs["x"], g.overhang, np.dtype(np.float64), -np.inf)
    axes = [*enumerate(zip(g.output_size, g.stride, g.dilation, g.window, strict=True), 2)]
    for axis, (count, u, d, extent) in reversed(axes):
        image = np.max([image.take(np.arange(count) * u + tap * d, axis) for tap in range(extent)], axis=0)
    return {"y": stored(image, dtype)}


def _backwards(operator: Operator, g: MaxPoolGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Compare from the last position of the window to the first."""
    image = padded(inputs["x"], g.overhang, np.dtype(np.float64), -np.inf)
    y = np.full(g.y.shape, -np.inf)
    for seen in list(taps(g))[::-1]:
        y = np.maximum(image[seen], y)
    return {"y": stored(y, dtype)}


def _in_float32(total: np.ndarray, dtype: str) -> np.ndarray:
    return total.astype(np.float32).astype(np.float64)


def _window_by_window(keep: Keep = _in_float32, order: int = 1) -> Callable[[Operator, Any, Arrays, str], Arrays]:
    """Return a kernel that adds each window's gradient at its argmax: windows in row-major order, or from the last
    one."""

    def run(operator: Operator, g: MaxPoolGeometry, inputs: Arrays, dtype: str) -> Arrays:
        image = padded(inputs["x"], g.overhang, np.dtype(np.float64), -np.inf)
        dy = inputs["dy"].astype(np.float64)
        out = padded(np.zeros(g.x.shape), g.overhang, np.dtype(np.float64))
        images, channels = np.ogrid[: g.n, : g.c]
        inside = padded(np.ones(g.size), g.overhang, np.dtype(bool))
        for place, seen in list(covered(g))[::order]:
            within = np.flatnonzero(inside[seen])  # padding is never chosen, not by a window of minus infinities either
            found = within[image[seen].reshape(g.n, g.c, -1)[..., within].argmax(axis=2)]
            at = chosen(g, found, (images, channels, *place[1:]))
            out[at] = keep(out[at] + dy[place], dtype)
        return {"dx": stored(cropped(out, g.overhang, g.size), dtype)}

    return run


def _known_good(
    name: str,
    run: Any,
    operators: tuple[str, ...],
    contract: Contract = DEFAULT,
    stricter: Contract | None = None,
    dtypes: tuple[str, ...] = STORED,
) -> KnownGood:
    return KnownGood(f"max-pool-{name}", "max_pool", run, contract, operators, dtypes=dtypes, stricter=stricter)


_FP64 = Contract(accumulate="fp64")
_IN_BF16 = _window_by_window(lambda total, dtype: rounded(total, BF16))

KNOWN_GOOD: tuple[KnownGood, ...] = (
    # a kernel that selects an element adds nothing, and meets the strictest contract
    _known_good("rows-then-columns", _separable, (FORWARD,), _FP64),
    _known_good("from-the-last", _backwards, (FORWARD,), _FP64),
    _known_good("window-by-window", _window_by_window(), (BACKWARD,), stricter=_FP64),
    _known_good("last-window-first", _window_by_window(order=-1), (BACKWARD,), stricter=_FP64),
    _known_good("fp64", _window_by_window(lambda total, dtype: total), (BACKWARD,), _FP64),
    _known_good("storage-bf16", _IN_BF16, (BACKWARD,), Contract(accumulate="bf16"), DEFAULT, ("bf16",)),
    _known_good("bf16", _IN_BF16, (BACKWARD,), Contract(accumulate="bf16"), DEFAULT, ("fp32",)),
)

ROWS = (
    CampaignRow("maxpool n2 c4 h8 w6 r2 s2"),
    CampaignRow("maxpool n2 c5 h9 w10 r3 s3 u2 p1 ceil1"),
    CampaignRow("maxpool n2 c3 h9 w9 r3 s3 u1 p1:2x0:1 d2x1", every=2),
    CampaignRow("maxpool n2 c8 h13 w13 r5 s5 u1 p2", ("max_pool_backward",), every=5),
    CampaignRow("maxpool n2 c5 w19 s3 u2 p1"),
    CampaignRow("maxpool n2 c8 w40 s9 u1 p4", every=5),
    CampaignRow("maxpool n2 c3 d5 h6 w7 t2 r3 s3 u1x2x2 p1 dil2x1x1 ceil1", every=2),
    CampaignRow("maxpool n2 c4 d7 h8 w9 t3 r3 s4 u1 p1", ("max_pool_backward",), every=5),
)
MEDIUM = ("maxpool n2 c8 h13 w13 r5 s5 u1 p2",)
"""Problems on one of which a contract that is too strict must show."""
