"""Storage formats of elements, and the types that they are computed in.

Halves are widened exactly to fp32, and a result is rounded to them once, to nearest even. bf16 is passed as its bits:
neither the simulator nor older devices have the type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.implementations.bridges.numba_cuda import BF16

from .target import SIMULATED, cuda, types


def inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a device function that computes with its arguments alone.

    In the simulator the function is returned unchanged: there, calling a function of `cuda.jit` searches the globals of
    a module, which takes longer than the function.
    """
    return function if SIMULATED else cuda.jit(device=True)(function)


if SIMULATED:

    def _bits(value: float) -> int:
        return int(np.float32(value).view(np.uint32))

    def _from_bits(bits: int) -> float:
        return np.uint32(bits).view(np.float32)

else:
    from numba.cuda.libdevice import float_as_int, int_as_float

    @inline
    def _bits(value: float) -> int:
        return np.int64(float_as_int(np.float32(value))) & 0xFFFFFFFF

    @inline
    def _from_bits(bits: int) -> float:
        return int_as_float(np.int32(np.uint32(bits)))


@inline
def _as_is(value: float) -> float:
    return value


@inline
def _from_bf16(stored: int) -> float:
    return _from_bits(np.int64(stored) << 16)


@inline
def _to_bf16(value: float) -> int:
    """Round by adding just less than half a spacing, which carries where it should; a NaN becomes the usual NaN."""
    bits = _bits(value)
    return np.uint16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 if value == value else 0x7FC0)


@inline
def _from_fp16(stored: float) -> float:
    return np.float32(stored)


@inline
def _to_fp16(value: float) -> float:
    return np.float16(value)


@dataclass(frozen=True)
class Format:
    """A storage dtype: its elements in memory, the accumulator's type, and the conversions between them."""

    name: str
    memory: np.dtype
    wide: type
    widen: Callable[..., Any]
    narrow: Callable[..., Any]

    @property
    def accumulator(self) -> Any:
        return types.float64 if self.wide is np.float64 else types.float32

    @property
    def element(self) -> Any:
        return {"float32": types.float32, "float64": types.float64, "float16": types.float16}.get(
            self.memory.name, types.uint16
        )


FP32 = Format("fp32", np.dtype(np.float32), np.float32, _as_is, _as_is)
FP64 = Format("fp64", np.dtype(np.float64), np.float64, _as_is, _as_is)
FP16 = Format("fp16", np.dtype(np.float16), np.float32, _from_fp16, _to_fp16)
HALF_BF16 = Format("bf16", np.dtype(np.uint16), np.float32, _from_bf16, _to_bf16)

FORMATS = {
    np.dtype(np.float32): FP32,
    np.dtype(np.float64): FP64,
    np.dtype(np.float16): FP16,
    BF16: HALF_BF16,
}


def format_of(dtype: np.dtype) -> Format:
    """Return the format of a dtype as the CUDA array interface names it; raises TypeError for integers."""
    format_ = FORMATS.get(np.dtype(dtype.str))
    if format_ is None:
        raise TypeError(f"tensors are {dtype}; they must be fp32, bf16, fp16 or fp64")
    return format_
