"""A kernel whose verdict is known beforehand, judged exactly as an implementation would be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.execution.judge_outputs import evidence
from conformance.inputs import Expectation
from conformance.inputs.probing import Probes
from conformance.judge import Contract, Judgement, judge, outputs_of
from conformance.judge.probes import judge_by_probes
from conformance.operators import CONVOLUTIONS, Arrays, Operator
from conformance.operators.spatial import RANKS

DEFAULT = Contract()
STORED = ("fp32", "bf16", "fp16")
SHORT = ("bf16", "fp16")
FP32_ONLY = ("fp32",)
FP8, INT8 = ("fp8_e4m3", "fp8_e5m2"), ("int8",)

Run = Callable[[Operator, Any, Arrays, str], Arrays]
"""(operator, geometry, inputs in storage dtype, dtype) -> outputs in storage dtype, canonical order."""


@dataclass(frozen=True, slots=True)
class KnownKernel:
    """A kernel, and what it computes. Its family: that of its operators, or of a known-bad one the kind of mistake."""

    name: str
    family: str
    run: Run
    contract: Contract = DEFAULT
    operators: tuple[str, ...] = CONVOLUTIONS
    when: Callable[[Any], bool] = lambda geometry: True
    dtypes: tuple[str, ...] = STORED
    ranks: tuple[int, ...] = RANKS
    """Numbers of dimensions that it computes."""

    def applies(self, operator: str, geometry: Any, dtype: str) -> bool:
        """On an empty batch only what is about one: of the others nothing is left to see."""
        about = geometry.n > 0 or self.family == "partial-requests"
        known = operator in self.operators and dtype in self.dtypes and geometry.rank in self.ranks
        return about and known and self.when(geometry)


def computed(run: Run, expected: Expectation) -> Arrays:
    """What a kernel makes of copies of the inputs."""
    recipe = expected.recipe
    with np.errstate(all="ignore"):
        return run(recipe.operator, recipe.geometry, {n: a.copy() for n, a in expected.inputs.items()}, recipe.dtype)


def judgements(
    subject: KnownKernel,
    expected: Expectation,
    contract: Contract | None = None,
    outputs: Arrays | None = None,
    infer: bool = True,
) -> Iterator[Judgement]:
    """Of every output, under the subject's own contract or another one; of none where that exempts it. `outputs` are
    those of the subject where they are known; without `infer` no precision is inferred, see `judge`."""
    recipe = expected.recipe
    contract = contract or subject.contract
    if contract.exempts(recipe.distribution, recipe.dtype):
        return
    if outputs is None:
        outputs = computed(subject.run, expected)
    for output in outputs_of(
        recipe.operator, recipe.geometry, recipe.dtype, expected.inputs, outputs,
        expected.reference, lambda: expected.magnitude, expected.rest,
    ):  # fmt: skip
        yield judge(output, recipe.distribution, contract, infer)


def judged_by_probes(expected: Expectation, actual: np.ndarray, contract: Contract = DEFAULT) -> Judgement:
    """Of a main output by probes alone, all of which are computed here."""
    recipe, probes = expected.recipe, Probes(expected.recipe, expected.inputs)
    exact, magnitude = ({probes.output: sample} for sample in probes.samples)
    actuals = {probes.output: actual}
    (output,) = outputs_of(
        recipe.operator, recipe.geometry, recipe.dtype, expected.inputs, actuals, exact, lambda: magnitude
    )
    return judge_by_probes(output, evidence(probes, actual), recipe.distribution, contract)
