"""Correct transposed convolutions: the sums that those of convolution are, each with its contract."""

from __future__ import annotations

from dataclasses import replace

from conformance.operators import TRANSPOSED
from conformance.operators.conv.known_good import SUMS
from conformance.operators.known_kernels.kernel import KnownGood

KNOWN_GOOD: tuple[KnownGood, ...] = tuple(
    replace(kernel, name=f"transposed {kernel.name}", family="conv_transpose", operators=TRANSPOSED) for kernel in SUMS
)
