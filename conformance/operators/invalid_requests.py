"""Requests that no kernel can fulfil, as far as families share them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from conformance.operators.base import Request, Spoil
from conformance.operators.spatial import unpadded


def _window_beyond_image(geometry: Any, request: Request) -> Request | None:
    """Images of one pixel, without padding; gradients of such images. One pixel holds a window of one element."""
    if math.prod(geometry.window) == 1:
        return None
    pixel = (slice(None), slice(None), *[slice(1)] * geometry.rank)
    images = {name: array[pixel] for name, array in request.inputs.items() if name == "x"}
    given = dict(request.parameters) | {"padding": unpadded(geometry.rank)}
    if "input_size" in given:
        given["input_size"] = (1,) * geometry.rank
    return Request(request.inputs | images, given)


def _channels_mismatch(geometry: Any, request: Request) -> Request:
    """The first image has one channel less than the filters are for."""
    name = next(iter(request.inputs))
    return Request(request.inputs | {name: request.inputs[name][:, :-1]}, request.parameters)


def _integers(geometry: Any, request: Request) -> Request:
    return Request({name: array.astype(np.int32) for name, array in request.inputs.items()}, request.parameters)


WINDOW: dict[str, Spoil] = {"a window larger than the padded image": _window_beyond_image}
CHANNELS: dict[str, Spoil] = {"channels that do not match": _channels_mismatch}
INTEGERS: dict[str, Spoil] = {"integer tensors": _integers}
"""For averages and roots; convolutions and maxima of integers have a meaning."""
