"""Which NKI toolchain is here, and whether it computes. No toolchain is imported before the first question."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from conformance.implementations.bridges.neuron import neuron_device, release, require_module
from conformance.implementations.bridges.neuron_stacks import Stack
from conformance.implementations.devices import Unavailable

MINIMUM = (0, 6)
"""Lowest version of the `nki` package. Earlier simulators accumulate overlapping PSUM tiles and reshape operands
wrongly."""
TARGET, PRECISE = "NEURON_PLATFORM_TARGET_OVERRIDE", "NKI_PRECISE_FP"
GENERATIONS = {"gen2": 2, "gen3": 3, "gen4": 4}
TARGETS = {"trn1": "gen2", "inf2": "gen2", "trn2": "gen3", "trn3": "gen4"} | {name: name for name in GENERATIONS}
"""Value of the variable -> generation of the NeuronCore."""
SAMPLE = np.float32([[1 + 2**-9, -2.5, 3, 1 / 3], [1 + 3 * 2**-9, 2**-20, 448, -1 / 7]])
"""Mostly values that bfloat16 cannot hold."""

Launch = Callable[[Any], Callable[..., Any]]
"""Kernel of the toolchain -> function that runs it on NumPy arrays."""


def require(stack: Stack) -> None:
    """Raise Unavailable without a toolchain that these kernels are written for; `stack` is one that has it."""
    require_module("nki", "nki", stack)
    version = release("nki")
    if not _at_least(version, MINIMUM):
        needed = f"{'.'.join(map(str, MINIMUM))} is needed"
        raise Unavailable(f"nki {version} is too old, {needed}; {stack.way(neuron_device())}")
    if not hasattr(import_module("nki"), "simulate"):
        raise Unavailable(f"nki {version} has no nki.simulate")


def _at_least(text: str, minimum: tuple[int, ...]) -> bool:
    """Compare the version in a text like `0.6.0+abc` with the minimum; a text that begins with no number is too low."""
    numbers = re.match(r"\d+(\.\d+)*", text)
    return numbers is not None and tuple(map(int, numbers[0].split("."))) >= minimum


def asked_target() -> str:
    """Return the generation that the variable names, or its text where that is unknown; empty if it is not set."""
    text = os.environ.get(TARGET, "")
    return TARGETS.get(text, text)


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set variables to these values, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def loaded(path: Path, launch: Launch) -> ModuleType:
    """Return a file of kernels, imported with the real toolchain, in which every kernel runs on NumPy arrays.

    Each call imports the file anew, so that a kernel compiled for one target is not taken for another's.
    """
    spec = importlib.util.spec_from_file_location(f"nki_kernels_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    original, module = importlib.util.module_from_spec(spec), ModuleType(spec.name)
    spec.loader.exec_module(original)
    vars(module).update(vars(original))
    vars(module).update({name: launch(getattr(original, name)) for name in kernels(path)})
    return module


def kernels(path: Path) -> list[str]:
    """Return the functions of a file that are decorated with `nki.jit`, without knowing a toolchain's type of
    kernel."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    decorators = ((f.name, d.func if isinstance(d, ast.Call) else d) for f in functions for d in f.decorator_list)
    return [name for name, decorator in decorators if ast.unparse(decorator) == "nki.jit"]


def require_right(canary: ModuleType, generation: str) -> None:
    """Raise Unavailable where a toolchain computes wrong results.

    `generation` is that of the NeuronCore which it must compute for.
    """
    try:
        tripled = canary.tripled(SAMPLE.copy())
        made_for = canary.generation(SAMPLE.copy())
    except Exception as problem:  # whatever a toolchain raises is its answer
        first_line = str(problem).partition("\n")[0]
        raise Unavailable(f"the canary kernel failed ({type(problem).__name__}: {first_line})") from None
    if not isinstance(tripled, np.ndarray) or tripled.shape != SAMPLE.shape:
        raise Unavailable(f"the canary kernel returned {type(tripled).__name__}, not an array of shape {SAMPLE.shape}")
    if not tripled.any():
        raise Unavailable("the canary kernel returned zeros: this toolchain does not compute")
    if np.array_equal(tripled, 3 * SAMPLE):
        raise Unavailable(f"bfloat16 tiles do not round (see {PRECISE})")
    if not np.array_equal(tripled, 3 * SAMPLE.astype(ml_dtypes.bfloat16).astype(np.float32)):
        raise Unavailable("the canary kernel returned wrong values")
    if int(np.asarray(made_for).flat[0]) != GENERATIONS[generation]:
        names = {number: name for name, number in GENERATIONS.items()}
        what = names.get(int(np.asarray(made_for).flat[0]), "an unknown NeuronCore")
        raise Unavailable(f"the toolchain works for {what}: start the process with {TARGET}={generation}")
