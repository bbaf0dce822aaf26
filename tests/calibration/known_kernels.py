"""All known-bad and known-good kernels, and the judge on them, exactly as on an implementation.

Kernels of a family are `KNOWN_BAD` of its folder's `known_bad.py` and `KNOWN_GOOD` of its `known_good.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from conformance.contract import Contract
from conformance.inputs import Expectation
from conformance.judge import Exact, Judgement, judge
from conformance.judge.expected import Probed
from conformance.operators import FAMILIES, Arrays
from tests.calibration.kernels import memory, scale, sizes, structure, values
from tests.calibration.kernels.kernel import DEFAULT, CampaignRow, KnownGood, KnownKernel, Mutant, Run

FOLDER = Path(__file__).parent


def _of_families(module: str, name: str) -> dict[str, tuple[Any, ...]]:
    """Return the value of a name in a module of each family that has the module."""
    found = (family for family in FAMILIES if (FOLDER / family / f"{module}.py").exists())
    return {family: getattr(import_module(f"tests.calibration.{family}.{module}"), name, ()) for family in found}


MUTANTS: tuple[Mutant, ...] = (
    *structure.KNOWN_BAD,
    *scale.KNOWN_BAD,
    *memory.KNOWN_BAD,
    *values.KNOWN_BAD,
    *sizes.KNOWN_BAD,
    *chain(*_of_families("known_bad", "KNOWN_BAD").values()),
)
"""Kernels with a small deviation from a good one each. The judge must detect them all."""
KINDS: tuple[str, ...] = tuple(dict.fromkeys(mutant.family for mutant in MUTANTS))
KNOWN_GOOD: tuple[KnownGood, ...] = tuple(chain(*_of_families("known_good", "KNOWN_GOOD").values()))
"""Correct kernels, written plainly: the judge must pass each under its contract, and detect it under one a class
stricter."""
ROWS: tuple[CampaignRow, ...] = tuple(chain(*_of_families("known_good", "ROWS").values()))
"""Problems on which `python -m tests.calibration false-alarms` runs the kernels."""
MEDIUM: dict[str, tuple[str, ...]] = _of_families("known_good", "MEDIUM")
"""Family -> problems on which a contract that is too strict must show; without any it is reported as undetected."""


def computed(run: Run, expected: Expectation) -> Arrays:
    """Return the outputs of a kernel on copies of the inputs."""
    recipe = expected.recipe
    with np.errstate(all="ignore"):
        return run(
            recipe.workload.operator,
            recipe.workload.geometry,
            {n: a.copy() for n, a in expected.inputs.items()},
            recipe.dtype,
        )


def judgements(
    subject: KnownKernel,
    expected: Expectation,
    contract: Contract | None = None,
    outputs: Arrays | None = None,
    infer: bool = True,
) -> Iterator[Judgement]:
    """Yield a judgement of every output, under the subject's own contract or another one; none where that exempts it.
    `outputs` are the subject's, if computed already; without `infer` no precision is inferred, see `judge`."""
    recipe = expected.recipe
    contract = (contract or subject.contract).on(recipe.workload.geometry, recipe.dtype)
    if contract.exempts(recipe.distribution, recipe.dtype):
        return
    if outputs is None:
        outputs = computed(subject.run, expected)
    for output in Exact(expected).outputs(outputs):
        yield judge(output, recipe.distribution, contract, infer)


def judged_by_probes(expected: Expectation, actual: np.ndarray, contract: Contract = DEFAULT) -> Judgement:
    """Judge a main output by probes alone, all of which are computed here."""
    output, *_ = expected.recipe.workload.outputs
    (judgement,) = Probed(expected).judge({output: actual}, contract)
    return judgement
