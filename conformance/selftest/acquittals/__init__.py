"""Legitimate kernels, written plainly, each with its honest contract: the judge must acquit every one.

And each with a contract one class better than it is: under that one the judge must find it out.
"""

from __future__ import annotations

from conformance.selftest.acquittals.collection import ACQUITTALS, Acquittal

__all__ = ["ACQUITTALS", "Acquittal"]
