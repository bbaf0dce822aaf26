"""Requests that no kernel can fulfil: it should refuse them. What is computed all the same is reported, not judged."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.execution import verify
from conformance.execution.trial import Facts, Trial
from conformance.operators.base import Request


def impossible_requests(trial: Trial) -> Facts:
    """Which impossible requests a kernel answers with a result instead of an error that says why."""
    return {"not_refused": list(_answered(trial))}


def _answered(trial: Trial) -> Iterator[str]:
    draw = trial.draw()
    case, geometry = trial.case, trial.case.problem.geometry
    valid = Request(draw.expected.inputs, case.operator.parameters(geometry))
    for what, spoil in case.operator.invalid.items():
        request = spoil(geometry, valid)
        if request is None:
            continue
        try:
            _call(trial, request, draw.names)
        except Exception as refusal:
            if str(refusal).strip():
                continue
            yield f"{what} (refused without a word)"
        else:
            yield what


def _call(trial: Trial, request: Request, names: tuple[str, ...]) -> None:
    layout = trial.case.variant.layout
    stored = [verify.in_layout(request.inputs.get(name), layout) for name in names]
    native = [None if array is None else trial.bridge.from_host(array) for array in stored]
    available = {**request.parameters, "layout": layout}
    result = trial.kernel.function(*native, **trial.kernel.keyword_arguments(available))
    trial.bridge.synchronize(result)
