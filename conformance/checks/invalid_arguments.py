"""Arguments that no kernel can compute with: it should refuse them. What it accepts is reported, not judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.checks.sample import Subject
from conformance.operators import Arrays
from conformance.results.schema import Facts

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


def invalid_arguments(subject: Subject) -> Facts:
    """Which invalid arguments a kernel accepts: it returns a result instead of an error that says why."""
    sample, operator, geometry = subject.sample(), subject.case.operator, subject.case.problem.geometry
    valid = Request(sample.expected.inputs, operator.parameters(geometry))
    accepted = []
    for what, spoil in IMPOSSIBLE[operator.name].items():
        if spoil is _window_beyond_image and geometry.r * geometry.s == 1:
            continue  # one pixel holds such a window
        request = spoil(valid)
        try:
            result = sample.invocation.start(sample.invocation.to_device(request.inputs), **request.parameters)
            subject.bridge.synchronize(result)
        except Exception as refusal:
            if not str(refusal).strip():
                accepted.append(f"{what} (refused without a message)")
        else:
            accepted.append(what)
    return Facts(accepted=tuple(accepted))
