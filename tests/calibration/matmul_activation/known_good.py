"""Correct products with an activation."""

from __future__ import annotations

from tests.calibration.kernels.kernel import CampaignRow, KnownGood

KNOWN_GOOD: tuple[KnownGood, ...] = ()
ROWS: tuple[CampaignRow, ...] = ()
MEDIUM: tuple[str, ...] = ()
