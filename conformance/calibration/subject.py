"""The judge on trial: subjects whose guilt is known, judged exactly as an implementation would be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.execution.judging import evidence
from conformance.inputs import Expectation
from conformance.inputs.probing import Probes
from conformance.judge import Contract, Judgement, Output, judge, outputs_of
from conformance.judge.probes import judge_by_probes
from conformance.operators import Arrays, Operator

DEFAULT = Contract()

Run = Callable[[Operator, Any, Arrays, str], Arrays]
"""(operator, geometry, inputs in storage dtype, dtype) -> outputs in storage dtype, canonical order."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel on trial."""

    name: str
    family: str
    run: Run
    contract: Contract = DEFAULT
    operators: tuple[str, ...] = ("conv_forward", "conv_backward_data", "conv_backward_weight")
    when: Callable[[Any], bool] = lambda geometry: True
    dtypes: tuple[str, ...] = ("fp32", "bf16", "fp16")

    def applies(self, operator: str, geometry: Any, dtype: str) -> bool:
        """Whether the subject computes this problem at all."""
        return operator in self.operators and dtype in self.dtypes and self.when(geometry)


def judgements(subject: Subject, expected: Expectation, contract: Contract | None = None) -> Iterator[Judgement]:
    """What the judge says of every output of a subject, under its own contract or another one."""
    recipe = expected.recipe
    with np.errstate(all="ignore"):
        given = {name: array.copy() for name, array in expected.inputs.items()}
        outputs = subject.run(recipe.operator, recipe.geometry, given, recipe.dtype)
    for output in _described(expected, outputs, expected.reference, lambda: expected.magnitude):
        yield judge(output, recipe.distribution, contract or subject.contract)


def _described(
    expected: Expectation, outputs: Arrays, reference: Arrays, magnitude: Callable[[], Arrays]
) -> list[Output]:
    recipe = expected.recipe
    operator, geometry, dtype = recipe.operator, recipe.geometry, recipe.dtype
    return outputs_of(operator, geometry, dtype, expected.inputs, outputs, reference, magnitude)


def judged_by_probes(expected: Expectation, actual: np.ndarray, contract: Contract = DEFAULT) -> Judgement:
    """What the judge says of a main output by probes alone, all of which are computed here."""
    probes = Probes(expected.recipe, expected.inputs)
    exact, magnitude = probes.samples
    name = probes.output
    (output,) = _described(expected, {name: actual}, {name: exact}, lambda: {name: magnitude})
    return judge_by_probes(output, evidence(probes, actual), expected.recipe.distribution, contract)
