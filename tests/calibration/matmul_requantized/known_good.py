"""Correct matrix products with results of 8 bits: other orders of the sum, other ways to subtract the zero points, to
scale and to round."""

from __future__ import annotations

import numpy as np

from conformance.operators import OPERATORS
from conformance.operators.matmul_requantized.geometry import RequantizedMatmulGeometry as Geometry
from conformance.operators.matmul_requantized.steps import (
    Read,
    Steps,
    Sums,
    as_it_is,
    exact_sums,
    of_columns,
    of_rows,
    of_terms,
)
from tests.calibration.kernels.kernel import BYTES, FP8, INT8, UINT8, CampaignRow, KnownGood
from tests.calibration.kernels.lowering import lowered
from tests.calibration.kernels.requantized import Total, good, known_good

FAMILY = "matmul_requantized"


def summed(total: Total) -> Sums:
    """Return an order and a format of the sum."""

    def run(g: Geometry, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        product = lowered(OPERATORS["matmul"], g, {"a": a, "b": b})
        return product.restored(total(product.a, product.b, 1)).astype(np.float64)

    return run


def compensated(sums: Sums) -> Steps:
    """Return a kernel that multiplies a and b as they are, and takes the zero points off by sums of columns and of
    rows."""

    def run(g: Geometry, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return sums(g, a, b) - of_columns(g, b) - of_rows(g, a) + of_terms(g, g.c // g.groups)

    return Steps(rows=as_it_is, columns=as_it_is, sums=run)


def _half_compensated(g: Geometry, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Take the zero point of a off by sums of columns of a b without its own: weights are prepared once."""
    return exact_sums(g, a, b) - of_columns(g, b)


def _as_unsigned(tensor: str) -> Read:
    """Shift an operand and its zero point by 128 to unsigned numbers."""
    return lambda g, array: (array + 128) - (g.zero_points[tensor] + 128)


def _below_24_bits(g: Geometry) -> bool:
    """Return whether fp32 holds every sum, on the distributions whose bias is no larger than sums are."""
    return bool(g.c // g.groups * 2**16 < 2**23)


KNOWN_GOOD: tuple[KnownGood, ...] = (
    *good(FAMILY, "requantized product", Steps, summed, _below_24_bits),
    known_good(FAMILY, "requantized product, zero points compensated", compensated(exact_sums), BYTES),
    known_good(
        FAMILY, "requantized product, zero point of a compensated", Steps(rows=as_it_is, sums=_half_compensated), BYTES
    ),
    known_good(
        FAMILY, "requantized product, a and b unsigned", Steps(rows=_as_unsigned("a"), columns=_as_unsigned("b")), BYTES
    ),
)  # fmt: skip

ROWS = (
    CampaignRow("qmm m11 n10 k27 bias1 za128 zb5 zy5", dtypes=UINT8),
    CampaignRow("qmm m13 n12 k16 za255 zb-1 zy128", dtypes=UINT8),
    CampaignRow("qmm m9 n16 k72 bias1", dtypes=(*FP8, *BYTES)),
    CampaignRow("qmm m11 n10 k27 bias1 za-3 zb5 zy5", dtypes=INT8),
    CampaignRow("qmm m13 n12 k16 za-128 zb-1 zy-128", dtypes=INT8),
    CampaignRow("qmm b3 m7 n8 k10 za7 zb-9 zy-1", dtypes=INT8),
    CampaignRow("qmm b3 m7 n8 k10", dtypes=FP8),
    CampaignRow("qmm m6 n12 k320 bias1", dtypes=FP8, every=2),
    CampaignRow("qmm m4 n8 k4635 bias1", dtypes=(*FP8, *BYTES), every=5),
    CampaignRow("qmm m4 n8 k4635 bias1 za2 zb-3", dtypes=INT8, every=5),
)
