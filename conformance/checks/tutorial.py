"""A case that a public text works out, with results that every format holds: an operator's `worked_example`."""

from __future__ import annotations

from dataclasses import replace

from conformance.dtypes import STORAGE
from conformance.execution.trial import Trial
from conformance.implementations.implementation import Unsupported
from conformance.problems import typed


def worked_example_is_exact(trial: Trial) -> None:
    """It comes out exactly. Blind to a sum that is rounded: such sums need few bits, and lose nothing of the result."""
    example = trial.case.operator.worked_example
    if example is None:
        raise Unsupported(f"no public text works out a case of {trial.case.operator.name}")
    problem = typed(example.descriptor)
    case = replace(trial.case, problem=problem)
    if isinstance(case.kernel, str):
        raise Unsupported(case.kernel)
    inputs = {name: array.astype(STORAGE[case.variant.dtype]) for name, array in example.inputs.items()}
    tried = Trial(case, case.kernel)
    draw = tried.draw(problem=problem).holding(inputs)
    tried.require_right(tried.call(tried.inputs(draw), draw), draw, example.what)
