"""Correct products with weights of 4 bits: three ways to use scales and zero points, each with several orders and
accumulators of the sum, and its contract."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import BF16, FP16, FP32, STORAGE
from conformance.operators import Arrays, Operator
from conformance.operators.matmul_int4.geometry import Int4Geometry
from conformance.operators.matmul_int4.operators import weights, zeros
from tests.calibration.kernels import sums
from tests.calibration.kernels.kernel import DEFAULT, CampaignRow, KnownGood
from tests.calibration.kernels.sums import Sum, Total

NAME = ("matmul_int4",)
DTYPES = ("fp32", "bf16", "fp16")
Way = Callable[[Total, Int4Geometry, Arrays], np.ndarray]
"""(sum of products, geometry, inputs) -> y before the bias is added."""


def _times(total: Total, a: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Multiply a [M, K] by columns [N, K]."""
    return total(a.astype(np.float32)[None], columns.astype(np.float32).T[None], 1)[0].astype(np.float32)


def weights_first(total: Total, g: Int4Geometry, inputs: Arrays) -> np.ndarray:
    """Multiply by weights that are rounded to fp32."""
    return _times(total, inputs["a"], weights(g, inputs, np.float32).values)


def weights_in(stored: str) -> Way:
    """Return the way that rounds weights to 16 bits."""

    def way(total: Total, g: Int4Geometry, inputs: Arrays) -> np.ndarray:
        narrow = weights(g, inputs, np.float32).values.astype(STORAGE[stored])
        return _times(total, inputs["a"], narrow)

    return way


def two_products(total: Total, g: Int4Geometry, inputs: Arrays) -> np.ndarray:
    """Multiply by numbers times scales less zero points times scales, each rounded to fp32."""
    numbers, scale, zero = weights(g, inputs, np.float32)
    return _times(total, inputs["a"], numbers * scale - zero * scale)


def sums_of_blocks(total: Total, g: Int4Geometry, inputs: Arrays) -> np.ndarray:
    """Take the sum of the zero points off the sum of each block, and scale it."""
    y, length = np.zeros((g.n, g.k), np.float32), g.block or g.c
    numbers, scale, zero = inputs["b"].astype(np.float32), inputs["scale"].astype(np.float32), zeros(g, inputs, "f4")
    for block, start in enumerate(range(0, g.c, length)):
        terms = slice(start, start + length)
        a = inputs["a"][:, terms].astype(np.float32)
        of_numbers = _times(total, a, numbers[:, terms]) * scale[:, block]
        of_zeros = _times(total, a, np.ones((1, a.shape[1]))) * (zero[:, block] * scale[:, block])
        y = y + of_numbers - of_zeros
    return y


def run(way: Way, total: Total, operator: Operator, g: Int4Geometry, inputs: Arrays, dtype: str) -> Arrays:
    y = way(total, g, inputs).astype(np.float32)
    y = y + inputs["bias"].astype(np.float32) if g.bias else y
    return {"y": y.astype(STORAGE[dtype])}


def _known_good(name: str, way: Way, total: Total, contract: Contract = DEFAULT, **more: Any) -> KnownGood:
    described = {"dtypes": DTYPES, **more}
    return KnownGood(f"4-bit product {name}", "matmul_int4", partial(run, way, total), contract, NAME, **described)


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
_WAYS: dict[str, Way] = {
    "weights first": weights_first,
    "numbers less zero points, each scaled": two_products,
    "sums of blocks scaled": sums_of_blocks,
}

KNOWN_GOOD: tuple[KnownGood, ...] = (
    *(_known_good(f"{name}, {order}", way, total) for name, way in _WAYS.items() for order, total in _ORDERS.items()),
    *(
        _known_good(f"weights in {stored}, {order}", weights_in(stored), total, Contract(inputs=stored),
                    dtypes=("fp32", stored), stricter=DEFAULT)
        for stored in ("bf16", "fp16")
        for order, total in _ORDERS.items()
    ),
    *(
        _known_good(f"{name}, toward zero", way, _EMULATED(step=sums.rounding_to(FP32, np.trunc)),
                    Contract(rounding="zero"), dtypes=("fp32",), stricter=DEFAULT)
        for name, way in (("weights first", weights_first),)
    ),
    *(
        _known_good(f"weights first, {format.name} accumulator", weights_first,
                    _EMULATED(step=sums.rounding_to(format)), Contract(accumulate=format.name), dtypes=(format.name,),
                    stricter=DEFAULT)
        for format in (FP16, BF16)
    ),
    *(
        _known_good(f"{name}, split-k16", way, Sum(lanes=sums.always(16)), Contract(splits=16))
        for name, way in _WAYS.items()
    ),
)  # fmt: skip

ROWS = (
    CampaignRow("int4 m9 n10 k64 bias1 zp1 block16", dtypes=DTYPES),
    CampaignRow("int4 m7 n11 k64 block16", dtypes=DTYPES),
    CampaignRow("int4 m8 n9 k40 bias1 zp1", dtypes=DTYPES),
    CampaignRow("int4 m6 n13 k75 bias1 zp1 block16", dtypes=DTYPES, every=2),
    CampaignRow("int4 m1 n33 k128 bias1 zp1 block32", dtypes=DTYPES),
    CampaignRow("int4 m5 n7 k1 zp1 block16", dtypes=DTYPES),
    CampaignRow("int4 m67 n33 k64 zp1 block32", dtypes=DTYPES, every=2),
    CampaignRow("int4 m40 n50 k2 zp1", dtypes=DTYPES),
    CampaignRow("int4 m8 n40 k1056 bias1", dtypes=DTYPES, every=5),
)
MEDIUM = (
    "int4 m6 n13 k75 bias1 zp1 block16",
    "int4 m7 n70 k150 bias1 zp1 block64",
    "int4 m33 n40 k128 zp1 block16",
)
"""Problems on one of which a contract that is too strict must show."""
