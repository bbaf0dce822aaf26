"""The floating-point formats a verdict is about, and their constants."""

from __future__ import annotations

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


FP64 = Format("fp64", 53, -1022, 1023)
FP32 = Format("fp32", 24, -126, 127)
TF32 = Format("tf32", 11, -126, 127)
BF16 = Format("bf16", 8, -126, 127)
FP16 = Format("fp16", 11, -14, 15)

FORMATS = {format.name: format for format in (FP64, FP32, TF32, BF16, FP16)}

STORAGE: dict[str, np.dtype] = {
    "fp32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp16": np.dtype(np.float16),
    "fp64": np.dtype(np.float64),
}
"""The dtypes that tensors are stored in, by the name used everywhere in the suite."""


def name_of(dtype: np.dtype) -> str:
    """The suite's name of a NumPy dtype (`str(dtype)` if it is none of `STORAGE`)."""
    return next((name for name, known in STORAGE.items() if known == dtype), str(dtype))
