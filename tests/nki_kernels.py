"""The NKI kernels for their tests: loaded into the emulator, from the tree or a changed copy, and tried on one case."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import nki_emulator
from conformance.execution.case import Case
from conformance.execution.verify import Verdict, verify
from conformance.implementations.implementation import Implementation
from conformance.operators import OPERATORS
from conformance.problems import Variant, typed

FOLDER = Path(__file__).parents[1] / "impls" / "nki"
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
    for operator, method, when in host.CAPABILITIES:
        found.implements(operator, dtypes=("fp32", "bf16", "fp16"), when=when)(getattr(computed, method))
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
    return verify(Case(subject, OPERATORS[operator], typed(problem), Variant(dtype, "nchw", distribution), seed=seed))
