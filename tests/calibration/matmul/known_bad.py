"""Known-bad matrix products: less precision than declared, and sums and batches that are divided wrongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from conformance.dtypes import BF16, FORMATS, FP16, TF32
from conformance.operators import Arrays, Operator
from conformance.operators.matmul.geometry import MatmulGeometry
from conformance.operators.matmul.operators import by_product, by_rows
from conformance.operators.table import names_of
from tests.calibration.conv import known_bad_formats
from tests.calibration.conv.known_bad import EMULATED
from tests.calibration.kernels.arithmetic import EXACT, KernelArithmetic, to
from tests.calibration.kernels.kernel import FP32_ONLY, STORED, Mutant, Run, exact, on_outputs, stored

MATMUL, PRODUCTS = ("matmul",), names_of("matmul")
Product = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""a[B, M, K], b[B, K, N] -> y[B, M, N], in float64."""


def _in_products(change: Product) -> Run:
    """Return a kernel that computes y = a b + bias."""

    def run(operator: Operator, g: MatmulGeometry, inputs: Arrays, dtype: str) -> Arrays:
        values = {name: array.astype(np.float64) for name, array in inputs.items()}
        b = values["b"].reshape(g.groups, g.k // g.groups, g.c // g.groups).swapaxes(1, 2)
        y = by_rows(change(by_product(values["a"], g.groups), b))
        return stored({"y": y + values.get("bias", 0.0)}, dtype)

    return run


def _last_split_lost(splits: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Divide the sum into parts of equal length, and drop what is left over."""
    kept = a.shape[2] // splits * splits if a.shape[2] > splits else a.shape[2]
    return a[:, :, :kept] @ b[:, :kept]


def _overlapping_splits(splits: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Divide the sum into parts whose length is rounded up, so that the last part begins before the end of the one
    before it and terms are added twice."""
    terms = a.shape[2]
    length = -(-terms // splits)
    starts = [min(part * length, max(0, terms - length)) for part in range(min(splits, max(1, terms)))]
    return sum((a[:, :, s : s + length] @ b[:, s : s + length] for s in starts), np.zeros(1))


def _stream_k(tile: int, workers: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Share the terms of all tiles out to workers; where a worker ends within a tile, its partial sum is lost."""
    y = a @ b
    tiles, terms = -(-a.shape[1] // tile) * -(-b.shape[2] // tile), a.shape[2]
    end = tiles * terms // workers
    row, column = divmod(end // max(1, terms), -(-b.shape[2] // tile))
    if tiles >= workers and terms and end % terms:
        rows, columns = slice(row * tile, row * tile + tile), slice(column * tile, column * tile + tile)
        y[:, rows, columns] -= a[:, rows, : end % terms] @ b[:, : end % terms, columns]
    return y


def _swizzled(tile: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Visit tiles in groups of rows for the cache, and leave the last group out where it is not full."""
    y, rows = a @ b, -(-a.shape[1] // tile)
    if rows > 2 and rows % 2:
        y[:, (rows - 1) * tile :] = 0
    return y


def _batch_in_bits(bits: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Count products of a batch in a few bits."""
    return a @ b[np.arange(len(b)) % (1 << bits)]


def _without_last(array: np.ndarray, _: object) -> np.ndarray:
    out = array.copy()
    out.reshape(-1)[-1:] = 0
    return out


def _skips_zeros(tile: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Skip tiles of a that are zero, as kernels of pruned weights do, whatever they meet in b."""
    y = np.zeros((a.shape[0], a.shape[1], b.shape[2]))
    for product, row, term in np.ndindex(a.shape[0], -(-a.shape[1] // tile), -(-a.shape[2] // tile)):
        rows, terms = slice(row * tile, row * tile + tile), slice(term * tile, term * tile + tile)
        if a[product, rows, terms].any():
            y[product, rows] += a[product, rows, terms] @ b[product, terms]
    return y


def _clamped(tile: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Read the last row of b again beyond the end of the sum, where a is filled up with zeros."""
    missing = -a.shape[2] % tile if a.shape[2] else 0
    filled = np.pad(a, ((0, 0), (0, 0), (0, missing)))
    return filled @ b[:, np.minimum(np.arange(filled.shape[2]), a.shape[2] - 1)]


_PLANTED: dict[str, Product] = {
    **{f"last part of {n} splits lost": partial(_last_split_lost, n) for n in (2, 4, 8, 16)},
    **{f"{n} splits overlap at the end": partial(_overlapping_splits, n) for n in (3, 4, 8)},
    **{f"stream-K partial sums lost, tiles of {n}": partial(_stream_k, n, 3) for n in (8, 16, 32)},
    **{f"last group of swizzled tiles of {n} left out": partial(_swizzled, n) for n in (8, 16, 32)},
    "products of a batch counted in six bits": partial(_batch_in_bits, 6),
    "products of a batch counted in eight bits": partial(_batch_in_bits, 8),
    "products of a batch counted in sixteen bits": partial(_batch_in_bits, 16),
    **{f"tiles of {n} zeros skipped": partial(_skips_zeros, n) for n in (1, 16)},
    **{f"last row of b read again in tiles of {n}": partial(_clamped, n) for n in (4, 32)},
}


def _where(*, m: int = 1, n: int = 1, k: int = 1, bias: bool = False) -> Callable[[MatmulGeometry], bool]:
    """Return a predicate of products of at least these sizes."""

    def holds(g: MatmulGeometry) -> bool:
        sizes = g.described
        return sizes.m >= m and sizes.n >= n and sizes.k >= k and sizes.bias >= bias

    return holds


_LARGE: dict[str, Callable[[MatmulGeometry], bool]] = {
    "tiles of 32 by 32 and sums of 64": _where(m=32, n=32, k=64),
    "sums of 256 beside 8 rows": _where(m=8, n=8, k=256),
    "sums of 256 of one row": lambda g: g.n == 1 and g.c >= 256 * g.groups and g.k > 8,
    "sums of 128 with a bias": _where(m=8, n=8, k=128, bias=True),
}
"""Sizes from which kernels divide work."""


def _inner_only(when_many: int) -> Run:
    """Return a kernel that rounds its inputs to TF32 for long sums alone."""
    rounds = KernelArithmetic(to(TF32), to(TF32))
    return lambda operator, g, inputs, dtype: (rounds if g.c // g.groups >= when_many else exact)(
        operator, g, inputs, dtype
    )


_FORMATS = tuple(
    replace(mutant, name=f"product, {mutant.name}", operators=MATMUL, ranks=(0,))
    for mutant in known_bad_formats.KNOWN_BAD
    if "conv_forward" in mutant.operators and "zero point" not in mutant.name
)
"""Mistakes about inputs of 8 bits, as convolutions have them."""

KNOWN_BAD: tuple[Mutant, ...] = (
    *_FORMATS,
    *(Mutant(name, "precision", run, operators=PRODUCTS, dtypes=dtypes, base=EXACT) for name, run, dtypes in EMULATED),
    *(
        Mutant(name, "subtle", _in_products(change), operators=MATMUL, dtypes=STORED, base=exact)
        for name, change in _PLANTED.items()
    ),
    *(
        Mutant(f"16 partial sums stored in {dtype}, {where}", "precision",
               KernelArithmetic(splits=16, partials=FORMATS[dtype]), operators=MATMUL, dtypes=(dtype,), when=when,
               base=EXACT)
        for where, when in _LARGE.items()
        for dtype in ("bf16", "fp16")
    ),
    *(
        Mutant(f"last element lost, {where}", "subtle", on_outputs(_without_last), operators=PRODUCTS, dtypes=STORED,
               when=when, base=exact)
        for where, when in _LARGE.items()
    ),
    Mutant("inputs rounded to tf32 from 64 terms on", "precision", _inner_only(64), operators=MATMUL,
           dtypes=FP32_ONLY, base=EXACT),
    *(
        Mutant(f"partial sums of 2 splits stored in {format.name}", "precision",
               KernelArithmetic(splits=2, partials=format), operators=MATMUL, dtypes=FP32_ONLY, base=EXACT)
        for format in (BF16, FP16)
    ),
)  # fmt: skip
