"""Operations of the emulator with what they compute, for its tests and for comparing it with the simulator: the tables
operations.toml and beta_operations.toml, and the names that their expressions use."""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nki_emulator.tests.definitions import gamma
from nki_emulator.tests.sources import BETA_HEADER, BFLOAT16, DTYPES, HEADER, f32, indented, unit, wide

P, F = 16, 24
"""Partitions and free elements of most tiles."""
ROWS, COLUMNS = np.arange(P)[:, None], np.arange(F)[None, :]


def each(function: Callable[[float], float], values: np.ndarray) -> np.ndarray:
    """A function of Python's `math` of every element."""
    return np.asarray(np.vectorize(function, otypes=[np.float64])(values))


def last_place(values: np.ndarray) -> np.ndarray:
    """Two roundings of the result: float64 functions of different libraries may round apart in the last place."""
    return unit(np.abs(values), 2)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(wide(a).reshape(len(a), -1).T @ wide(b).reshape(len(b), -1))


def product_bound(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of a sum of len(a) products, each rounded and added in float32, in any order, and one addition on top."""
    return unit(product(np.abs(a), np.abs(b)), len(a) + 2)


def total(a: np.ndarray) -> np.ndarray:
    return np.asarray(wide(a).sum(axis=1, keepdims=True))


def total_bound(a: np.ndarray) -> np.ndarray:
    return unit(np.abs(wide(a)).sum(axis=1, keepdims=True), F)


def bf16_total_bound(a: np.ndarray) -> np.ndarray:
    """That of float32, and half a spacing of bf16."""
    return np.asarray(total_bound(a) + np.abs(total(a)) * 2.0**-8)


def mean(a: np.ndarray) -> np.ndarray:
    return np.asarray(wide(a).mean(axis=1, keepdims=True))


def variance(a: np.ndarray) -> np.ndarray:
    """Mean and variance, side by side."""
    return np.concatenate([mean(a), wide(a).var(axis=1, keepdims=True)], axis=1)


def statistics(a: np.ndarray) -> np.ndarray:
    halves = [wide(a)[:, start::2] for start in (0, 1)]
    parts = [[np.full(P, h.shape[1]), h.mean(axis=1), h.var(axis=1) * h.shape[1]] for h in halves]
    return np.stack([part for half in parts for part in half], axis=1)


def spread_bound(a: np.ndarray) -> np.ndarray:
    """Sums of F squares of at most (2 max)^2, with a handful of roundings each."""
    return unit(np.full((P, 1), 4 * F * np.square(wide(a)).max()), F + 8)


def scan(step: Callable[[np.ndarray, int], np.ndarray], state: np.ndarray) -> np.ndarray:
    """The states [P, F] after each of F steps."""
    columns = []
    for i in range(F):
        state = step(state, i)
        columns.append(state)
    return np.stack(columns, axis=1)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def ranks(x: np.ndarray) -> np.ndarray:
    """All elements of a partition differ."""
    return x * 100 + COLUMNS


def places(x: np.ndarray) -> np.ndarray:
    """Where the eight largest ranks are."""
    return np.asarray(np.argsort(-ranks(x), axis=1)[:, :8])


def replaced(x: np.ndarray) -> np.ndarray:
    found = ranks(x)
    np.put_along_axis(found, places(x), -1.0, axis=1)
    return found


def selected(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(y > 0, x, float(np.finfo(np.float32).min)))


NAMES: dict[str, Any] = globals() | {"BFLOAT16": BFLOAT16, "f32": f32, "gamma": gamma}
"""What expressions of the tables may use; the last three are imported for them alone."""


def evaluated(expression: str, arguments: list[np.ndarray], **more: Any) -> np.ndarray:
    """An expression of the tables: of the arguments a, b and c, and of x, y and z, which are those in float64."""
    raw, exact = zip("abc", arguments, strict=False), zip("xyz", map(wide, arguments), strict=False)
    return np.asarray(eval(expression, {**NAMES, **dict(raw), **dict(exact), **more}))


@dataclass(frozen=True, kw_only=True)
class Computed:
    """What is left in t after a body, and how far it may be from that."""

    body: str
    gives: str
    within: str = ""

    def expected(self, arguments: list[np.ndarray]) -> np.ndarray:
        """In float64, with the roundings that the documentation names."""
        return evaluated(self.gives, arguments)

    def allowed(self, arguments: list[np.ndarray]) -> np.ndarray:
        """Distance that float32 arithmetic of unknown order may have; 0 is equality."""
        return evaluated(self.within or "0.0", arguments, exact=self.expected(arguments))


@dataclass(frozen=True, kw_only=True)
class Operation(Computed):
    """Of the present API: arguments a, b, c arrive as the tiles x, y, z. Formats are "dtype" or "dtype PxF"."""

    inputs: tuple[str, ...] = ("fp32",)
    result: str = "fp32"
    values: tuple[float, float] = (-4, 4)
    target: str = "gen2"

    @property
    def name(self) -> str:
        """Of what the last line with a call calls first."""
        names: list[str] = re.findall(r"^.*?((?:nl|nisa)\.\w+)\(", self.body, re.MULTILINE)
        return names[-1]

    @property
    def source(self) -> str:
        shape, dtype = spec(self.result)
        names = ("a", "b", "c")[: len(self.inputs)]
        loads = "".join(f"{tile} = nl.load({name})\n" for tile, name in zip("xyz", names, strict=False))
        out = f"out = nl.ndarray({shape}, dtype={DTYPES[dtype][1]}, buffer=nl.shared_hbm)\n"
        tile = f"t = nl.ndarray({shape}, dtype={DTYPES[dtype][1]}, buffer=nl.sbuf)\n"
        lines = indented(out + tile + loads + self.body.strip("\n") + "\nnisa.dma_copy(dst=out, src=t)\nreturn out")
        return f"{HEADER}def kernel({', '.join(names)}):\n{lines}"

    def arguments(self) -> list[np.ndarray]:
        """The same in every run; whole numbers if one of them has a dtype of whole numbers."""
        digest = int.from_bytes(hashlib.sha256(self.body.encode()).digest()[:8])
        stream = np.random.Generator(np.random.Philox(digest))
        low, high = self.values
        specs = [spec(text) for text in self.inputs]
        if any(dtype in ("i32", "u32", "u8") for _, dtype in specs):
            return [stream.integers(int(low), int(high), shape).astype(DTYPES[dtype][0]) for shape, dtype in specs]
        return [stream.uniform(low, high, shape).astype(DTYPES[dtype][0]) for shape, dtype in specs]


def spec(text: str) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a format."""
    dtype, _, shape = text.partition(" ")
    return tuple(map(int, shape.split("x"))) if shape else (P, F), dtype


_FRAME = """x, y = nl.load(a), nl.load(b)
p, f = nl.arange(16)[:, None], nl.arange(24)[None, :]
{body}
z = nl.ndarray(t.shape, dtype=t.dtype, buffer=nl.shared_hbm)
nl.store(z, value=t)
return z"""


@dataclass(frozen=True, kw_only=True)
class BetaOperation(Computed):
    """Of the first generation: the tiles x and y hold whole numbers from -4 to 4, or from 1 to 8."""

    name: str
    positive: bool = False

    @property
    def source(self) -> str:
        return f"{BETA_HEADER}@nki.jit\ndef kernel(a, b):\n{indented(_FRAME.format(body=self.body.strip(chr(10))))}"

    def arguments(self) -> list[np.ndarray]:
        stream = np.random.Generator(np.random.Philox(7))
        low, high = (1, 9) if self.positive else (-4, 5)
        return [stream.integers(low, high, (P, F)).astype(np.float32) for _ in range(2)]


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(name).read_text())


def _operations() -> Iterator[Operation]:
    table = _table("operations.toml")
    for row in table["tensor_tensor"]:
        op, dtype = row.pop("op"), row.pop("dtype", "fp32")
        body = f"nisa.tensor_tensor(dst=t, data1=x, data2=y, op=nl.{op})"
        yield Operation(body=body, inputs=(dtype, dtype), result=dtype, **row)
    for row in table["activation"]:
        body = f"nisa.activation(dst=t, op=nl.{row['op']}, data=x)"
        gives = f"each(lambda x: {row['gives']}, x)"
        yield Operation(body=body, gives=gives, within="last_place(exact)", values=row.get("values", (-4, 4)))
    for row in table["operation"]:
        yield Operation(**row)


OPERATIONS = tuple(_operations())
BETA_OPERATIONS = tuple(BetaOperation(**row) for row in _table("beta_operations.toml")["operation"])
