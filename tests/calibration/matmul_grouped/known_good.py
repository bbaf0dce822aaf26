"""Correct grouped products: the same sums as those of convolution, each with its contract."""

from __future__ import annotations

from dataclasses import replace

from conformance.operators.table import names_of
from tests.calibration.conv.known_good import SUMS
from tests.calibration.kernels.kernel import CampaignRow, KnownGood

PRODUCTS = names_of("matmul_grouped")
KNOWN_GOOD: tuple[KnownGood, ...] = tuple(
    replace(kernel, name=f"grouped product {kernel.name}", family="matmul_grouped", operators=PRODUCTS)
    for kernel in SUMS
)

ROWS = (
    CampaignRow("grouped g3 m14 n9 k11 uneven1", every=2),
    CampaignRow("grouped g5 m19 n6 k8 uneven1 empty1", every=2),
    CampaignRow("grouped g3 m75 n30 k40 uneven1", every=5),
    CampaignRow("grouped g4 m36 n41 k12", every=5),
    CampaignRow("grouped g2 m12 n12 k130 uneven1", every=5),
    CampaignRow("grouped g2 m3 n5 k1030", every=10, kernels="split-k"),
)
MEDIUM = ("grouped g3 m75 n30 k40 uneven1", "grouped g2 m12 n12 k130 uneven1")
"""Problems on one of which a contract that is too strict must show."""
