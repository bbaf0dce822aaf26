"""Kernels that are wrong about results of 8 bits: zero points, bias, scale, rounding, and results out of range."""

from __future__ import annotations

from conformance.operators.conv_requantized.steps import Steps, around
from conformance.operators.requantized_geometry import LOWEST
from tests.calibration.conv_requantized.known_good import compensated, summed
from tests.calibration.kernels.arithmetic import short
from tests.calibration.kernels.kernel import INT8, UINT8, Mutant
from tests.calibration.kernels.requantized import Bad, pairs

_BAD = Bad("conv_requantized", "requantized", Steps, summed, short, long=lambda g: 2000 < g.filter.size // g.k < 9000)

_READ = (
    _BAD.stepping("padding holds -128", INT8, image=lambda g, x: around(g, x, LOWEST) - g.x_zero_point),
    _BAD.stepping("filters are taken off of 128", INT8, filters=lambda w: w - 128),
    _BAD.mutant(
        "two products of x as it is saturate at 16 bits",
        compensated(summed(pairs)),  # only a sum of two products of -128 then exceeds 16 bits
        INT8,
        when=short,
    ),
)

_UNSIGNED = (
    _BAD.stepping("padding holds 128", UINT8, image=lambda g, x: around(g, x, 128) - g.x_zero_point),
    _BAD.stepping("x has 7 bits", UINT8, image=lambda g, x: around(g, x - x % 2 - g.x_zero_point)),
    _BAD.mutant("two products of x as it is saturate at 16 bits", compensated(summed(pairs)), UINT8, when=short),
)
"""Bytes without a sign: filters are signed, so that two products exceed 16 bits."""

KNOWN_BAD: tuple[Mutant, ...] = (
    *_BAD.rounded(),
    *_READ,
    *_BAD.scaled(),
    *_BAD.summed(),
    *_BAD.in_fp8(),
    *_BAD.unsigned(),
    *_UNSIGNED,
)
