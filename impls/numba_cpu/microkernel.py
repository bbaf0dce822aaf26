"""Register tile of the dense kernels, written as explicit vector code.

Numba's auto-vectoriser keeps to 256-bit vectors and spills a tile of this size, so the one loop nest that
carries nearly all the arithmetic is emitted as vector instructions through an intrinsic.

Sizes: a tile is TILE_ROWS x VECTORS vectors of LANES elements.  With AVX-512 (32 registers) 13 x 2 takes 26
accumulators, 2 operand vectors and leaves 4 for broadcasts; 13 rows fit channel counts that are powers of two
better than 14 (64 = 5 * 13 - 1, 128 = 10 * 13 - 2).  Narrower machines have 16 registers, hence 6 x 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from .geometry import Array
from .launch import njit_inner

ir = cgutils.ir

WIDE = "+avx512f" in get_host_cpu_features()
VECTOR_BYTES = 64 if WIDE else 32
TILE_ROWS = 13 if WIDE else 6
VECTORS = 2
SEGMENT = 3


def lanes_of(dtype: np.dtype) -> int:
    return VECTOR_BYTES // np.dtype(dtype).itemsize


def tile_columns(dtype: np.dtype) -> int:
    return VECTORS * lanes_of(dtype)


class TileEmitter:
    def __init__(self, context: Any, builder: Any, element: types.Float) -> None:
        self.builder = builder
        self.element = context.get_value_type(element)
        self.bytes = element.bitwidth // 8
        self.lanes = VECTOR_BYTES // self.bytes
        self.vector = ir.VectorType(self.element, self.lanes)
        fma_type = ir.FunctionType(self.vector, [self.vector] * 3)
        name = f"llvm.fma.v{self.lanes}f{element.bitwidth}"
        self.fma = cgutils.get_or_insert_function(builder.module, fma_type, name)
        zero = ir.Constant(self.vector, None)
        self.tile = [[cgutils.alloca_once_value(builder, zero) for _ in range(VECTORS)] for _ in range(TILE_ROWS)]

    def vector_at(self, base: Any, offset: Any, kind: Any = None) -> Any:
        pointer = self.builder.gep(base, [offset])
        return self.builder.bitcast(pointer, (kind or self.vector).as_pointer())

    def shifted(self, offset: Any, columns: int) -> Any:
        return self.builder.add(offset, ir.Constant(offset.type, columns))

    def live_lanes(self, live: Any, offset: Any) -> list[Any]:
        """One lane mask per vector: which columns hold data rather than padding."""
        kind = ir.VectorType(ir.IntType(8), self.lanes)
        masks = []
        for v in range(VECTORS):
            pointer = self.vector_at(live, self.shifted(offset, v * self.lanes), kind)
            flags = self.builder.load(pointer, align=1)
            # A comparison would be inverted by the optimiser and then no longer fold into the masked FMA.
            masks.append(self.builder.trunc(flags, ir.VectorType(ir.IntType(1), self.lanes)))
        return masks

    def reduced(self, masks: list[Any], every: bool) -> Any:
        """Whether every lane is live, or whether any lane is."""
        merged = masks[0]
        for mask in masks[1:]:
            merged = self.builder.and_(merged, mask) if every else self.builder.or_(merged, mask)
        bits = self.builder.bitcast(merged, ir.IntType(self.lanes))
        wanted = ir.Constant(bits.type, -1 if every else 0)
        return self.builder.icmp_unsigned("==" if every else "!=", bits, wanted)

    def step(self, a: Any, a_at: Any, b: Any, b_at: Any, masks: list[Any] | None) -> None:
        """tile[i, j] += a[a_at + i] * b[b_at + j]; under masks, the dead columns keep their value."""
        builder = self.builder
        columns = [
            builder.load(self.vector_at(b, self.shifted(b_at, v * self.lanes)), align=self.bytes)
            for v in range(VECTORS)
        ]
        for i in range(TILE_ROWS):
            row = self.splat(builder.load(builder.gep(a, [self.shifted(a_at, i)]), align=self.bytes))
            for v in range(VECTORS):
                old = builder.load(self.tile[i][v])
                new = builder.call(self.fma, [row, columns[v], old])
                builder.store(builder.select(masks[v], new, old) if masks else new, self.tile[i][v])

    def splat(self, scalar: Any) -> Any:
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
        order = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), None)
        return self.builder.shuffle_vector(first, undefined, order)

    def write(self, out: Any, out_at: Any, accumulate: Any) -> None:
        builder = self.builder
        zero = ir.Constant(self.vector, None)
        for i in range(TILE_ROWS):
            for v in range(VECTORS):
                column = (i * VECTORS + v) * self.lanes
                pointer = self.vector_at(out, self.shifted(out_at, column))
                old = builder.select(accumulate, builder.load(pointer, align=self.bytes), zero)
                builder.store(builder.fadd(old, builder.load(self.tile[i][v])), pointer, align=self.bytes)


@intrinsic
def _tile_product(
    typingctx: Any, out: Any, out_at: Any, accumulate: Any, a: Any, a_at: Any, b: Any, b_at: Any, b_step: Any,
    live: Any, live_scale: Any, segments: Any, segments_at: Any, segment_count: Any,
) -> Any:  # fmt: skip
    i64 = types.int64
    signature = types.void(out, i64, types.boolean, a, i64, b, i64, i64, live, i64, segments, i64, i64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def data(index: int) -> Any:
            return context.make_array(sig.args[index])(context, builder, args[index]).data

        out_p, a_p, b_p, live_p, segments_p = (data(index) for index in (0, 3, 5, 8, 10))
        _, out_at, accumulate, _, a_at, _, b_at, b_step, _, live_scale, _, segments_at, count = args
        emitter = TileEmitter(context, builder, sig.args[0].dtype)

        def field(segment: Any, which: int) -> Any:
            row = builder.mul(segment.index, ir.Constant(segment.index.type, SEGMENT))
            return builder.load(builder.gep(segments_p, [emitter.shifted(builder.add(segments_at, row), which)]))

        def run(length: Any, a_seg: Any, b_seg: Any, masks: list[Any] | None) -> None:
            with cgutils.for_range(builder, length) as inner:
                a_row = builder.mul(inner.index, ir.Constant(inner.index.type, TILE_ROWS))
                b_row = builder.mul(inner.index, b_step)
                emitter.step(a_p, builder.add(a_seg, a_row), b_p, builder.add(b_seg, b_row), masks)

        with cgutils.for_range(builder, count) as segment:
            a_seg, b_seg = builder.add(a_at, field(segment, 0)), builder.add(b_at, field(segment, 1))
            length = field(segment, 2)
            masks = emitter.live_lanes(live_p, builder.mul(b_seg, live_scale))
            any_live, all_live = emitter.reduced(masks, every=False), emitter.reduced(masks, every=True)
            with builder.if_then(any_live), builder.if_else(all_live) as (then, otherwise):
                with then:
                    run(length, a_seg, b_seg, None)
                with otherwise:
                    run(length, a_seg, b_seg, masks)
        emitter.write(out_p, out_at, accumulate)
        return context.get_dummy_value()

    return signature, codegen


@njit_inner()
def tile_product(
    out: Array, out_at: int, accumulate: bool, a: Array, a_at: int, b: Array, b_at: int, b_step: int,
    live: Array, live_scale: int, segments: Array, segments_at: int, segment_count: int,
) -> None:  # fmt: skip
    """out (+)= sum over segments and t of a[t, i] * b[t, j], i < TILE_ROWS, j < tile columns, row-major.

    A segment (a offset, b offset, length) reads a in steps of TILE_ROWS and b in steps of b_step.  Columns
    with live[(b_at + b offset) * live_scale + j] = 0 are left out, not multiplied: NaN and Inf stay put.
    """
    _tile_product(
        out, out_at, accumulate, a, a_at, b, b_at, b_step, live, live_scale, segments, segments_at, segment_count
    )
