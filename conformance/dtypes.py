"""The dtypes of problems and tensors, and the constants of the floating-point formats among them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    `precision` counts significant bits with the implicit one; `emin` and `emax` are the exponents of the smallest
    normal number and of the largest finite binade (IEEE 754-2019, section 3.3).
    """

    name: str
    precision: int
    emin: int
    emax: int
    unit_roundoff: float = field(init=False)
    """Largest relative error of one rounding to nearest: u = 2^-p."""
    smallest_normal: float = field(init=False)
    smallest_subnormal: float = field(init=False)
    """Also the spacing of the numbers below the smallest normal one."""

    def __post_init__(self) -> None:
        for name, exponent in (
            ("unit_roundoff", -self.precision),
            ("smallest_normal", self.emin),
            ("smallest_subnormal", self.emin - self.precision + 1),
        ):
            object.__setattr__(self, name, 2.0**exponent)

    def holds(self, other: Format) -> bool:
        """Return whether every finite number of another format is a number of this one."""
        return self.precision >= other.precision and self.emin <= other.emin and self.emax >= other.emax


FP64 = Format("fp64", 53, -1022, 1023)
FP32 = Format("fp32", 24, -126, 127)
TF32 = Format("tf32", 11, -126, 127)
BF16 = Format("bf16", 8, -126, 127)
FP16 = Format("fp16", 11, -14, 15)

FP8_E4M3 = Format("fp8_e4m3", 4, -6, 8)
"""Micikevicius et al., "FP8 formats for deep learning", 2022: no infinity, and of the last binade all but one number,
so that the largest is 448. A NaN is 0x7f or 0xff."""
FP8_E5M2 = Format("fp8_e5m2", 3, -14, 15)

FP8_BOTH = Format("fp8_e5m2_e4m3", 3, -6, 8)
"""Numbers that both have: inputs of problems with both are drawn from them, where they are not every number."""

FORMATS = {format.name: format for format in (FP64, FP32, TF32, BF16, FP16, FP8_E4M3, FP8_E5M2, FP8_BOTH)}

STORAGE: dict[str, np.dtype] = {
    "fp32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp16": np.dtype(np.float16),
    "fp64": np.dtype(np.float64),
    "fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "int32": np.dtype(np.int32),
}
"""The dtypes that tensors are stored in, by the name used everywhere in the suite."""

DTYPES = ("fp32", "bf16", "fp16", "fp64")
"""Dtypes of problems whose tensors all have one format. `all` stands for these in tables, drawn problems and behaviour
checks."""
TRAINED = {"fp8_e5m2_e4m3": ("fp8_e5m2", "fp8_e4m3")}
"""Dtypes of gradients' problems with two formats -> that of the gradient, which needs range, and that of data and
filters, which need precision (Micikevicius et al., "FP8 formats for deep learning", 2022, section 3)."""
FILTERS = {"uint8": "int8"}
"""Dtypes of problems whose filters, or matrix b, have a format of their own -> that format. What ships in 8 bits has
mostly activations without a sign beside signed weights."""
SUMS = {"fp8_e4m3": "fp32", "fp8_e5m2": "fp32", **dict.fromkeys(TRAINED, "fp32"), "int8": "int32", "uint8": "int32"}
"""Dtypes of problems whose inputs have 8 bits -> dtype that sums of products, and tensors added to these, are stored
in."""
DECLARABLE = (*DTYPES, *SUMS)
"""Dtypes that a problem, or a kernel, can have."""
WHOLE = frozenset({"int8", "uint8", "int32"})
"""Whole numbers: nothing is rounded, and results must be equal."""


def neighbours(values: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest number of a format that is at most each float64 value, and the smallest that is at least; both
    are the value where the format holds it. Beyond the largest number lies infinity, or NaN where a format has none."""
    form, storage, size = FORMATS[dtype], STORAGE[dtype], np.abs(values)
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = values.astype(storage if dtype == "fp64" else np.float32).astype(storage)
        wide = np.abs(nearest.astype(np.float64))
        is_inner = wide <= size
        bits = nearest.view(f"u{storage.itemsize}")
        # the bits of numbers of one sign are in their order
        other = np.where(is_inner, bits + 1, bits - 1).astype(bits.dtype).view(storage)
        largest = float(ml_dtypes.finfo(storage).max)  # type: ignore[no-untyped-call]
        beyond = largest + 2.0 ** (form.emax - form.precision + 1)
        other = np.where((wide == size) | ~(size < beyond), nearest, other).astype(np.float64)
    nearest = nearest.astype(np.float64)
    inner, outer = np.where(is_inner, nearest, other), np.where(is_inner, other, nearest)
    return np.where(values < 0, outer, inner), np.where(values < 0, inner, outer)


def ends(dtype: str) -> tuple[int, int]:
    """Return the smallest and the largest number of a dtype of whole numbers."""
    limits = np.iinfo(STORAGE[dtype])
    return int(limits.min), int(limits.max)


def middle(dtype: str) -> int:
    """Return the number around which a dtype of whole numbers lies: 0, or 128 in 8 bits without a sign."""
    low, high = ends(dtype)
    return (low + high + 1) // 2


def sums_of(dtype: str) -> str:
    """Return the dtype that a problem of `dtype` stores its results in."""
    return SUMS.get(dtype, dtype)


def ordinary(dtypes: Iterable[str]) -> tuple[str, ...]:
    """Return the dtypes that are in `DTYPES`; all of them if none is, since these were asked for."""
    given = tuple(dtypes)
    return tuple(name for name in given if name in DTYPES) or given


def drawn_together(dtypes: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return the dtypes of an operator, `ordinary` ones if it has any, in parts that are drawn, or take turns, apart:
    those with one format for all inputs, and each that has filters of its own. What the first are given is no other
    because an operator has the second."""
    taken = ordinary(dtypes)
    alike = tuple(name for name in taken if name not in FILTERS)
    return (*([alike] if alike else ()), *((name,) for name in taken if name in FILTERS))


def name_of(dtype: np.dtype) -> str:
    """Return the suite's name of a NumPy dtype (`str(dtype)` if it is none of `STORAGE`)."""
    return next((name for name, known in STORAGE.items() if known == dtype), str(dtype))


def dtype_place(name: str) -> tuple[int, str]:
    """Return the sort key of a dtype; the empty name comes last."""
    return (DTYPES.index(name) if name in DTYPES else len(DTYPES) + (not name)), name
