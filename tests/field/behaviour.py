"""Kernels that misbehave on one of their paths alone, each an implementation of its own."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np

from tests import cheaters
from tests.cheaters import after
from tests.field import right

PATHS = {
    "pointwise": lambda x, w, p: _window(w, p) == (1, 1),
    "3x3": lambda x, w, p: _window(w, p) == (3, 3),
    "depthwise": lambda x, w, p: p["groups"] == _channels(x, p) > 1,
    "grouped": lambda x, w, p: 1 < p["groups"] < _channels(x, p),
    "unpadded": lambda x, w, p: not np.any(p["padding"]),
    "padded": lambda x, w, p: bool(np.any(p["padding"])),
    "strided": lambda x, w, p: max(p["stride"]) > 1,
    "dilated": lambda x, w, p: max(p["dilation"]) > 1,
    "16-bit": lambda x, w, p: x.itemsize == 2,
    "bf16": lambda x, w, p: x.dtype.name == "bfloat16",
    "nhwc": lambda x, w, p: p["layout"] == "nhwc",
    "large": lambda x, w, p: x.size >= 1 << 16,
    "depthwise-16-bit": lambda x, w, p: p["groups"] == _channels(x, p) > 1 and x.itemsize == 2,
    "pointwise-nhwc": lambda x, w, p: _window(w, p) == (1, 1) and p["layout"] == "nhwc",
}
"""Name -> whether a call takes it."""


def _window(w, parameters):
    return w.shape[2:] if parameters["layout"] == "nchw" else w.shape[1:3]


def _channels(x, parameters):
    return x.shape[1 if parameters["layout"] == "nchw" else 3]


def spoils_the_last_of_the_image():
    """Marks the last element of the image that it has read, for a reader that is done."""

    def spoil(y, x, w, bias):
        x.reshape(-1)[-1] = 0
        return y

    return after(spoil)


def late():
    """A thread writes the last element after the return."""

    def spoil(y, *_):
        last, place = y.reshape(-1)[-1].copy(), y.reshape(-1)
        place[-1] = 0
        threading.Timer(0.05, place.__setitem__, [-1, last]).start()
        return y

    return after(spoil)


def accumulates():
    """Adds to the result before, where that has the same shape."""
    before = [np.zeros(0)]

    def spoil(y, *_):
        if before[0].shape == y.shape:
            y += before[0].astype(y.dtype)
        before[0] = y.copy()
        return y

    return after(spoil)


def scratch():
    """Takes the result through a workspace of the module, for each shape one."""
    known: dict[Any, np.ndarray] = {}

    def spoil(y, *inputs):
        workspace = known.setdefault(y.shape, np.empty(y.shape, np.float32))
        workspace[...] = y
        for _ in range(20):  # the rest of the work
            pass
        return workspace.astype(y.dtype)

    return after(spoil)


def wrong_now_and_then():
    """One call of fifty loses an element."""
    dice = np.random.default_rng(5)

    def spoil(y, *_):
        if dice.random() < 0.02:
            y.reshape(-1)[-1] += 1
        return y

    return after(spoil)


def cache(key):
    return partial(cheaters.remembers, key)


MISTAKES = {
    "weights-spoiled": (cheaters.spoils_input, ("depthwise-16-bit", "large")),
    "image-spoiled": (spoils_the_last_of_the_image, ("unpadded", "pointwise-nhwc")),
    "result-shared": (partial(cheaters.static_buffer, 1), ("bf16", "pointwise-nhwc")),
    "three-results": (partial(cheaters.static_buffer, 3), ("strided",)),
    "cache-by-shape": (cache(lambda x, w, bias: None), ("depthwise-16-bit",)),
    "cache-by-address": (cache(lambda x, w, bias: x.ctypes.data), ("grouped",)),
    "cache-by-identity": (cache(lambda x, w, bias: id(x)), ("unpadded",)),
    "cache-by-head": (cache(lambda x, w, bias: x.reshape(-1)[:4].tobytes()), ("pointwise",)),
    "cache-by-image": (cache(lambda x, w, bias: x.tobytes()), ("strided",)),
    "cache-by-weights": (cache(lambda x, w, bias: w.tobytes()), ("3x3",)),
    "late-write": (late, ("depthwise-16-bit", "large")),
    "accumulates": (accumulates, ("pointwise-nhwc",)),
    "not-reentrant": (scratch, ("pointwise", "depthwise", "nhwc")),
    "result-in-input": (cheaters.result_in_input, ("dilated",)),
    "wrong-now-and-then": (wrong_now_and_then, ("depthwise",)),
}
"""Mistake -> what makes it, and the paths that it is on."""


def _on(path, wrong):
    def kernel(x, w, bias, **parameters):
        chosen = wrong if PATHS[path](x, w, parameters) else right.conv_forward
        return chosen(x, w, bias, **parameters)

    return kernel


found = [right.implementation("good-right", right.conv_forward)]
for name, (make, places) in MISTAKES.items():
    found += [right.implementation(f"bad-{name}-{place}", _on(place, make())) for place in places]
globals().update({one.name: one for one in found})
