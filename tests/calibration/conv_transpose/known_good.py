"""Correct transposed convolutions: the same sums as those of convolution, each with its contract."""

from __future__ import annotations

from dataclasses import replace

from conformance.operators import TRANSPOSED
from tests.calibration.conv.known_good import SUMS
from tests.calibration.kernels.kernel import CampaignRow, KnownGood

KNOWN_GOOD: tuple[KnownGood, ...] = tuple(
    replace(kernel, name=f"transposed {kernel.name}", family="conv_transpose", operators=TRANSPOSED) for kernel in SUMS
)

ROWS = (
    CampaignRow("convt n2 c6 h4 w5 k5 r2 s2 u2 b1", every=2),
    CampaignRow("convt n2 c6 h5 w4 k10 r3 s4 u3x2 p0:1x2:1 d2x1 o1x0 g2 b1", every=5),
    CampaignRow("convt n2 c16 h5 w5 k8 r3 s3 u2 p1 o1 b1", every=10),
    CampaignRow("convt n2 c8 w17 k6 s5 u3 p1 o2 b1", every=5),
    CampaignRow("convt n1 c4 d3 h4 w3 k6 t2 r3 s3 u2 p0x1x1 o1", every=10),
    CampaignRow("convt n1 c1 h1 w1 k101 r1 s60", every=5, kernels="split-k"),
    CampaignRow("convt n1 c2 h1 w1 k301 r1 s1", every=5, kernels="split-k"),
)
MEDIUM = (
    "convt n2 c16 h5 w5 k8 r3 s3 u2 p1 o1 b1",
    "convt n1 c64 h6 w6 k16 r3 s3 p1",
)
"""Problems on one of which a contract that is too strict must show."""
