"""From an implementation's outputs to judgements: against the exact reference, or by probes where that is too large."""

from __future__ import annotations

import numpy as np

from conformance.data import Expectation
from conformance.data.probing import possible, worthwhile
from conformance.harness.case import Case
from conformance.judge import Contract, Judgement, Output, judge
from conformance.judge.probes import Evidence, judge_by_probes
from conformance.operators import Arrays


def by_probes(case: Case) -> bool:
    """Whether a case is judged by probes; `--method` may demand one way or the other."""
    if case.method == "auto":
        return worthwhile(case.recipe)
    return case.method == "probes" and possible(case.recipe)


def prepare_reference(case: Case, expected: Expectation) -> None:
    """Compute now what the judgement will need, so that its time is not counted as the kernel's or the judge's."""
    if by_probes(case):
        probes = expected.probes
        _ = probes.projection, probes.samples, probes.small
    else:
        _ = expected.reference


def judged(case: Case, expected: Expectation, outputs: Arrays, contract: Contract) -> tuple[Judgement, ...]:
    """One judgement per output."""
    one = _probed if by_probes(case) else _compared
    return tuple(one(case, expected, name, array, contract) for name, array in outputs.items())


def _compared(case: Case, expected: Expectation, name: str, array: np.ndarray, contract: Contract) -> Judgement:
    tensor = case.operator.outputs(case.problem.geometry)[name]
    output = Output(
        name=name,
        axes=tensor.axes,
        dtype=case.variant.dtype,
        terms=case.operator.terms(case.problem.geometry)[name],
        actual=array,
        reference=expected.reference[name],
        magnitude=lambda: expected.magnitude[name],
    )
    return judge(output, case.variant.arm, contract)


def _probed(case: Case, expected: Expectation, name: str, array: np.ndarray, contract: Contract) -> Judgement:
    probes = expected.probes
    reference, magnitude = probes.small.get(name, probes.samples)
    output = Output(
        name=name,
        axes=case.operator.outputs(case.problem.geometry)[name].axes,
        dtype=case.variant.dtype,
        terms=case.operator.terms(case.problem.geometry)[name],
        actual=array,
        reference=reference,
        magnitude=lambda: magnitude,
    )
    if name in probes.small:
        return judge(output, case.variant.arm, contract)
    projection = probes.projection
    evidence = Evidence(
        index=probes.index,
        exact=reference,
        magnitude=magnitude,
        projected=probes.project(array),
        expected=projection.expected,
        square=projection.square,
        lanes=projection.lanes,
        noise=projection.noise,
    )
    return judge_by_probes(output, evidence, case.variant.arm, contract)
