"""The library of known mistakes, which diagnosis compares with and the selftest plants as mutants."""

from __future__ import annotations

from conformance.judge.mistakes_base import Mistake
from conformance.judge.mistakes_bn import NORMALISATION
from conformance.judge.mistakes_bn_backward import BACKPROPAGATION
from conformance.judge.mistakes_index import INDEX
from conformance.judge.mistakes_pool import POOLED
from conformance.judge.mistakes_sums import SUMS

LIBRARY: tuple[Mistake, ...] = (*INDEX, *SUMS, *NORMALISATION, *BACKPROPAGATION, *POOLED)
"""In the order in which equally good explanations are named."""

__all__ = ["LIBRARY", "Mistake"]
