"""Known-bad convolutions with an activation: less precision than declared, and parts of the sum in the wrong place."""

from __future__ import annotations

from tests.calibration.kernels.activations import known_bad

KNOWN_BAD = known_bad("conv_activation")
