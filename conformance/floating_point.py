"""The floating-point mode of this thread, seen in results of arithmetic: no register is read, so it works everywhere.

Libraries that are built with -ffast-math switch on flush-to-zero when they are loaded, for the whole process.
"""

from __future__ import annotations

import numpy as np

__all__ = ["mode"]

REPEATS = 16
"""Elements of each product, enough for the widest vector instructions."""
MEANINGS = (
    "subnormal inputs are taken for zero",
    "subnormal results are flushed to zero",
    "results are rounded upwards",
    "results are rounded downwards",
    "results are rounded towards zero",
)
"""Meaning of a wrong product at the same place in `_products`."""


def _products(fraction: int, bits: int) -> np.ndarray:
    """Return two factors and their product, rounded to nearest, a column each, as the bits of an IEEE 754 format."""
    bias, sign = (1 << (bits - fraction - 2)) - 1, 1 << (bits - 1)
    one, three_quarters = bias << fraction, 3 << (fraction - 2)
    return np.array(
        [
            (1, one + (100 << fraction), (101 - fraction) << fraction),  # smallest subnormal * 2^100
            (1 << fraction, one - (1 << fraction), 1 << (fraction - 1)),  # smallest normal / 2
            (one + 1, one + 1, one + 2),  # (1 + e)^2, a little more than 1 + 2e
            (sign + one + 1, one + 1, sign + one + 2),
            (one + 1, one + three_quarters, one + three_quarters + 2),  # 1.75 (1 + e), nearer to 1.75 + 2e
        ],
        f"u{bits // 8}",
    )


# from bits, because constants would be flushed where the mode is changed before this file is imported
_ROWS = [_products(fraction, bits) for fraction, bits in ((23, 32), (52, 64))]
_VECTORS = [np.repeat(rows, REPEATS, axis=0).T.copy().view(f"f{rows.itemsize}") for rows in _ROWS]
_SCALARS = [list(map(tuple, rows.view(f"f{rows.itemsize}"))) for rows in _ROWS]
_EXPECTED = [product.copy() for *_, product in _VECTORS] + [rows[:, 2].copy() for rows in _ROWS]
_BYTES = [product.tobytes() for product in _EXPECTED]


def mode() -> tuple[str, ...]:
    """Return how arithmetic differs from the default of IEEE 754, in words; empty where it does not.

    The default rounds to nearest and keeps subnormal numbers. Tested in fp32 and fp64, in vector instructions and in
    single operations, in about 6 microseconds.
    """
    with np.errstate(all="ignore"):
        found = [np.multiply(first, second) for first, second, _ in _VECTORS]
        found += [np.array([first * second for first, second, _ in rows], type(rows[0][0])) for rows in _SCALARS]
    if [product.tobytes() for product in found] == _BYTES:
        return ()
    changed = np.zeros(len(MEANINGS), bool)
    for product, expected in zip(found, _EXPECTED, strict=True):
        integer = f"u{product.itemsize}"  # compared as numbers, a subnormal one could be equal to zero
        changed |= (product.view(integer) != expected.view(integer)).reshape(len(MEANINGS), -1).any(axis=1)
    if changed[2] or changed[3]:
        changed[4] = False  # results rounded up or down are cut in half of all cases
    return tuple(meaning for meaning, is_so in zip(MEANINGS, changed, strict=True) if is_so)
