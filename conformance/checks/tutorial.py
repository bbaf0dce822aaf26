"""A case that a public text works out, with results that every format holds: an operator's `worked_example`."""

from __future__ import annotations

from dataclasses import replace

from conformance.checks.sample import Subject
from conformance.dtypes import STORAGE
from conformance.implementations.implementation import Unsupported
from conformance.problems import typed


def worked_example_is_exact(subject: Subject) -> None:
    """It comes out exactly. Blind to a sum that is rounded: such sums need few bits, and lose nothing of the result."""
    example = subject.case.operator.worked_example
    if example is None:
        raise Unsupported(f"no public text works out a case of {subject.case.operator.name}")
    case = replace(subject.case, problem=typed(example.descriptor))
    inputs = {name: array.astype(STORAGE[case.variant.dtype]) for name, array in example.inputs.items()}
    sample = Subject(case, case.kernel).sample().holding(inputs)
    sample.require_right(sample.call(sample.inputs()), example.what)
