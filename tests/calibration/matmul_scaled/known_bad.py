"""Known-bad scaled products: accumulators that are too short."""

from __future__ import annotations

KNOWN_BAD = ()
