"""Tensors in their storage format, and rows of them in the format of the computation.

Half-precision elements are passed as their bits: widening is exact, and narrowing rounds once, to nearest even.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import get_num_threads, types

from .geometry import Array
from .launch import cached_kernel, index, njit_inner, run
from .vectors import intrinsic, ir

UNIT = 1 << 15


def compute_dtype(dtype: np.dtype) -> np.dtype:
    """Return the type that a problem is computed and accumulated in. Raises TypeError for integers."""
    if dtype.kind in "biu":
        raise TypeError(f"tensors are {dtype}; they must be fp32, bf16, fp16 or fp64")
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def stored(array: Array, writeable: bool = False) -> tuple[Array, Array]:
    """Return a flat tensor for the kernels as two arrays: its elements, or none if they have 16 bits, and then their
    bits.

    They are separate arguments: taking an array out of a tuple counts references on a counter that all threads share.
    Read-only tensors that are not contiguous are copied.
    """
    flat = (array if writeable else np.ascontiguousarray(array)).reshape(-1).view()
    flat.flags.writeable = writeable
    none = np.empty(0, np.uint16 if flat.itemsize > 2 else np.float32)
    none.flags.writeable = writeable
    return (flat, none) if flat.itemsize > 2 else (none, flat.view(np.uint16))


@intrinsic
def _from_fp16(typingctx: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), codegen


@intrinsic
def _to_fp16(typingctx: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), codegen


@njit_inner()
def _from_bf16(bits: int) -> float:
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@njit_inner()
def _to_bf16(value: float) -> int:
    """Round by adding just less than half a spacing, which carries where it should; a NaN stays a NaN."""
    bits = np.float32(value).view(np.uint32)
    high = bits >> np.uint32(16)
    rounded = (bits + np.uint32(0x7FFF) + (high & np.uint32(1))) >> np.uint32(16)
    return np.uint16(high | np.uint32(0x40) if value != value else rounded)


@njit_inner()
def widen_row(row: Array, row_at: int, bits: Array, at: int, count: int, fp16: bool) -> None:
    if fp16:
        for j in range(count):
            row[index(row_at + j)] = _from_fp16(bits[index(at + j)])
    else:
        for j in range(count):
            row[index(row_at + j)] = _from_bf16(bits[index(at + j)])


def _adders(widen: Any) -> tuple[Any, Any]:
    """Return loops that add one or four scaled rows of elements as `widen` reads them."""

    @njit_inner(fastmath={"contract"}, forceinline=True)
    def add_one(row: Array, row_at: int, src: Array, at: int, scale: float, count: int) -> None:
        for j in range(count):
            row[index(row_at + j)] += scale * widen(src[index(at + j)])

    @njit_inner(fastmath={"contract"}, forceinline=True)
    def add_four(row: Array, row_at: int, src: Array, at: Array, scales: Array, t: int, count: int) -> None:
        a, b, c, d = at[t], at[t + 1], at[t + 2], at[t + 3]
        scale_a, scale_b, scale_c, scale_d = scales[t], scales[t + 1], scales[t + 2], scales[t + 3]
        for j in range(count):
            first = scale_a * widen(src[index(a + j)]) + scale_b * widen(src[index(b + j)])
            rest = scale_c * widen(src[index(c + j)]) + scale_d * widen(src[index(d + j)])
            row[index(row_at + j)] += first + rest

    return add_one, add_four


@njit_inner(forceinline=True)
def _as_is(element: float) -> float:
    return element


_add_elements, _add_four_elements = _adders(_as_is)
_add_fp16, _add_four_fp16 = _adders(_from_fp16)
_add_bf16, _add_four_bf16 = _adders(_from_bf16)


@njit_inner(forceinline=True)
def add_row(
    row: Array, row_at: int, elements: Array, bits: Array, fp16: bool, at: int, scale: float, count: int
) -> None:
    """Compute row += scale * part of a tensor; scaling by one is exact."""
    if not bits.size:
        _add_elements(row, row_at, elements, at, scale, count)
    elif fp16:
        _add_fp16(row, row_at, bits, at, scale, count)
    else:
        _add_bf16(row, row_at, bits, at, scale, count)


@njit_inner(forceinline=True)
def add_rows(
    row: Array, row_at: int, elements: Array, bits: Array, fp16: bool, at: Array, scales: Array, rows: int, count: int
) -> None:
    """Compute row += scales[t] * the part of a tensor that starts at at[t], for t < rows; four read at once."""
    fours = rows - rows % 4
    for t in range(0, fours, 4):
        if not bits.size:
            _add_four_elements(row, row_at, elements, at, scales, t, count)
        elif fp16:
            _add_four_fp16(row, row_at, bits, at, scales, t, count)
        else:
            _add_four_bf16(row, row_at, bits, at, scales, t, count)
    for t in range(fours, rows):
        add_row(row, row_at, elements, bits, fp16, at[t], scales[t], count)


@njit_inner()
def narrow_row(bits: Array, at: int, row: Array, row_at: int, count: int, fp16: bool) -> None:
    if fp16:
        for j in range(count):
            bits[index(at + j)] = _to_fp16(np.float32(row[index(row_at + j)]))
    else:
        for j in range(count):
            bits[index(at + j)] = _to_bf16(np.float32(row[index(row_at + j)]))


@njit_inner()
def store_row(elements: Array, bits: Array, fp16: bool, at: int, row: Array, count: int) -> None:
    """Store the beginning of a row to a tensor, rounded once."""
    if bits.size:
        narrow_row(bits, at, row, 0, count, fp16)
    else:
        for j in range(count):
            elements[index(at + j)] = row[index(j)]


@intrinsic
def _bits(typingctx: Any, elements: Any) -> Any:
    """Return the 16-bit elements at a pointer."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(16).as_pointer())

    return types.CPointer(types.uint16)(elements), codegen


@cached_kernel
def _convert(
    worker: int, workers: int, plan: Any, work: Any, target: Any, source: Any, c: Any, d: Any, e: Any, f: Any
) -> None:
    """Widen or narrow a share of consecutive elements; `plan` is their number, the format and the direction."""
    fp16, widens = plan[1] != 0, plan[2] != 0
    start, end = plan[0] * worker // workers, plan[0] * (worker + 1) // workers
    if widens:
        widen_row(target, start, _bits(source), start, end - start, fp16)
    else:
        narrow_row(_bits(target), start, source, start, end - start, fp16)


@lru_cache(512)
def _conversion(size: int, fp16: bool, widens: bool) -> Array:
    return np.array((size, fp16, widens))


def converted(array: Array, dtype: np.dtype) -> Array:
    """Return the tensor in `dtype`: itself if it has that type, else fp32 of a half-precision one or the reverse."""
    if array.dtype == dtype:
        return array
    result, source = np.empty(array.shape, dtype), np.ascontiguousarray(array)
    plan = _conversion(source.size, np.float16 in (dtype, source.dtype), source.itemsize == 2)
    workers = min(get_num_threads(), -(-source.size // UNIT))
    run(_convert, np.dtype(np.float32), workers, plan, plan, result, source)
    return result


def operand(array: Array, dtype: np.dtype) -> Array:
    """Return a tensor for access by address: contiguous and widened. Raises TypeError if its type is not `dtype`
    then."""
    wide = np.ascontiguousarray(widened(array))
    if wide.dtype != dtype:
        raise TypeError(f"tensors are computed in {dtype} and {wide.dtype}")
    return wide


def widened(array: Array) -> Array:
    return converted(array, compute_dtype(array.dtype))
