"""Correct convolutions with an activation: sums in every order, and other formulas of the activations."""

from __future__ import annotations

from tests.calibration.kernels.activations import known_good
from tests.calibration.kernels.kernel import CampaignRow

KNOWN_GOOD = known_good("conv_activation")

ROWS = (
    CampaignRow("cact n2 c6 h9 w7 k8 r3 s3 p1 b1 act:gelu res1", every=2),
    CampaignRow("cact n2 c6 h11 w8 k10 r3 s2 u2x1 p0:1x2:0 d1x2 g2 b1 act:silu res1", every=2),
    CampaignRow("cact n2 c8 h9 w9 k16 r3 s3 p1 b1 act:relu res1", every=2),
    CampaignRow("cact n2 c16 h6 w6 k12 r1 s1 u2 b1 act:gelu_tanh", every=5),
    CampaignRow("cact n1 c64 h6 w6 k16 r3 s3 p1 act:relu6", every=5),
    CampaignRow("cact n2 c9 w64 k9 s3 p1 g9 b1 act:gelu res1", every=5),
)
MEDIUM = ("cact n2 c8 h9 w9 k16 r3 s3 p1 b1 act:relu res1", "cact n1 c64 h6 w6 k16 r3 s3 p1 act:relu6")
"""Problems on one of which a contract that is too strict must show."""
