"""The contract of a matrix unit, beside the arithmetic that is read off the kernel."""

from __future__ import annotations

from conformance.checks.sample import Subject
from conformance.execution.arithmetic import arithmetic_of
from conformance.implementations.implementation import Unsupported
from conformance.results.schema import Facts


def arithmetic_is_as_declared(subject: Subject) -> Facts:
    """Read the arithmetic off the kernel in the dtype of the case, and return which declared fields do not allow it.

    A verdict follows from the limits alone; but where sums are short, or other errors larger, a kernel of fewer bits
    than declared stays within them. Raises Unsupported where a call ends without a result.
    """
    sample, trial = subject.sample(), subject.trial
    sample.require_right(sample.call(sample.inputs()), "single call")
    result = arithmetic_of(trial.implementation, trial.operator, trial.variant.dtype)
    if result.error:
        raise Unsupported(f"its arithmetic cannot be read: {result.error}")
    if not (fields := result.contradictions) or result.contract is None:
        return Facts()
    return Facts(contradictions=(f"{', '.join(fields)}: {result.contract.declaration} was read",))
