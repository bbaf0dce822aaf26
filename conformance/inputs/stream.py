"""Counter-based random numbers: integer arithmetic only, so every machine and language draws the same tensors.

Word i of a stream is the SplitMix64 output function (Steele, Lea and Flood 2014) of key + (i+1) * golden gamma, split
into two 32-bit values, low half first. Any block can be computed on its own, so blocks are drawn on all cores.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

GENERATOR = "splitmix64-v1"
"""Name of the recipe; it changes whenever the numbers do."""

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_BLOCK_WORDS = 1 << 15
"""256 KiB of words: a block and its scratch stay in the second-level cache."""
_RAMP = np.arange(1, _BLOCK_WORDS + 1, dtype=np.uint64) * np.uint64(_GAMMA)

Fill = Callable[[np.ndarray, np.ndarray], None]
"""Turns 32-bit random values into the elements of one block of the output, in place."""


def _words(key: int, first: int, count: int) -> np.ndarray:
    """Words first .. first+count-1 of the stream `key`, as little-endian unsigned 64-bit."""
    z = _RAMP[:count] + np.uint64((key + first * _GAMMA) & _MASK)
    scratch = np.empty_like(z)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        np.right_shift(z, np.uint64(shift), out=scratch)
        z ^= scratch
        z *= np.uint64(factor)
    np.right_shift(z, np.uint64(31), out=scratch)
    z ^= scratch
    return z.astype("<u8", copy=False)


class Stream:
    """The random numbers of one tensor. The key is the SHA-256 of its recipe, so tensors are independent."""

    def __init__(self, recipe: str) -> None:
        self.key = int.from_bytes(hashlib.sha256(recipe.encode()).digest()[:8], "little")

    def fixed_point(self, shape: tuple[int, ...], bits: int, dtype: np.dtype) -> np.ndarray:
        """Odd multiples of 2^-bits in (-1, 1), uniform. Odd, so that no element survives with a bit less.

        `bits` is at most 30; `dtype` must hold that many significant bits exactly.
        """
        scale = 2.0**-bits
        shift = np.int32(31 - bits)

        def fill(values: np.ndarray, out: np.ndarray) -> None:
            signed = values.view("<i4") >> shift
            signed |= np.int32(1)
            np.multiply(signed, out.dtype.type(scale), out=out, casting="unsafe")

        return self._filled(shape, dtype, fill)

    def integers(self, shape: tuple[int, ...], largest: int, dtype: np.dtype) -> np.ndarray:
        """Integers uniform on [-largest, largest], by multiply-shift: floor(value * (2*largest+1) / 2^32)."""

        def fill(values: np.ndarray, out: np.ndarray) -> None:
            wide = values.astype(np.uint64) * np.uint64(2 * largest + 1)
            np.subtract((wide >> np.uint64(32)).astype(np.int64), largest, out=out, casting="unsafe")

        return self._filled(shape, dtype, fill)

    def ternary(self, shape: tuple[int, ...], density: float, dtype: np.dtype) -> np.ndarray:
        """-1, 0 and 1; the fraction `density` is not zero, both signs equally likely."""
        threshold = np.uint32(min(round(density * 2**31), 2**31 - 1))

        def fill(values: np.ndarray, out: np.ndarray) -> None:
            sign = np.int32(1) - ((values & np.uint32(1)) << np.uint32(1)).view(np.int32)
            np.multiply(sign, (values >> np.uint32(1)) <= threshold, out=out, casting="unsafe")

        return self._filled(shape, dtype, fill)

    def below(self, limit: int, count: int) -> list[int]:
        """`count` integers uniform on [0, limit)."""
        words = _words(self.key, 0, count)
        return [(int(word) * limit) >> 64 for word in words]

    def _filled(self, shape: tuple[int, ...], dtype: np.dtype, fill: Fill) -> np.ndarray:
        """Elements in row-major order. 16-bit formats are drawn as float32 and narrowed, which is exact."""
        out = np.empty(shape, dtype)
        flat = out.reshape(-1)
        drawn = dtype if dtype.itemsize >= 4 else np.dtype(np.float32)

        def draw(start: int) -> None:
            part = flat[start : start + 2 * _BLOCK_WORDS]
            values = _words(self.key, start // 2, -(-len(part) // 2)).view("<u4")[: len(part)]
            block = part if drawn == dtype else np.empty(len(part), drawn)
            fill(values, block)
            if block is not part:
                part[...] = block.astype(dtype)

        _for_each(range(0, flat.size, 2 * _BLOCK_WORDS), draw)
        return out


def _for_each(starts: range, draw: Callable[[int], None]) -> None:
    """Blocks one after the other, or on all cores where threads cost less than they save."""
    if len(starts) < 8:
        for start in starts:
            draw(start)
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(draw, starts))


def term_bits(terms: int) -> int:
    """ceil(log2 terms): bits that a sum of that many terms can grow by."""
    return math.ceil(math.log2(max(1, terms)))
