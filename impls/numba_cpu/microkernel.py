"""The register tile of the dense kernels, and functions that move whole vectors to and from it.

Sizes: with AVX-512 (32 registers) 13 x 2 vectors take 26 accumulators, 2 operand vectors and leave 4 for broadcasts; 13
rows fit channel counts that are powers of two better than 14 (64 = 5 * 13 - 1, 128 = 10 * 13 - 2).  Narrower machines
have 16 registers, hence 6 x 2.  Tiles of four rows are for groups of few channels and for weights that are read in
place: more rows would need more addresses than there are registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from .launch import njit_inner
from .vectors import INT, INTS, POINTER, SCALAR, WIDE, Emitter, emitted, i64

LOW_ROWS = 4
TILES = ((13, 2), (LOW_ROWS, 4), (LOW_ROWS, 3)) if WIDE else ((6, 2), (LOW_ROWS, 3))
# How far ahead memory is prefetched: steps of a tile, bytes of a row, bytes of each of many rows.
STEPS_AHEAD, AHEAD, LINES_AHEAD = 32, 2048, 320


@emitted(
    POINTER,
    INT,
    INT,
    INT,
    POINTER,
    INT,
    INT,
    INT,
    POINTER,
    INT,
    INT,
    INTS,
    INT,
    INT,
    INTS,
    INT,
    INT,
    INT,
    types.boolean,
)
def _tile_product(
    e: Emitter, out: Any, out_at: Any, height: Any, width: Any, a: Any, a_at: Any, a_row: Any, a_step: Any, b: Any,
    b_at: Any, b_step: Any, columns: Any, column_at: Any, steps: Any, taps: Any, tap_at: Any, tap_count: Any,
    packed: Any, adds: Any,
) -> None:  # fmt: skip
    """Compute out (+)= sum over steps c and taps t of a[c, t, i] * b[c, t, j], row-major.

    a[c, t, i] lies at a_at + c * a_step + taps[2 * t] + i * a_row (a_row is 1 where it is packed), vector v of
    b[c, t] at b_at + c * b_step + taps[2 * t + 1] + columns[v].
    """
    tiles = {
        16 * rows + 2 * vectors + dense: (rows, vectors, dense)
        for rows, vectors in TILES for dense in (0, 1) if dense or rows == LOW_ROWS
    }  # fmt: skip
    for number in e.cases(e.sum(e.product(height, 16), e.product(width, 2), packed), tiles):
        rows, vectors, dense = tiles[number]
        bases = [e.sum(b_at, e.scalar(columns, e.sum(column_at, v))) for v in range(vectors)]
        tile = e.variables(rows * vectors, e.zero)
        offsets = [i if dense else e.product(a_row, i) for i in range(rows)]
        with e.loop(steps) as c:
            a_c, b_c = e.sum(a_at, e.product(c, a_step)), e.product(c, b_step)
            for offset in () if dense else offsets:
                e.prefetch(a, e.sum(a_c, e.product(a_step, STEPS_AHEAD), offset))
            with e.loop(tap_count) as t:
                place = e.sum(tap_at, e.product(t, 2))
                a_t, b_t = e.sum(a_c, e.scalar(taps, place)), e.sum(b_c, e.scalar(taps, e.sum(place, 1)))
                row = [e.load(b, e.sum(b_t, base)) for base in bases]
                for i, offset in enumerate(offsets):
                    weight = e.splat(e.scalar(a, e.sum(a_t, offset)))
                    for total, vector in zip(tile[i * vectors : (i + 1) * vectors], row, strict=True):
                        e.builder.store(e.fma(weight, vector, e.builder.load(total)), total)
        for place, total in enumerate(tile):
            at = e.sum(out_at, place * e.lanes)
            old = e.builder.select(adds, e.load(out, at), e.zero)
            e.store(e.builder.fadd(e.builder.load(total), old), out, at)


@njit_inner()
def tile_product(
    out: Any, out_at: int, height: int, width: int, a: Any, a_at: int, a_row: int, a_step: int, b: Any, b_at: int,
    b_step: int, columns: Any, column_at: int, steps: int, taps: Any, tap_at: int, tap_count: int, packed: int,
    adds: bool,
) -> None:  # fmt: skip
    """Call `_tile_product` as a function of its own, so that kernels that call it in several places hold its code
    once."""
    _tile_product(
        out, out_at, height, width, a, a_at, a_row, a_step, b, b_at, b_step, columns, column_at, steps, taps, tap_at,
        tap_count, packed, adds,
    )  # fmt: skip


def _row_packer(step: int) -> Callable[..., int]:
    @emitted(POINTER, INT, POINTER, INT, INT, INT, INT)
    def write(e: Emitter, out: Any, out_at: Any, src: Any, row: Any, start: Any, size: Any, vectors: Any) -> None:
        """Write whole vectors of the elements start, start + step, ... of a row of `size`; zeros where it has none."""
        with e.loop(vectors) as v:
            shift = e.product(v, e.lanes)
            vector, _ = e.source(src, row, e.sum(start, e.product(shift, step)), step, size)
            e.store(vector, out, e.sum(out_at, shift))
            e.prefetch(src, e.sum(row, start, shift, AHEAD // e.bytes))

    return write


pack_row, pack_row_by_two = _row_packer(1), _row_packer(2)


def _nan_lanes(e: Emitter, vector: Any, mask: Any) -> Any:
    unordered = e.builder.and_(e.builder.fcmp_unordered("uno", vector, vector), mask)
    return e.builder.zext(e.builder.bitcast(unordered, ir.IntType(e.lanes)), i64)


@emitted(POINTER, INT, POINTER, INT, INT, SCALAR, types.boolean)
def add_lanes(e: Emitter, out: Any, out_at: Any, src: Any, src_at: Any, count: Any, offset: Any, first: Any) -> Any:
    """Add up to a vector of elements to an offset or to the old values; return whether any sum is NaN."""
    mask = e.within(i64(0), 1, count)
    old = e.load(out, out_at, e.builder.and_(mask, e.splat(e.builder.not_(first))))
    total = e.builder.fadd(e.load(src, src_at, mask), e.builder.select(first, e.splat(offset), old))
    e.store(total, out, out_at, mask)
    return _nan_lanes(e, total, mask)


@emitted(POINTER, INT, POINTER, INT, INT, SCALAR)
def spread_lanes(e: Emitter, out: Any, out_at: Any, src: Any, src_at: Any, count: Any, offset: Any) -> Any:
    """Store up to a vector of elements, plus an offset, to every second element; return whether any sum is NaN."""
    mask = e.within(i64(0), 1, count)
    total = e.builder.fadd(e.load(src, src_at, mask), e.splat(offset))
    e.store_apart(total, out, out_at, count)
    return _nan_lanes(e, total, mask)


def _transposer(step: int) -> Callable[..., int]:
    @emitted(POINTER, INT, INT, INT, POINTER, INTS, INT, INT)
    def write(
        e: Emitter, out: Any, out_at: Any, pitch: Any, count: Any, src: Any, rows: Any, rows_at: Any, columns: Any
    ) -> None:
        """Set out[j * pitch + i] = row i [start + j * step], or zero outside of it, for `count` rows, at most a vector.

        `rows` holds (offset, start, size) of a vector of rows; those not held have size zero.
        """
        blocks = e.builder.sdiv(e.sum(columns, e.lanes - 1), i64(e.lanes))
        with e.loop(blocks) as block:
            first = e.product(block, e.lanes)
            vectors = []
            for lane in range(e.lanes):
                offset, start, size = (e.scalar(rows, e.sum(rows_at, 3 * lane + i)) for i in range(3))
                begin = e.sum(start, e.product(first, step))
                vectors.append(e.source(src, offset, begin, step, size)[0])
                e.prefetch(src, e.sum(offset, begin, LINES_AHEAD // e.bytes))
            for j, vector in enumerate(e.transposed(vectors)):
                inside = e.builder.icmp_signed("<", e.sum(first, j), columns)
                mask = e.within(i64(0), 1, e.builder.select(inside, count, i64(0)))
                e.store(vector, out, e.sum(out_at, e.product(e.sum(first, j), pitch)), mask)

    return write


transpose, transpose_by_two = _transposer(1), _transposer(2)


@emitted(POINTER, INT, POINTER, INT, INT)
def copy_lanes(e: Emitter, out: Any, out_at: Any, src: Any, src_at: Any, count: Any) -> None:
    """Copy up to a vector of elements."""
    mask = e.within(i64(0), 1, count)
    e.store(e.load(src, src_at, mask), out, out_at, mask)


@emitted(POINTER)
def vector_lanes(e: Emitter, elements: Any) -> Any:
    return i64(e.lanes)
