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
from dataclasses import dataclass

import numpy as np

GENERATOR = "splitmix64-v1"
"""Name of the recipe; it changes whenever the numbers do."""

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_BLOCK_WORDS = 1 << 15
"""256 KiB of words: a block and its scratch stay in the second-level cache."""
_RAMP = np.arange(1, _BLOCK_WORDS + 1, dtype=np.uint64) * np.uint64(_GAMMA)

Elements = Callable[[np.ndarray], np.ndarray]
"""32-bit random values -> elements of one block, in any dtype."""


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """A distribution of positive numbers that is uniform within each of its cells.

    - `shares`: ascending, uint32; a random 32-bit value below the i-th, and not below those before, means cell i.
    - `edges`, `widths`: float64; cell i holds edges[i] + k * widths[i] / 2^bits, with k from 0 to 2^bits - 1.
    """

    shares: np.ndarray
    edges: np.ndarray
    widths: np.ndarray
    bits: int


@dataclass(frozen=True, slots=True)
class Stream:
    """Random numbers of one tensor. The key is from the SHA-256 of its recipe, so that tensors are independent."""

    recipe: str

    def words(self, first: int, count: int) -> np.ndarray:
        """Return words first .. first+count-1, little-endian unsigned 64-bit; `count` is at most a block."""
        key = int.from_bytes(hashlib.sha256(self.recipe.encode()).digest()[:8], "little")
        z = _RAMP[:count] + np.uint64((key + first * _GAMMA) & _MASK)
        scratch = np.empty_like(z)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            np.right_shift(z, np.uint64(shift), out=scratch)
            z ^= scratch
            z *= np.uint64(factor)
        np.right_shift(z, np.uint64(31), out=scratch)
        z ^= scratch
        return z.astype("<u8", copy=False)

    def fixed_point(self, shape: tuple[int, ...], bits: int, dtype: np.dtype) -> np.ndarray:
        """Draw odd multiples of 2^-bits in (-1, 1), uniformly. Odd, so that no element is exact with one bit less.

        `bits` is at most 30; `dtype` must hold that many significant bits exactly.
        """
        return self._drawn(shape, dtype, lambda values: ((values.view("<i4") >> (31 - bits)) | 1) * 2.0**-bits)

    def significands(self, shape: tuple[int, ...], precision: int, dtype: np.dtype) -> np.ndarray:
        """Draw odd multiples of 2^-precision, from 1/2 to 1 in size: element i has the highest bits of word i behind a
        leading one, and its sign from the lowest bit. `precision` is at most 53, and no more than `dtype` holds."""
        out = np.empty(shape, dtype)
        flat = out.reshape(-1)
        for start in range(0, flat.size, _BLOCK_WORDS):
            words = self.words(start, min(_BLOCK_WORDS, flat.size - start))
            odd = (words >> np.uint64(65 - precision)) | np.uint64(1 << (precision - 1) | 1)
            signs = 1 - 2.0 * (words & np.uint64(1))
            flat[start : start + len(words)] = signs * odd.astype(np.float64) * 2.0**-precision
        return out

    def numbers(self, shape: tuple[int, ...], law: Law) -> np.ndarray:
        """Draw numbers of a law, float64, of either sign: word 2i gives the cell of element i, word 2i+1 its place in
        the cell and, in the lowest bit, its sign."""
        out = np.empty(shape, np.float64)
        flat = out.reshape(-1)
        for start in range(0, flat.size, _BLOCK_WORDS // 2):
            words = self.words(2 * start, 2 * min(_BLOCK_WORDS // 2, flat.size - start))
            cells = np.searchsorted(law.shares[:-1], (words[::2] >> np.uint64(32)).astype(np.uint32), "right")
            places = (words[1::2] >> np.uint64(64 - law.bits)) if law.bits else np.zeros(len(cells))
            sizes = law.edges[cells] + law.widths[cells] * (places.astype(np.float64) * 2.0**-law.bits)
            flat[start : start + len(cells)] = np.where(words[1::2] & np.uint64(1), -sizes, sizes)
        return out

    def integers(self, shape: tuple[int, ...], largest: int, dtype: np.dtype) -> np.ndarray:
        """Draw integers uniform on [-largest, largest] by multiply-shift: floor(value * (2*largest+1) / 2^32)."""
        span = 2 * largest + 1
        return self._drawn(shape, dtype, lambda values: (values.astype("u8") * span >> 32).astype("i4") - largest)

    def codes(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Draw from all finite numbers of an 8-bit format, some of them twice as often as others."""
        codes = self._drawn(shape, np.dtype(np.uint8), lambda values: values >> 24)
        finite = np.isfinite(codes.view(dtype).astype(np.float64))
        return np.where(finite, codes, codes & 0xFB).astype(np.uint8).view(dtype)

    def ternary(self, shape: tuple[int, ...], density: float, dtype: np.dtype) -> np.ndarray:
        """Draw -1, 0 and 1; the fraction `density` is nonzero, with both signs equally likely."""
        threshold = min(round(density * 2**31), 2**31 - 1)
        return self._drawn(
            shape, dtype, lambda values: (1 - ((values & 1) << 1).view("i4")) * ((values >> 1) <= threshold)
        )

    def below(self, limit: int, count: int) -> list[int]:
        """Draw `count` integers uniform on [0, limit)."""
        blocks = (self.words(first, min(_BLOCK_WORDS, count - first)) for first in range(0, count, _BLOCK_WORDS))
        return [(int(word) * limit) >> 64 for words in blocks for word in words]

    def _drawn(self, shape: tuple[int, ...], dtype: np.dtype, elements: Elements) -> np.ndarray:
        """Draw `elements` of 32-bit random values, in row-major order; `dtype` must hold each of them exactly."""
        out = np.empty(shape, dtype)
        flat = out.reshape(-1)

        def draw(start: int) -> None:
            part = flat[start : start + 2 * _BLOCK_WORDS]
            values = self.words(start // 2, -(-len(part) // 2)).view("<u4")[: len(part)]
            part[...] = elements(values)

        starts = range(0, flat.size, 2 * _BLOCK_WORDS)
        if len(starts) < 8:  # threads would cost more than they save
            for start in starts:
                draw(start)
        else:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(draw, starts))
        return out


def term_bits(terms: int) -> int:
    """Return ceil(log2 terms): the bits by which a sum of that many terms can grow."""
    return math.ceil(math.log2(max(1, terms)))
