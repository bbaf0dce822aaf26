"""From an implementation's outputs to judgements: against the exact reference, or by probes where that is too large."""

from __future__ import annotations

import numpy as np

from conformance.inputs import Expectation, Recipe
from conformance.inputs.probing import Probes, possible, worthwhile
from conformance.judge import Contract, Judgement, judge, outputs_of
from conformance.judge.judgement import judge_sparse
from conformance.judge.probes import Evidence, judge_by_probes
from conformance.operators import Arrays

SPARSE = "sparse"
METHODS = ("auto", "exact", "probes")


def by_probes(recipe: Recipe, method: str) -> bool:
    """Whether results are judged by probes; `method` is `auto` (by cost), or demands `exact` or `probes`."""
    return worthwhile(recipe) if method == "auto" else method == "probes" and possible(recipe)


def prepare_reference(expected: Expectation, method: str) -> None:
    """Compute now what the judgement will need, so that its time is not counted as the kernel's or the judge's."""
    if expected.recipe.distribution == SPARSE:
        _ = expected.nonzero
        return
    if by_probes(expected.recipe, method):
        probes = expected.probes
        _ = probes.projection, probes.samples, probes.small
    else:
        _ = expected.reference


def judged(expected: Expectation, outputs: Arrays, contract: Contract, method: str = "auto") -> tuple[Judgement, ...]:
    """One judgement per output (canonical order, on the host). With probes, of the main output; others are small."""
    recipe = expected.recipe
    contract = contract.on(recipe.geometry, recipe.dtype)
    if recipe.distribution == SPARSE:
        tensors = recipe.operator.outputs(recipe.geometry)
        return tuple(
            judge_sparse(name, tensors[name].axes, outputs[name], *known) for name, known in expected.nonzero.items()
        )
    described = recipe.operator, recipe.geometry, recipe.dtype, expected.inputs, outputs
    if not by_probes(recipe, method):
        compared = outputs_of(*described, expected.reference, lambda: expected.magnitude, expected.rest)
        return tuple(judge(output, recipe.distribution, contract) for output in compared)
    probes = expected.probes
    known = dict.fromkeys(outputs, probes.samples) | probes.small
    reference, magnitude = ({name: pair[half] for name, pair in known.items()} for half in (0, 1))
    return tuple(
        judge(output, recipe.distribution, contract)
        if output.name in probes.small
        else judge_by_probes(output, evidence(probes, output.actual), recipe.distribution, contract)
        for output in outputs_of(*described, reference, lambda: magnitude)
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
