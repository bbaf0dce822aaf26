"""Correct convolutions with results of 8 bits: other orders of the sum, other ways to subtract the zero point, to scale
and to round."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.operators import Arrays, ConvGeometry, Operator
from conformance.operators.conv_requantized.geometry import RequantizedGeometry as Geometry
from conformance.operators.conv_requantized.steps import FORWARD, Steps, Sums, around, exact_sums
from tests.calibration.kernels.kernel import BYTES, FP8, INT8, UINT8, CampaignRow, KnownGood
from tests.calibration.kernels.lowering import lowered
from tests.calibration.kernels.requantized import Total, good, known_good

FAMILY = "conv_requantized"


def summed(total: Total) -> Sums:
    """Return an order and a format of the sum."""

    def run(g: ConvGeometry, image: np.ndarray, w: np.ndarray) -> np.ndarray:
        product = lowered(FORWARD, g, {"x": image, "w": w})
        return product.restored(total(product.a, product.b, math.prod(g.window))).astype(np.float64)

    return run


def compensated(sums: Sums) -> Callable[..., Arrays]:
    """Return a kernel that sums x as it is, with zero points as padding, less the zero point times the sum of the
    filter."""

    def run(operator: Operator, g: Geometry, inputs: Arrays, dtype: str) -> Arrays:
        filters: Any = inputs["w"].astype(np.float64).reshape(g.k, -1).sum(axis=1).reshape(-1, *(1,) * g.rank)
        steps = Steps(
            image=lambda g, x: around(g, x, g.x_zero_point),
            sums=lambda inner, image, w: sums(inner, image, w) - g.x_zero_point * filters,
        )
        return steps(operator, g, inputs, dtype)

    return run


def _as_unsigned(operator: Operator, g: Geometry, inputs: Arrays, dtype: str) -> Arrays:
    """Shift x and its zero point by 128 to unsigned numbers."""
    steps = Steps(image=lambda g, x: around(g, (x + 128) - (g.x_zero_point + 128)))
    return steps(operator, g, inputs, dtype)


def _below_24_bits(g: Geometry) -> bool:
    """Return whether fp32 holds every sum, on the distributions whose bias is no larger than sums are."""
    return bool(g.filter.size // g.k * 2**15 < 2**23)


KNOWN_GOOD: tuple[KnownGood, ...] = (
    *good(FAMILY, "requantized", Steps, summed, _below_24_bits),
    known_good(FAMILY, "requantized zero point compensated", compensated(exact_sums), BYTES),
    known_good(FAMILY, "requantized unsigned", _as_unsigned, BYTES),
)

ROWS = (
    CampaignRow("q n2 c6 h11 w8 k10 r3 s3 u2x1 p0:1x2:0 d1x2 g2 b1 zx128 zy5", dtypes=UINT8),
    CampaignRow("q n3 c16 h6 w7 k12 r1 s1 zx255 zy128", dtypes=UINT8),
    CampaignRow("q n2 c8 h9 w9 k16 r3 s3 p1 b1", dtypes=(*FP8, *BYTES)),
    CampaignRow("q n2 c6 h11 w8 k10 r3 s3 u2x1 p0:1x2:0 d1x2 g2 b1 zx-3 zy5", dtypes=INT8),
    CampaignRow("q n3 c16 h6 w7 k12 r1 s1 zx-128 zy-128", dtypes=INT8),
    CampaignRow("q n2 c5 w33 k10 s5 u2 p2 g5 b1 zx7 zy-1", dtypes=INT8),
    CampaignRow("q n2 c4 d5 h6 w7 k6 t3 r3 s3 p1 b1 zx1 zy3", dtypes=INT8),
    CampaignRow("q n2 c4 d5 h6 w7 k6 t3 r3 s3 p1", dtypes=FP8),
    CampaignRow("q n2 c64 w31 k12 s5 p2 b1", dtypes=FP8, every=2),
    CampaignRow("q n1 c515 h4 w5 k8 r3 s3 p1 b1", dtypes=(*FP8, *BYTES), every=5),
)
