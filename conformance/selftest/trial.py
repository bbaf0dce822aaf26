"""The judge on trial: subjects whose guilt is known, judged exactly as an implementation would be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from conformance.data import Expectation
from conformance.data.probing import Probes
from conformance.judge import Contract, Judgement, Output, judge
from conformance.judge.probes import Evidence, judge_by_probes
from conformance.operators import Arrays, ConvGeometry, Operator

DEFAULT = Contract()

Run = Callable[[Operator, ConvGeometry, Arrays, str], Arrays]
"""(operator, geometry, inputs in storage dtype, dtype) -> outputs in storage dtype, canonical order."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel on trial."""

    name: str
    family: str
    run: Run
    contract: Contract = DEFAULT
    operators: tuple[str, ...] = ("conv_forward", "conv_backward_data", "conv_backward_weight")
    when: Callable[[ConvGeometry], bool] = lambda geometry: True
    dtypes: tuple[str, ...] = ("fp32", "bf16", "fp16")

    def applies(self, operator: str, geometry: ConvGeometry, dtype: str) -> bool:
        """Whether the subject computes this problem at all."""
        return operator in self.operators and dtype in self.dtypes and self.when(geometry)


def judgements(subject: Subject, expected: Expectation, contract: Contract | None = None) -> Iterator[Judgement]:
    """What the judge says of every output of a subject, under its own contract or another one."""
    recipe = expected.recipe
    with np.errstate(all="ignore"):
        given = {name: array.copy() for name, array in expected.inputs.items()}
        outputs = subject.run(recipe.operator, recipe.geometry, given, recipe.dtype)
    for name, tensor in recipe.operator.outputs(recipe.geometry).items():
        output = Output(
            name=name,
            axes=tensor.axes,
            dtype=recipe.dtype,
            terms=recipe.operator.terms(recipe.geometry)[name],
            actual=outputs[name],
            reference=expected.reference[name],
            magnitude=lambda name=name: expected.magnitude[name],  # type: ignore[misc]
        )
        yield judge(output, recipe.arm, contract or subject.contract)


def judged_by_probes(expected: Expectation, actual: np.ndarray, contract: Contract = DEFAULT) -> Judgement:
    """What the judge says of a main output by probes alone, all of which are computed here."""
    recipe, probes = expected.recipe, Probes(expected.recipe, expected.inputs)
    exact, magnitude = probes.samples
    output = Output(
        name=probes.output,
        axes=recipe.operator.outputs(recipe.geometry)[probes.output].axes,
        dtype=recipe.dtype,
        terms=recipe.operator.terms(recipe.geometry)[probes.output],
        actual=actual,
        reference=exact,
        magnitude=lambda: magnitude,
    )
    p = probes.projection
    evidence = Evidence(probes.index, exact, magnitude, probes.project(actual), p.expected, p.square, p.lanes, p.noise)
    return judge_by_probes(output, evidence, recipe.arm, contract)
