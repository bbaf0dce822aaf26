"""Correct matrix products: the same sums as those of convolution, each with its contract."""

from __future__ import annotations

from dataclasses import replace

from conformance.operators.table import names_of
from tests.calibration.conv.known_good import SUMS
from tests.calibration.kernels.kernel import CampaignRow, KnownGood

PRODUCTS = names_of("matmul")
KNOWN_GOOD: tuple[KnownGood, ...] = tuple(
    replace(kernel, name=f"product {kernel.name}", family="matmul", operators=PRODUCTS) for kernel in SUMS
)

ROWS = (
    CampaignRow("mm m7 n9 k11 bias1", every=2),
    CampaignRow("mm b3 m6 n5 k8", every=2),
    CampaignRow("mm m32 n30 k40 bias1", every=5),
    CampaignRow("mm b2 m33 n31 k17", every=10),
    CampaignRow("mm m5 n12 k130", every=5),
    CampaignRow("mm m37 n41 k6 bias1", every=5),
    CampaignRow("mm m1 n12 k301", every=5),
    CampaignRow("mm m2 n3 k1030", every=10, kernels="split-k"),
)
MEDIUM = ("mm m32 n30 k40 bias1", "mm m5 n12 k130")
"""Problems on one of which a contract that is too strict must show."""
