"""Kernels with what they are called with and what they must give: data for the tests of kernels that others wrote."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from nki_emulator.tests.definitions import Definition, rounded_bound
from nki_emulator.tests.sources import DTYPES, wide

SPACINGS = {"fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11, "i8": 0.0, "f8": 2.0**-4}


@dataclass(frozen=True)
class Array:
    """An argument: uniform numbers, or small whole ones."""

    shape: tuple[int, ...]
    dtype: str = "fp32"
    low: float = -1.0
    high: float = 1.0
    whole: bool = False

    def values(self, stream: np.random.Generator) -> np.ndarray:
        """Drawn from `stream`."""
        dtype = np.dtype(np.int8) if self.dtype == "i8" else DTYPES[self.dtype][0]
        drawn = stream.uniform(self.low, self.high, self.shape)
        return (np.round(drawn * 8) if self.whole else drawn).astype(dtype)


@dataclass(frozen=True)
class Call:
    """A kernel of a file: arguments are arrays to be drawn and plain values; several results have as many definitions.

    grid       instances that it is launched on
    shown      how many leading arguments the definition takes, all of them by default
    refused    rules of which the emulator names one, because the file breaks it
    frameworks modules that the file imports and its kernels do not use
    package    of a file that imports others of its own: the name it is imported by
    wrapper    source of a file that imports what the file defines, where that is no kernel by itself
    sources    a part of the names of the checkouts that it is looked for in, all by default
    page       that forbids what the file does, and where that is
    """

    file: str
    kernel: str
    arguments: tuple[Any, ...]
    definition: Definition | tuple[Definition, ...]
    grid: tuple[int, ...] = ()
    target: str = "gen2"
    shown: int | None = None
    refused: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()
    package: str = ""
    wrapper: str = ""
    sources: tuple[str, ...] = ()
    page: str = ""

    def drawn(self) -> tuple[Any, ...]:
        """Arguments, the same in every run."""
        seed = int.from_bytes(hashlib.sha256(f"{self.file}{self.kernel}".encode()).digest()[:8])
        stream = np.random.Generator(np.random.Philox(seed))
        return tuple(found.values(stream) if isinstance(found, Array) else found for found in self.arguments)

    def results(self, module: ModuleType, arguments: tuple[Any, ...]) -> Any:
        """What the kernel returns."""
        kernel = getattr(module, self.kernel)
        return (kernel[self.grid] if self.grid else kernel)(*arguments)

    def run(self, module: ModuleType) -> list[str]:
        """What is wrong with the results of the kernel, a line for each; nothing for one that is to be refused."""
        arguments = self.drawn()
        results = self.results(module, arguments)
        if self.refused:
            return []
        definitions = self.definition if isinstance(self.definition, tuple) else (self.definition,)
        results = results if isinstance(results, tuple) else (results,)
        assert len(results) == len(definitions)
        shown = arguments[: self.shown]
        exact = [wide(given) if isinstance(given, np.ndarray) else given for given in shown]
        pairs = zip(results, definitions, strict=True)
        return [line for found, definition in pairs for line in differences(found, definition, exact, self.unit)]

    @property
    def unit(self) -> float:
        """Unit roundoff of the results, which have the dtype of the first array."""
        return SPACINGS[next(found.dtype for found in self.arguments if isinstance(found, Array))]


def differences(found: np.ndarray, definition: Definition, arguments: list[Any], unit: float) -> list[str]:
    """A line if a result leaves its bound."""
    expected = definition.expected(*arguments)
    assert found.shape == expected.shape
    error = np.abs(wide(found) - expected)
    bound = np.zeros(expected.shape)
    if definition.bound is not None:
        bound = np.broadcast_to(rounded_bound(definition.bound(*arguments), expected, unit), expected.shape)
    wrong = ~(error <= bound)
    if not wrong.any():
        return []
    worst = np.unravel_index(np.argmax(np.where(wrong, error - bound, -np.inf)), error.shape)
    return [f"{wrong.sum()} of {wrong.size} out; at {worst} {found[worst]!r}, exact {expected[worst]!r}"]
