"""The numba.cuda kernels for their tests: loaded from the tree or from a changed copy, and tried on one case."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from conformance.execution.case import Case
from conformance.execution.status import Verdict
from conformance.execution.verify import verify
from conformance.implementations import registry
from conformance.implementations.bridges.numba_cuda import SIMULATES, numba_cuda_arrays
from conformance.implementations.implementation import Implementation
from conformance.layouts import layouts_of
from conformance.operators import OPERATORS
from conformance.problems import Variant, typed
from conformance.resources import IMPLS
from tests.conftest import absence

FOLDER = IMPLS / "numba_cuda"
ABSENT = absence(numba_cuda_arrays(simulator=True).require)

only_simulated = pytest.mark.skipif(bool(ABSENT), reason=ABSENT or SIMULATES)


@cache
def implementations(folder: Path = FOLDER) -> dict[str, Implementation]:
    """What a copy of the package defines."""
    found = registry.load([folder])
    assert not found.broken
    return found.implementations


def module(name: str, implementation: Implementation) -> ModuleType:
    """A module of the package that an implementation is from."""
    function = implementation.kernels[0].function
    return import_module(f"{sys.modules[function.__module__].__package__}.{name}")


def tried(
    implementation: Implementation, operator: str, problem: str, distribution: str = "integer", dtype: str = "fp32"
) -> Verdict:
    """The verdict on one case, whatever its size, with channels first."""
    kernels = [kernel for kernel in implementation.kernels if kernel.operator == operator]
    subject = Implementation(implementation.name, device=implementation.device, arrays=implementation.arrays)
    known = typed(problem)
    layout, _ = layouts_of(len(known.geometry.x.shape) - 2)
    subject.implements(operator, dtypes=(dtype,), layouts=(layout,))(kernels[0].function)
    return verify(Case(subject, OPERATORS[operator], known, Variant(dtype, layout, distribution), seed=3))
