"""Correct products that are scaled and added to a matrix: sums in every order, and the ways to apply the factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import sums_of
from conformance.operators import OPERATORS, Arrays, Operator
from conformance.operators.gemm.geometry import GemmGeometry
from conformance.operators.matmul.geometry import MatmulGeometry
from conformance.operators.matmul.operators import by_product, by_rows
from conformance.slices import Slices
from tests.calibration.conv.known_good import SUMS
from tests.calibration.kernels.emulated import Emulated
from tests.calibration.kernels.kernel import FP8, STORED, CampaignRow, KnownGood, Run, plain, stored

MATMUL = OPERATORS["matmul"]
Added = Callable[[GemmGeometry, np.ndarray, np.ndarray | None], np.ndarray]
"""(geometry, product in fp32, c in fp32 or None) -> y in fp32."""


def by_steps(g: GemmGeometry, product: np.ndarray, c: np.ndarray | None) -> np.ndarray:
    """Round each product with a factor, and their sum."""
    scaled = np.float32(g.alpha) * product
    return scaled if c is None else scaled + np.float32(g.beta) * c


def _fused(g: GemmGeometry, product: np.ndarray, c: np.ndarray | None) -> np.ndarray:
    """Round beta * c, and once more after a fused multiply-add."""
    scaled = g.alpha * product.astype(np.float64)
    y = scaled if c is None else scaled + (np.float32(g.beta) * c).astype(np.float64)
    return y.astype(np.float32)


def with_factors(run: Run, add: Added, *, scales_a: bool = False) -> Run:
    """Return the kernel that computes the product by `run`, in fp32, after or before it is scaled."""

    def kernel(operator: Operator, g: GemmGeometry, inputs: Arrays, dtype: str) -> Arrays:
        inner: Any = MatmulGeometry(g.n, g.c, g.k, g.groups)
        a = np.float32(g.alpha) * inputs["a"].astype(np.float32) if scales_a else inputs["a"]
        product = run(MATMUL, inner, {"a": a, "b": inputs["b"]}, "fp32")["y"]
        c = inputs["c"].astype(np.float32) if g.beta else None
        return stored({"y": add(replace(g, alpha=1.0) if scales_a else g, product, c)}, sums_of(dtype))

    return kernel


_WAYS = {
    "": lambda run: with_factors(run, by_steps),
    ", fused": lambda run: with_factors(run, _fused),
    ", a scaled": lambda run: with_factors(run, by_steps, scales_a=True),
}


def _begun_with_c(operator: Operator, g: GemmGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Scale c and add the terms to it, as reference BLAS does."""
    a, b = (inputs[name].astype(np.float32) for name in ("a", "b"))
    a, b = np.float32(g.alpha) * by_product(a, g.groups), b.reshape(g.groups, g.k // g.groups, -1)
    c = inputs["c"].astype(np.float32) if g.beta else np.zeros(g.y.shape, np.float32)
    y = np.float32(g.beta) * by_product(c, g.groups)
    for term in range(a.shape[2]):
        y += a[:, :, term, None] * b[:, None, :, term]
    return stored({"y": by_rows(y)}, sums_of(dtype))


SLICED = Contract(inputs=Slices(4))


def _at_random(operator: Operator, g: GemmGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Round sums in fp32 to one of the two numbers of bf16 beside them, by the distance."""
    sums = with_factors(plain, by_steps)(operator, g, inputs, "fp32")["y"]
    below = sums.view(np.uint32)
    raised = below + np.random.default_rng(sums.size).integers(0, 1 << 16, sums.shape, np.uint32)
    bits = np.where(np.isfinite(sums), raised, below) & np.uint32(0xFFFF0000)
    return stored({"y": bits.view(np.float32)}, dtype)


_SUMS: tuple[KnownGood, ...] = tuple(
    replace(kernel, name=f"gemm {kernel.name}{way}", family="gemm", operators=("gemm",), run=of(kernel.run),
            dtypes=(*STORED, *FP8) if kernel.dtypes == (*STORED, *FP8) else ("fp32",))
    for kernel in SUMS
    if "fp32" in kernel.dtypes and kernel.contract.accumulate == "auto"
    for way, of in _WAYS.items()
    if not (way == ", a scaled" and kernel.contract.inputs != "exact")
)  # fmt: skip
KNOWN_GOOD: tuple[KnownGood, ...] = (
    *_SUMS,
    replace(_SUMS[0], name="gemm in slices", contract=SLICED, run=with_factors(Emulated(SLICED), by_steps)),
    replace(
        _SUMS[0],
        name="gemm, stored at random",
        contract=Contract(stored="stochastic"),
        run=_at_random,
        dtypes=("bf16",),
    ),
    KnownGood("gemm begun with c", "gemm", _begun_with_c, operators=("gemm",), dtypes=(*STORED, *FP8)),
)

ROWS = (
    CampaignRow("gemm m7 n9 k5"),  # plain, so that sums in units of their own have one result
    CampaignRow("gemm m7 n9 k11 alpha0.5 beta-2", every=2),
    CampaignRow("gemm b3 m6 n5 k8 alpha1.5 beta0.75", every=2),
    CampaignRow("gemm m32 n30 k40 alpha-1.5 beta0", every=5),
    CampaignRow("gemm b2 m33 n31 k17 alpha15.99609375", every=10),
    CampaignRow("gemm m5 n12 k130 alpha1.00390625 beta1.00390625", every=5),
    CampaignRow("gemm m1 n12 k3 alpha-3 beta5.5", every=5),
)
MEDIUM = ("gemm m32 n30 k40 alpha-1.5 beta0", "gemm m5 n12 k130 alpha1.00390625 beta1.00390625")
"""Problems on one of which a contract that is too strict must show."""
