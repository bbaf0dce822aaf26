"""Correct convolutions with results of 8 bits: other orders of the sum, other ways to subtract the zero point, to scale
and to round."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import FP32
from conformance.operators import Arrays, ConvGeometry, Operator
from conformance.operators.conv_requantized.geometry import HIGHEST, LOWEST
from conformance.operators.conv_requantized.geometry import RequantizedGeometry as Geometry
from conformance.operators.conv_requantized.operators import TIES
from conformance.operators.conv_requantized.steps import (
    FORWARD,
    Steps,
    Sums,
    around,
    as_defined,
    exact_sums,
    exactly,
    not_saturated,
    saturated,
)
from tests.calibration.kernels import sums
from tests.calibration.kernels.kernel import DEFAULT, FP8, INT8, CampaignRow, KnownGood
from tests.calibration.kernels.lowering import lowered
from tests.calibration.kernels.sums import Sum

OPERATOR = ("conv_requantized",)
BOTH = (*INT8, *FP8)
_EMULATED = partial(Sum, work=np.float64)
_WHOLE = partial(Sum, work=np.int32, held=np.int32)

Total = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


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


def _known_good(name: str, run: Any, dtypes: tuple[str, ...], contract: Contract = DEFAULT, **given: Any) -> KnownGood:
    return KnownGood(
        f"requantized {name}", "conv_requantized", run, contract, OPERATOR, dtypes=dtypes, stricter=None, **given
    )


def _scaled_in_two_steps(g: Geometry, sums: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Scale by a significand in fp32 first, then by a power of two."""
    significand, power = np.frexp(scale)
    return np.ldexp((sums.astype(np.float32) * significand.astype(np.float32)).astype(np.float64), power)


def _as_unsigned(operator: Operator, g: Geometry, inputs: Arrays, dtype: str) -> Arrays:
    """Shift x and its zero point by 128 to unsigned numbers."""
    steps = Steps(image=lambda g, x: around(g, (x + 128) - (g.x_zero_point + 128)))
    return steps(operator, g, inputs, dtype)


def _by_magic_number(g: Geometry, values: np.ndarray, dtype: str) -> np.ndarray:
    """Round by adding and subtracting a number in fp32 that leaves no bit behind the point, as XNNPACK does."""
    magic = np.float32(1.5 * 2**23)
    limited = np.clip(values, LOWEST - g.y_zero_point, HIGHEST - g.y_zero_point).astype(np.float32)
    return ((limited + magic) - magic).astype(np.float64) + g.y_zero_point


def _through_fp32(g: Geometry, values: np.ndarray, dtype: str) -> np.ndarray:
    return as_defined(g, values.astype(np.float32).astype(np.float64), dtype)


def _below_24_bits(g: Geometry) -> bool:
    """Return whether fp32 holds every sum, on the distributions whose bias is no larger than sums are."""
    return bool(g.filter.size // g.k * 2**15 < 2**23)


KNOWN_GOOD: tuple[KnownGood, ...] = (
    _known_good("exact sums", Steps(), BOTH),
    _known_good("scaled in fp64", Steps(scaled=exactly, stored=_through_fp32), BOTH),
    _known_good("scaled in two steps", Steps(scaled=_scaled_in_two_steps), BOTH),
    _known_good("int32 sequential", Steps(sums=summed(_WHOLE())), INT8),
    _known_good("int32 blocked", Steps(sums=summed(_WHOLE(lanes=sums.blocks(32)))), INT8),
    _known_good("int32 reversed", Steps(sums=summed(_WHOLE(order=sums.backwards))), INT8),
    _known_good(
        "fp32 sums below 2^24", Steps(sums=summed(Sum())), INT8, when=_below_24_bits,
        exempted={"cancelled": "sums are larger there"},
    ),
    _known_good("zero point compensated", compensated(exact_sums), INT8),
    _known_good("unsigned", _as_unsigned, INT8),
    _known_good("rounded by a magic number", Steps(stored=_by_magic_number), INT8),
    _known_good("ties away", Steps(stored=saturated(TIES["away"])), INT8, Contract(ties="away")),
    _known_good("ties up", Steps(stored=saturated(TIES["up"])), INT8, Contract(ties="up")),
    _known_good("fp32 sequential", Steps(sums=summed(Sum())), FP8),
    _known_good("fp32 pairwise", Steps(sums=summed(Sum(lanes=sums.blocks(1), combine=sums.pairwise))), FP8),
    _known_good("fp32 shuffled", Steps(sums=summed(Sum(order=sums.shuffled))), FP8),
    _known_good(
        "fp32 toward zero", Steps(sums=summed(_EMULATED(step=sums.rounding_to(FP32, np.trunc)))), FP8,
        Contract(rounding="zero"),
    ),
    _known_good("not saturating", Steps(stored=not_saturated), FP8, Contract(overflow="nonfinite")),
)  # fmt: skip

ROWS = (
    CampaignRow("q n2 c8 h9 w9 k16 r3 s3 p1 b1", dtypes=(*FP8, *INT8)),
    CampaignRow("q n2 c6 h11 w8 k10 r3 s3 u2x1 p0:1x2:0 d1x2 g2 b1 zx-3 zy5", dtypes=INT8),
    CampaignRow("q n3 c16 h6 w7 k12 r1 s1 zx-128 zy-128", dtypes=INT8),
    CampaignRow("q n2 c5 w33 k10 s5 u2 p2 g5 b1 zx7 zy-1", dtypes=INT8),
    CampaignRow("q n2 c4 d5 h6 w7 k6 t3 r3 s3 p1 b1 zx1 zy3", dtypes=INT8),
    CampaignRow("q n2 c4 d5 h6 w7 k6 t3 r3 s3 p1", dtypes=FP8),
    CampaignRow("q n2 c64 w31 k12 s5 p2 b1", dtypes=FP8, every=2),
    CampaignRow("q n1 c515 h4 w5 k8 r3 s3 p1 b1", dtypes=(*FP8, *INT8), every=5),
)
