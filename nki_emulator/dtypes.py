"""Data types of NKI and the one rounding into each of them.

Values of every float type are held in float32, already rounded to the type: engines compute in float32, so that a tile
that is read many times is widened once. Page: "NKI ISA API Common Fields", Neuron SDK 2.32, table of data types.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from .errors import refuse

FP32 = np.dtype(np.float32)


@dataclass(frozen=True, eq=False, slots=True)
class DType:
    """A data type: `stored` is what it is in memory, `host` what the emulator computes with."""

    name: str
    stored: np.dtype
    is_float: bool

    @property
    def dtype(self) -> np.dtype:
        """What NumPy takes it for, as in np.zeros(3, nl.bfloat16)."""
        return self.stored

    @property
    def itemsize(self) -> int:
        """Bytes of an element in the device's memory."""
        return self.stored.itemsize

    @property
    def host(self) -> np.dtype:
        """Of the arrays that hold its values: float32 for floats, itself for integers."""
        return FP32 if self.is_float else self.stored

    @property
    def is_low_precision(self) -> bool:
        """Those that "Precise Floating-Point Mode" (NKI CPU Simulator, Neuron SDK 2.32) keeps in float32 when off."""
        return self.is_float and self.itemsize < 4 and self.stored != np.float16

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


_FLOATS = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
_INTEGERS = {name: name for name in ("int8", "int16", "int32", "uint8", "uint16", "uint32")} | {"bool_": "uint8"}
DTYPES = {
    **{name: DType(name, np.dtype(stored), True) for name, stored in _FLOATS.items()},
    **{name: DType(name, np.dtype(stored), False) for name, stored in _INTEGERS.items()},
}
UNSUPPORTED = ("tfloat32", "float8_e5m2_x4", "float8_e4m3fn_x4", "float8_e8m0fnu", "float4_e2m1fn_x4")
FLOAT32, INT32, UINT32 = DTYPES["float32"], DTYPES["int32"], DTYPES["uint32"]
_BY_STORED = {dtype.stored: dtype for dtype in DTYPES.values() if dtype.name != "bool_"}


def dtype_of(array: np.ndarray) -> DType:
    """The type of an argument's array. Booleans are stored as uint8."""
    if array.dtype == np.bool_:
        return DTYPES["bool_"]
    dtype = _BY_STORED.get(array.dtype)
    if dtype is None:
        refuse("dtype", f"no tensor of the device holds {array.dtype}; pass one of {', '.join(DTYPES)}")
    return dtype


def checked(dtype: object) -> DType:
    """`dtype` if it is one of nki.language's."""
    if not isinstance(dtype, DType):
        if getattr(dtype, "__name__", "").removeprefix("nl.") in UNSUPPORTED:
            refuse("not-implemented", f"{dtype.__name__} is documented but not implemented here")  # type: ignore[attr-defined]
        refuse("dtype", f"{dtype!r} is not a data type of nki.language")
    return dtype


def rounded(values: np.ndarray, dtype: DType, precise: bool) -> np.ndarray:
    """`values` (float32 or integers) rounded once, to nearest even, to `dtype`, in the type that holds it.

    What lies outside of an integer type becomes its nearest end: "NKI Release Notes" of nki 0.6, on casts. A NaN has
    no such end, and no page says what becomes of it: it is refused.
    """
    if dtype.is_float:
        if dtype.stored == FP32 or (dtype.is_low_precision and not precise):
            return values if values.dtype == FP32 else values.astype(FP32)
        return values.astype(FP32, copy=False).astype(dtype.stored).astype(FP32)
    if values.dtype == dtype.stored:
        return values
    low, high = np.iinfo(dtype.stored).min, np.iinfo(dtype.stored).max
    nearest = np.rint(values.astype(np.float64))
    if np.isnan(nearest).any():
        refuse("inexact-integer", f"a NaN is written to {dtype}, and no page says which integer it becomes")
    return np.clip(nearest, low, high).astype(dtype.stored)
