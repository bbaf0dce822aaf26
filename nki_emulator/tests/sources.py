"""NKI source for the tests of the emulator and for comparing it with the simulator: one operation a kernel."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

import nki_emulator
from nki_emulator import load

FOLDER = Path(nki_emulator.__file__).parent
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
HEADER = """import nki
import nki.language as nl
import nki.isa as nisa


@nki.jit
"""
BETA_HEADER = """import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import neuronxcc.nki.typing as nt

kept = []


"""
MARK = "  # refused"
"""Ends the line of a kernel that breaks a rule."""

DTYPES = {
    "fp32": (np.dtype(np.float32), "nl.float32"),
    "bf16": (BFLOAT16, "nl.bfloat16"),
    "fp16": (np.dtype(np.float16), "nl.float16"),
    "i32": (np.dtype(np.int32), "nl.int32"),
    "u32": (np.dtype(np.uint32), "nl.uint32"),
    "u8": (np.dtype(np.uint8), "nl.uint8"),
    "f8": (np.dtype(ml_dtypes.float8_e4m3), "nl.float8_e4m3"),
}


def loaded(folder: Path, source: str, **options: Any) -> ModuleType:
    """A source as a file in a folder, loaded by the emulator."""
    path = folder / f"kernel_{hashlib.sha256(source.encode()).hexdigest()[:12]}.py"
    path.write_text(source)
    return load(path, **options)


def indented(body: str) -> str:
    """Lines of a function."""
    return "".join(f"    {line}\n" if line.strip() else "\n" for line in body.strip("\n").splitlines())


def f32(values: Any) -> np.ndarray:
    """One rounding to float32."""
    return np.asarray(values).astype(np.float32).astype(np.float64)


def unit(values: Any, roundings: int) -> np.ndarray:
    """What so many roundings to float32 of terms that add up to `values` in magnitude can amount to."""
    return np.asarray(values) * roundings * 2.0**-24


def wide(values: np.ndarray) -> np.ndarray:
    """As float64."""
    return np.asarray(values).astype(np.float64)


SETUP = """out = nl.ndarray((16, 24), dtype=nl.float32, buffer=nl.shared_hbm)
x = nl.load(a)
y = nl.load(a)
i = nl.load(c)
t = nl.ndarray((16, 24), dtype=nl.float32, buffer=nl.sbuf)
p = nl.ndarray((24, 24), dtype=nl.float32, buffer=nl.psum)
big = nl.zeros((128, 1024), dtype=nl.bfloat16, buffer=nl.sbuf)
nl.store(out, x)
"""
"""Before the lines of a case: a[16, 24] in fp32, b in bf16, c in int32, every value between 1 and 2 or an integer."""


def arguments() -> tuple[np.ndarray, ...]:
    """a, b and c."""
    values = 1 + np.arange(384, dtype=np.float32).reshape(16, 24) / 384
    return values, values.astype(BFLOAT16), np.arange(384, dtype=np.int32).reshape(16, 24)


def source(body: str) -> str:
    """A kernel around the lines of a case."""
    lines = body if "return" in body else body + "\nreturn out"
    return f"{HEADER}def kernel(a, b, c):\n{indented(SETUP + lines)}"


@dataclass(frozen=True, eq=False)
class Refused:
    """A file whose `kernel` breaks `rule` in the line that ends with the mark, if there is one."""

    rule: str
    source: str
    target: str = "gen2"
    arguments: tuple[np.ndarray, ...] = arguments()

    @property
    def line(self) -> int | None:
        return next((n for n, text in enumerate(self.source.splitlines(), 1) if text.endswith(MARK)), None)


def marked(body: str) -> str:
    """The last line is what is refused, unless another one is marked."""
    body = body.rstrip("\n")
    return body if MARK in body else body + MARK
