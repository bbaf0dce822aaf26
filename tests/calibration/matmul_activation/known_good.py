"""Correct matrix products with an activation: sums in every order, and other formulas of the activations."""

from __future__ import annotations

from tests.calibration.kernels.activations import known_good
from tests.calibration.kernels.kernel import CampaignRow

KNOWN_GOOD = known_good("matmul_activation")

ROWS = (
    CampaignRow("mact m7 n9 k11 bias1 act:gelu res1", every=2),
    CampaignRow("mact b3 m6 n5 k8 act:silu res1", every=2),
    CampaignRow("mact m32 n30 k40 bias1 act:relu res1", every=5),
    CampaignRow("mact b2 m33 n31 k17 act:gelu_tanh", every=5),
    CampaignRow("mact m5 n12 k130 bias1 act:silu", every=5),
    CampaignRow("mact m37 n41 k6 bias1 act:relu6 res1", every=5),
    CampaignRow("mact m1 n12 k301 res1", every=5),
)
MEDIUM = ("mact m32 n30 k40 bias1 act:relu res1", "mact b2 m33 n31 k17 act:gelu_tanh")
"""Problems on one of which a contract that is too strict must show."""
