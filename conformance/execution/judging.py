"""From an implementation's outputs to judgements: against the exact reference, or by probes where that is too large."""

from __future__ import annotations

import numpy as np

from conformance.execution.case import Case
from conformance.inputs import Expectation
from conformance.inputs.probing import Probes, possible, worthwhile
from conformance.judge import Contract, Judgement, judge, outputs_of
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
    return (_probed if by_probes(case) else _compared)(case, expected, outputs, contract)


def _compared(case: Case, expected: Expectation, outputs: Arrays, contract: Contract) -> tuple[Judgement, ...]:
    geometry, variant = case.problem.geometry, case.variant
    found = outputs_of(
        case.operator, geometry, variant.dtype, expected.inputs, outputs, expected.reference, lambda: expected.magnitude
    )
    return tuple(judge(output, variant.distribution, contract) for output in found)


def _probed(case: Case, expected: Expectation, outputs: Arrays, contract: Contract) -> tuple[Judgement, ...]:
    """The main output by probes, which stand for its reference; the others are small."""
    probes, geometry, variant = expected.probes, case.problem.geometry, case.variant
    known = dict.fromkeys(outputs, probes.samples) | probes.small
    reference, magnitude = ({name: pair[half] for name, pair in known.items()} for half in (0, 1))
    found = outputs_of(case.operator, geometry, variant.dtype, expected.inputs, outputs, reference, lambda: magnitude)
    return tuple(
        judge(output, variant.distribution, contract)
        if output.name in probes.small
        else judge_by_probes(output, evidence(probes, output.actual), variant.distribution, contract)
        for output in found
    )


def evidence(probes: Probes, actual: np.ndarray) -> Evidence:
    """What the probes know of a main output, and what they find in it."""
    exact, magnitude = probes.samples
    projection = probes.projection
    return Evidence(
        index=probes.index,
        exact=exact,
        magnitude=magnitude,
        projected=probes.project(actual),
        expected=projection.expected,
        square=projection.square,
        lanes=projection.lanes,
        noise=projection.noise,
    )
