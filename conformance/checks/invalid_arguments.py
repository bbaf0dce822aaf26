"""Arguments that no kernel can compute with: it should refuse them. What it accepts is reported, not judged."""

from __future__ import annotations

from conformance.checks.sample import Subject
from conformance.layouts import LayoutError
from conformance.operators.base import Request
from conformance.results.schema import Facts


def invalid_arguments(subject: Subject) -> Facts:
    """Which invalid arguments a kernel accepts: it returns a result instead of an error that says why."""
    sample, operator, geometry = subject.sample(), subject.case.operator, subject.case.problem.geometry
    valid = Request(sample.expected.inputs, operator.parameters(geometry))
    accepted = []
    for what, spoil in operator.invalid.items():
        request = spoil(geometry, valid)
        if request is None:
            continue
        try:
            given = sample.invocation.to_device(request.inputs)
        except LayoutError:
            continue  # groups that are an axis have no channels left over
        try:
            result = sample.invocation.start(given, **request.parameters)
            subject.bridge.synchronize(result)
        except Exception as refusal:
            if not str(refusal).strip():
                accepted.append(f"{what} (refused without a message)")
        else:
            accepted.append(what)
    return Facts(accepted=tuple(accepted))
