"""The library of known mistakes, which diagnosis compares with and the selftest plants as mutants."""

from __future__ import annotations

from conformance.diagnosis.base import Mistake
from conformance.diagnosis.batch_norm import NORMALISATION
from conformance.diagnosis.batch_norm_backward import BACKPROPAGATION
from conformance.diagnosis.index import INDEX
from conformance.diagnosis.pool import POOLED
from conformance.diagnosis.sums import SUMS

LIBRARY: tuple[Mistake, ...] = (*INDEX, *SUMS, *NORMALISATION, *BACKPROPAGATION, *POOLED)
"""In the order in which equally good explanations are named."""

__all__ = ["LIBRARY", "Mistake"]
