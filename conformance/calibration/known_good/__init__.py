"""Correct kernels, written plainly, each with its contract: the judge must pass every one under it, and detect it
under a contract that is one class stricter."""

from __future__ import annotations

from conformance.calibration.known_good import collection, conv_bn, max_pool, pool, requantized
from conformance.calibration.known_good.collection import KnownGood

KNOWN_GOOD: tuple[KnownGood, ...] = (
    *collection.KNOWN_GOOD,
    *conv_bn.KNOWN_GOOD,
    *pool.KNOWN_GOOD,
    *max_pool.KNOWN_GOOD,
    *requantized.KNOWN_GOOD,
)

__all__ = ["KNOWN_GOOD", "KnownGood"]
