"""Correct scaled products: three ways to scale, each with several orders and accumulators of the sum, and its
contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import BF16, FP16, FP32, Format
from conformance.operators import Arrays, Operator
from conformance.operators.matmul_scaled.geometry import ScaledGeometry
from conformance.operators.matmul_scaled.operators import places, scaled
from tests.calibration.kernels import sums
from tests.calibration.kernels.kernel import DEFAULT, FP8, INT8, CampaignRow, KnownGood
from tests.calibration.kernels.rounding import Way as Rounding
from tests.calibration.kernels.rounding import rounded
from tests.calibration.kernels.sums import Sum, Total

NAME = ("matmul_scaled",)
Way = Callable[[Total, ScaledGeometry, Arrays], np.ndarray]
"""(sum of products, geometry, inputs) -> y before the bias is added."""
Combine = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(sums of a block [M, N], scales of its rows [M, 1], scales of its columns [N]) -> scaled sums, each in fp32."""
Add = Callable[[np.ndarray, np.ndarray], np.ndarray]


def operands_first(total: Total, g: ScaledGeometry, inputs: Arrays) -> np.ndarray:
    """Multiply operands that are scaled, and rounded, in fp32."""
    operands = scaled(g, inputs, np.float32)
    a, b = (operands[name].astype(np.float64) for name in ("a", "b"))
    return total(a[None], b.T[None], 1)[0]


def scales_first(block: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return block * (rows * columns)


def one_after_the_other(block: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return block * rows * columns


def in_fp32(y: np.ndarray, block: np.ndarray) -> np.ndarray:
    return y + block


def rounding(format: Format, way: Rounding = np.rint) -> Add:
    """Return the addition of a scaled block that rounds to `format`."""
    return lambda y, block: rounded(y.astype(np.float64) + block, format, way).astype(np.float32)


@dataclass(frozen=True, slots=True)
class ByBlocks:
    """Scales the sum of each block, and adds these up."""

    combine: Combine = scales_first
    backwards: bool = False
    add: Add = in_fp32

    def __call__(self, total: Total, g: ScaledGeometry, inputs: Arrays) -> np.ndarray:
        """Return y before the bias is added."""
        at, length = places(g), g.terms or g.c
        a, b = inputs["a"][None], inputs["b"].T[None]
        if inputs["a"].dtype != np.int8:
            a, b = a.astype(np.float32), b.astype(np.float32)
        y = np.zeros((g.n, g.k), np.float32)
        starts = [*enumerate(range(0, g.c, length))]
        for block, start in reversed(starts) if self.backwards else starts:
            terms = slice(start, start + length)
            products = total(a[..., terms], b[:, terms], 1)[0].astype(np.float32)
            scales = inputs["scale_a"][at.rows, block, None], inputs["scale_b"][at.columns, block]
            y = self.add(y, self.combine(products, *scales))
        return y


def run(way: Way, total: Total, operator: Operator, g: ScaledGeometry, inputs: Arrays, dtype: str) -> Arrays:
    y = way(total, g, inputs).astype(np.float32)
    return {"y": y + inputs["bias"] if g.bias else y}


def _known_good(name: str, way: Way, total: Total, contract: Contract = DEFAULT, **given: Any) -> KnownGood:
    described = {"dtypes": FP8, **given}
    return KnownGood(f"scaled product {name}", "matmul_scaled", partial(run, way, total), contract, NAME, **described)


_EMULATED = partial(Sum, work=np.float64)
_ORDERS: dict[str, Total] = {
    "sequential": Sum(),
    "reversed": Sum(order=sums.backwards),
    "pairwise": Sum(lanes=sums.blocks(1), combine=sums.pairwise),
    "blocked-32": Sum(lanes=sums.blocks(32)),
    "shuffled": Sum(order=sums.shuffled),
    "blas": sums.blas,
    "fma": _EMULATED(step=sums.fused_fp32),
}
_BLOCKS: dict[str, Way] = {
    "sums scaled": ByBlocks(),
    "sums scaled by one scale after the other": ByBlocks(one_after_the_other),
    "sums scaled, last block first": ByBlocks(backwards=True),
}
_WAYS: dict[str, Way] = {"operands scaled": operands_first, **_BLOCKS}
_TOWARD_ZERO = _EMULATED(step=sums.rounding_to(FP32, np.trunc))

KNOWN_GOOD: tuple[KnownGood, ...] = (
    *(_known_good(f"{name}, {order}", way, total) for name, way in _WAYS.items() for order, total in _ORDERS.items()),
    _known_good("operands scaled, whole numbers", operands_first, Sum(), dtypes=INT8, stricter=None),
    *(
        _known_good(f"{name}, int32", way, Sum(work=np.int32, held=np.int32), dtypes=INT8, stricter=None)
        for name, way in _BLOCKS.items()
    ),
    *(
        _known_good(f"{name}, toward zero", way, _TOWARD_ZERO, Contract(rounding="zero"), stricter=DEFAULT)
        for name, way in (("operands scaled", operands_first), ("sums scaled", ByBlocks(add=rounding(FP32, np.trunc))))
    ),
    *(
        _known_good(f"{name}, {format.name} accumulator", way, _EMULATED(step=sums.rounding_to(format)),
                    Contract(accumulate=format.name), stricter=DEFAULT, exempted={"wide": "operands leave its range"})
        for name, way in _WAYS.items()
        for format in (FP16, BF16)
    ),
    *(
        _known_good(f"{name}, split-k16", way, Sum(lanes=sums.always(16)), Contract(splits=16))
        for name, way in _WAYS.items()
    ),
)  # fmt: skip

_BOTH = (*FP8, *INT8)
ROWS = (
    CampaignRow("scaled m9 n10 k24", dtypes=_BOTH),
    CampaignRow("scaled m21 n18 k40 bias1 sm1 sn1", dtypes=_BOTH),
    CampaignRow("scaled m13 n19 k96 sm1 sn1 sk32", dtypes=_BOTH, every=2),
    CampaignRow("scaled m7 n70 k150 bias1 sm1 sn32 sk64", dtypes=_BOTH, every=2),
    CampaignRow("scaled m24 n24 k24 sm8 sn8 sk8", dtypes=_BOTH),
    CampaignRow("scaled m19 n23 k1 sm1 sn1", dtypes=_BOTH),
    CampaignRow("scaled m70 n60 k2", dtypes=_BOTH),
    CampaignRow("scaled m65 n31 k9 sm1 sn1 sk1", dtypes=_BOTH),
    CampaignRow("scaled m1 n65 k192 bias1 sm1 sn64 sk64", dtypes=_BOTH, every=2),
    CampaignRow("scaled m8 n24 k1056 sm1 sn1 sk32", dtypes=_BOTH, every=5),
)
MEDIUM = (
    "scaled m21 n18 k40 bias1 sm1 sn1",
    "scaled m7 n70 k150 bias1 sm1 sn32 sk64",
    "scaled m33 n40 k128 sm1 sn1 sk2",
)
"""Problems on one of which a contract that is too strict must show."""
