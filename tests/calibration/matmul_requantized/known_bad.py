"""Matrix products that are wrong about results of 8 bits: scale, bias, rounding, short sums, results out of range."""

from __future__ import annotations

import numpy as np

from conformance.operators.matmul_requantized.geometry import RequantizedMatmulGeometry as Geometry
from conformance.operators.matmul_requantized.steps import Steps
from tests.calibration.kernels.kernel import INT8, UINT8, Mutant
from tests.calibration.kernels.requantized import Bad, pairs
from tests.calibration.matmul_requantized.known_good import compensated, summed


def _short(g: Geometry) -> bool:
    """Return whether products may be added one by one in a moment."""
    return g.c // g.groups < 300


def _in_bits(bits: int, g: Geometry, b: np.ndarray) -> np.ndarray:
    """Keep columns less their zero point in a few bits."""
    half = 2.0 ** (bits - 1)
    return np.clip(b - g.b_zero_point, -half, half - 1)


_BAD = Bad(
    "matmul_requantized", "requantized product", Steps, summed, _short, long=lambda g: 1000 < g.c // g.groups < 9000
)

_READ = (
    _BAD.stepping("columns are taken off of 128", INT8, columns=lambda g, b: b - g.b_zero_point - 128),
    _BAD.stepping("columns less their zero point saturate at 7 bits", INT8, columns=lambda g, b: _in_bits(7, g, b)),
    _BAD.mutant(
        "two products of a and b as they are saturate at 16 bits", compensated(summed(pairs)), INT8, when=_short
    ),
)

_UNSIGNED = (
    _BAD.stepping("a has 7 bits", UINT8, rows=lambda g, a: a - a % 2 - g.a_zero_point),
    _BAD.mutant(
        "two products of a and b as they are saturate at 16 bits", compensated(summed(pairs)), UINT8, when=_short
    ),
)
"""Bytes without a sign: weights are signed, so that two products exceed 16 bits."""

KNOWN_BAD: tuple[Mutant, ...] = (
    *_BAD.rounded(),
    *_READ,
    *_BAD.scaled(),
    *_BAD.summed(),
    *_BAD.in_fp8(),
    *_BAD.unsigned(),
    *_UNSIGNED,
)
