"""The NKI kernels for their tests: loaded into the emulator, from the tree or a changed copy, and tried on one case."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from math import ceil, prod
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import nki_emulator
from conformance.execution.status import Verdict
from conformance.execution.trial import Trial
from conformance.execution.verify import verify
from conformance.implementations.implementation import Implementation
from conformance.operators import OPERATORS
from conformance.problems import Variant, typed

FOLDER = Path(__file__).parents[3] / "impls" / "nki"
PACKAGE = "conformance_nki_parts"
"""Stands for the implementation's package without its `__init__`, which registers it and looks for toolchains."""


def part(name: str) -> ModuleType:
    """A module of the implementation."""
    if PACKAGE not in sys.modules:
        package = ModuleType(PACKAGE)
        package.__path__ = [str(FOLDER)]
        sys.modules[PACKAGE] = package
    return import_module(f"{PACKAGE}.{name}")


def loader(folder: Path, target: str) -> Callable[[str], ModuleType]:
    """What a host asks for kernels."""

    @cache
    def load(name: str) -> ModuleType:
        return nki_emulator.load(folder / f"{name}.py", target=target)

    return load


@cache
def implementation(folder: Path = FOLDER / "kernels", target: str = "gen2") -> Implementation:
    """All that the host offers, with the kernels of a folder."""
    host = part("host")
    computed, found = host.Host(loader(folder, target)), Implementation("nki-tried")
    for operator in host.OPERATORS:
        found.implements(operator, dtypes=("fp32", "bf16", "fp16"))(getattr(computed, operator))
    return found


def tried(
    subject: Implementation,
    operator: str,
    problem: str,
    distribution: str = "integer",
    dtype: str = "fp32",
    seed: int = 3,
) -> Verdict:
    """The verdict on one case."""
    return verify(Trial(subject, OPERATORS[operator], typed(problem), Variant(dtype, "nchw", distribution), seed=seed))


class Minimum(NamedTuple):
    """What no convolution on this chip can do with less: bytes, each tensor moved once, and whole matrix products."""

    dma_bytes: int
    matmuls: int


def minimum(operator: str, geometry: Any, itemsize: int) -> Minimum:
    """For a convolution's geometry (n, c, k, r, s, groups, output_size) in elements of `itemsize` bytes.

    The gathers multiply 128 x 128 weights of one tap with 512 pixels, backward-weight 128 pixels of 128 filters with
    512 taps of channels. What is left of a dimension takes an instruction of its own. Raises KeyError for another
    operator.
    """
    pixels = geometry.n * prod(geometry.output_size)
    k, c, taps = geometry.k // geometry.groups, geometry.c // geometry.groups, geometry.r * geometry.s
    gather = taps * ceil(k / 128) * ceil(c / 128) * ceil(pixels / 512)
    weight = ceil(pixels / 128) * ceil(k / 128) * ceil(c * taps / 512)
    matmuls = {"conv_forward": gather, "conv_backward_data": gather, "conv_backward_weight": weight}[operator]
    bias = geometry.k * (geometry.bias and operator != "conv_backward_data")
    elements = geometry.n * geometry.c * geometry.h * geometry.w + geometry.k * (c * taps) + pixels * geometry.k + bias
    return Minimum(elements * itemsize, geometry.groups * matmuls)
