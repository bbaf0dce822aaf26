"""The emulator against nki.simulate, operation by operation and on whole convolutions, for both targets.

Only a machine with the vendor's `nki` can do that: the workflow `nki-sim` is there for it. It has not been run yet.
That the emulator computes what each kernel is for has tests of its own, on every machine.
"""

from __future__ import annotations

import itertools
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.execution.trial import Trial
from conformance.implementations import registry
from conformance.implementations.implementation import Implementation, Unsupported
from conformance.inputs import Expectation
from conformance.operators import OPERATORS, takes
from conformance.problems import Variant, typed
from nki_emulator.tests.kernels.neuron_fakes import absence
from nki_emulator.tests.operations import OPERATIONS as NKI_OPERATIONS
from nki_emulator.tests.operations import Operation

FOLDER = Path(__file__).parents[3] / "impls" / "nki"
PAIRS = {"gen2": ("nki@emu", "nki@sim"), "gen3": ("nki@emu-gen3", "nki@sim-gen3")}
PROBLEMS = (
    "n2 c3 h7 w6 k4 r3 s3 p1",
    "n1 c4 h9 w8 k6 r3 s2 u2x1 p0:1x2:0 g2",
    "n1 c5 h8 w8 k5 r3 s3 d2 p2 g5",
    "n1 c130 h3 w4 k129 r1 s1",
    "pool n2 c3 h7 w6 r3 s2 u2x1 p1:0x0:1",
)


@pytest.fixture(scope="module")
def found() -> dict[str, Implementation]:
    """The tiers of the NKI implementation."""
    loaded = registry.load([FOLDER])
    assert (loaded.broken, loaded.unavailable) == ({}, {})
    return loaded.implementations


def computed(tier: Any, path: Path, operation: Operation) -> np.ndarray:
    """What a tier makes of a file's kernel; a test that it cannot run for is skipped with its reason."""
    if absence(tier.require):
        pytest.skip(f"{tier}: {absence(tier.require)}")
    result: np.ndarray = tier.open(path).kernel(*operation.arguments())
    return result


@pytest.mark.parametrize("operation", NKI_OPERATIONS, ids=lambda operation: operation.name)
def test_operations_agree(found: dict[str, Implementation], tmp_path: Path, operation: Operation):
    """To the bit where one result is right; otherwise each may be `allowed` away from the exact one."""
    bridge: Any = found["nki"].arrays
    tiers = import_module(type(bridge.tier).__module__)
    path = tmp_path / "operation.py"
    path.write_text(operation.source)
    simulated = computed(tiers.Simulator(operation.target), path, operation)
    emulated = computed(tiers.Emulator(operation.target), path, operation)
    assert (simulated.dtype, simulated.shape) == (emulated.dtype, emulated.shape)
    if not operation.within:
        np.testing.assert_array_equal(simulated, emulated)
    else:
        apart = np.abs(simulated.astype(np.float64) - emulated.astype(np.float64))
        assert (apart <= 2 * operation.allowed(operation.arguments())).all()


def whole() -> list[tuple[str, str]]:
    """Operators and problems that they take."""
    pairs = itertools.product(OPERATORS, PROBLEMS)
    return [(name, text) for name, text in pairs if takes(name, typed(text).geometry)]


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("operator", "problem"), whole())
@pytest.mark.parametrize("target", PAIRS)
def test_whole_kernels_agree_on_integers(
    found: dict[str, Implementation], target: str, operator: str, problem: str, dtype: str
):
    """Sums of small integers are exact in fp32, so that their order makes no difference."""
    simulated, emulated = (outputs(found[name], operator, problem, dtype) for name in reversed(PAIRS[target]))
    for pair in zip(simulated, emulated, strict=True):
        np.testing.assert_array_equal(*pair, strict=True)


def outputs(implementation: Implementation, operator: str, problem: str, dtype: str) -> tuple[np.ndarray, ...]:
    """What a tier's kernel returns; a test that it cannot or does not run for is skipped with its reason."""
    case = Trial(implementation, OPERATORS[operator], typed(problem), Variant(dtype, "nchw", "integer"), seed=3)
    if reason := absence(implementation.arrays.require):
        pytest.skip(f"{implementation.name}: {reason}")
    try:
        invocation = case.invocation()
    except Unsupported as refusal:
        pytest.skip(f"{implementation.name}: {refusal}")
    return invocation.call(invocation.to_device(Expectation(case.recipe).inputs))
