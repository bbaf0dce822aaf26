"""NKI source for the tests of the emulator and for comparing it with the simulator: one operation a kernel."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
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


Shape = tuple[int, ...]
Spec = tuple[Shape, str]
"""Shape and name of a dtype."""
P, F = 16, 24
"""Partitions and free elements of most tiles."""
FP32: Spec = ((P, F), "fp32")
BF16: Spec = ((P, F), "bf16")
FP16: Spec = ((P, F), "fp16")
I32: Spec = ((P, F), "i32")
U32: Spec = ((P, F), "u32")
COLUMN: Spec = ((P, 1), "fp32")


@dataclass(frozen=True)
class Operation:
    """A kernel of one operation: arguments a, b, c arrive as the tiles x, y, z, and what is left in t is the result.

    `expected` computes it from the arguments, in float64, with the roundings that the documentation names; `bound`
    gives how far float32 arithmetic of unknown order may be from that, as an array or 0 for equality.
    """

    body: str
    expected: Callable[..., Any]
    bound: Callable[..., Any] | None = None
    inputs: tuple[Spec, ...] = (FP32,)
    result: Spec = FP32
    low: float = -4.0
    high: float = 4.0
    target: str = "gen2"

    @property
    def name(self) -> str:
        """Of what the last line with a call calls first."""
        names: list[str] = re.findall(r"^.*?((?:nl|nisa)\.\w+)\(", self.body, re.MULTILINE)
        return names[-1]

    @property
    def source(self) -> str:
        shape, dtype = self.result
        names = ("a", "b", "c")[: len(self.inputs)]
        loads = "".join(f"{tile} = nl.load({name})\n" for tile, name in zip("xyz", names, strict=False))
        out = f"out = nl.ndarray({shape}, dtype={DTYPES[dtype][1]}, buffer=nl.shared_hbm)\n"
        tile = f"t = nl.ndarray({shape}, dtype={DTYPES[dtype][1]}, buffer=nl.sbuf)\n"
        lines = indented(out + tile + loads + self.body.strip("\n") + "\nnisa.dma_copy(dst=out, src=t)\nreturn out")
        return f"{HEADER}def kernel({', '.join(names)}):\n{lines}"

    def arguments(self) -> list[np.ndarray]:
        """Values from `low` to `high`, the same in every run."""
        digest = int.from_bytes(hashlib.sha256(self.body.encode()).digest()[:8])
        generator = np.random.Generator(np.random.Philox(digest))
        return [self._values(generator, shape).astype(DTYPES[dtype][0]) for shape, dtype in self.inputs]

    def _values(self, generator: np.random.Generator, shape: Shape) -> np.ndarray:
        if any(dtype in ("i32", "u32", "u8") for _, dtype in self.inputs):
            return generator.integers(int(self.low), int(self.high), shape)
        return generator.uniform(self.low, self.high, shape)


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
