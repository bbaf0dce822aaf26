"""Requests that no kernel can fulfil: it should refuse them. What is computed all the same is reported, not judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.execution import verify
from conformance.execution.trial import Facts, Trial
from conformance.operators import Arrays

NOTHING = ((0, 0), (0, 0))


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of a call, canonical order, and its parameters."""

    inputs: Arrays
    parameters: Mapping[str, Any]


Spoil = Callable[[Request], Request]


def _window_beyond_image(request: Request) -> Request:
    """Images of one pixel, without padding; gradients of such images."""
    images = {name: a[:, :, :1, :1] for name, a in request.inputs.items() if name == "x"}
    given = dict(request.parameters) | {"padding": NOTHING}
    if "input_size" in given:
        given["input_size"] = (1, 1)
    return Request(request.inputs | images, given)


def _channels_mismatch(request: Request) -> Request:
    """The first image has one channel less than the filters are for."""
    name = next(iter(request.inputs))
    return Request(request.inputs | {name: request.inputs[name][:, :-1]}, request.parameters)


def _integers(request: Request) -> Request:
    return Request({name: array.astype(np.int32) for name, array in request.inputs.items()}, request.parameters)


def _one_element(request: Request) -> Request:
    """One pixel of one image: a channel without a variance."""
    pixel = {name: request.inputs[name][:1, :, :1, :1] for name in ("x", "dy") if name in request.inputs}
    filters = {"w": request.inputs["w"][:, :, :1, :1]}
    return Request(request.inputs | pixel | filters, dict(request.parameters) | {"padding": NOTHING, "stride": (1, 1)})


_GEOMETRY: dict[str, Spoil] = {"a window larger than the padded image": _window_beyond_image}
_MISMATCH: dict[str, Spoil] = {"channels that do not match": _channels_mismatch}
_INTEGERS: dict[str, Spoil] = {"integer tensors": _integers}
_VARIANCE: dict[str, Spoil] = {"a variance of one element": _one_element}

IMPOSSIBLE: dict[str, dict[str, Spoil]] = {
    "conv_forward": _GEOMETRY | _MISMATCH,
    "conv_backward_data": _GEOMETRY | _MISMATCH,
    "conv_backward_weight": _GEOMETRY,
    "conv_bn_forward": _GEOMETRY | _MISMATCH | _INTEGERS | _VARIANCE,
    "conv_bn_backward": _GEOMETRY | _MISMATCH | _INTEGERS | _VARIANCE,
    "conv_bn_inference": _GEOMETRY | _MISMATCH | _INTEGERS,
    "avg_pool_forward": _GEOMETRY | _INTEGERS,
    "avg_pool_backward": _GEOMETRY | _INTEGERS,
}
"""Operator -> requests. Convolutions of integers have a meaning; averages and roots of them have none."""


def impossible_requests(trial: Trial) -> Facts:
    """Which impossible requests a kernel answers with a result instead of an error that says why."""
    return {"not_refused": list(_answered(trial))}


def _answered(trial: Trial) -> Iterator[str]:
    draw = trial.draw()
    case, geometry = trial.case, trial.case.problem.geometry
    valid = Request(draw.expected.inputs, case.operator.parameters(geometry))
    for what, spoil in IMPOSSIBLE[case.operator.name].items():
        if spoil is _window_beyond_image and geometry.r * geometry.s == 1:
            continue  # one pixel holds such a window
        request = spoil(valid)
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
