"""Legitimate kernels, written plainly, each with its honest contract: the judge must acquit every one.

And each with a contract one class better than it is: under that one the judge must find it out.
"""

from __future__ import annotations

from conformance.selftest.acquittals import collection, conv_bn, pool
from conformance.selftest.acquittals.collection import Acquittal

ACQUITTALS: tuple[Acquittal, ...] = (*collection.ACQUITTALS, *conv_bn.ACQUITTALS, *pool.ACQUITTALS)

__all__ = ["ACQUITTALS", "Acquittal"]
