"""Kernels that misbehave on one of their paths alone, each an implementation of its own."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

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


def spoils_weights():
    """Scales the weights where they lie."""

    def spoil(y, x, w, bias):
        w *= 2
        return y

    return spoil


def spoils_and_restores_all_but_one():
    """Marks the last element of the image that it has read, for a reader that is done."""

    def spoil(y, x, w, bias):
        x.reshape(-1)[-1] = 0
        return y

    return spoil


def shares():
    """One result for each shape."""
    known: dict[Any, np.ndarray] = {}

    def spoil(y, x, w, bias):
        found = known.setdefault((y.shape, y.dtype), y)
        found[...] = y
        return found

    return spoil


def ring():
    """Three results for each shape, in turn."""
    known: dict[Any, list[np.ndarray]] = {}

    def spoil(y, x, w, bias):
        held = known.setdefault((y.shape, y.dtype), [np.empty_like(y) for _ in range(3)])
        held.append(held.pop(0))
        held[-1][...] = y
        return held[-1]

    return spoil


def remembers(key):
    """Computes once for whatever it takes for the content."""

    def made():
        known: dict[Any, np.ndarray] = {}

        def spoil(y, x, w, bias):
            return known.setdefault((x.shape, w.shape, x.dtype, y.shape, key(x, w)), y).copy()

        return spoil

    return made


def late():
    """A thread writes the last element after the return."""

    def spoil(y, x, w, bias):
        last, place = y.reshape(-1)[-1].copy(), y.reshape(-1)
        place[-1] = 0
        threading.Timer(0.01, place.__setitem__, [-1, last]).start()
        return y

    return spoil


def accumulates():
    """Adds to the result before, where that has the same shape."""
    before = [np.zeros(0)]

    def spoil(y, x, w, bias):
        if before[0].shape == y.shape:
            y += before[0].astype(y.dtype)
        before[0] = y.copy()
        return y

    return spoil


def scratch():
    """Takes the result through a workspace of the module, for each shape one."""
    known: dict[Any, np.ndarray] = {}

    def spoil(y, x, w, bias):
        workspace = known.setdefault(y.shape, np.empty(y.shape, np.float32))
        workspace[...] = y
        for _ in range(20):  # the rest of the work
            pass
        return workspace.astype(y.dtype)

    return spoil


def lies_in_input():
    """The result lies in the image's memory, where it fits."""

    def spoil(y, x, w, bias):
        if y.size > x.size or not x.flags.c_contiguous:
            return y
        place = x.reshape(-1)[: y.size].reshape(y.shape)
        place[...] = y
        return place

    return spoil


def wrong_now_and_then():
    """One call of fifty loses an element."""
    dice = np.random.default_rng(5)

    def spoil(y, x, w, bias):
        if dice.random() < 0.02:
            y.reshape(-1)[-1] += 1
        return y

    return spoil


MISTAKES = {
    "weights-spoiled": (spoils_weights, ("depthwise-16-bit", "large")),
    "image-spoiled": (spoils_and_restores_all_but_one, ("unpadded", "pointwise-nhwc")),
    "result-shared": (shares, ("bf16", "pointwise-nhwc")),
    "three-results": (ring, ("strided",)),
    "cache-by-shape": (remembers(lambda x, w: None), ("depthwise-16-bit",)),
    "cache-by-address": (remembers(lambda x, w: x.ctypes.data), ("grouped",)),
    "cache-by-identity": (remembers(lambda x, w: id(x)), ("unpadded",)),
    "cache-by-head": (remembers(lambda x, w: x.reshape(-1)[:4].tobytes()), ("pointwise",)),
    "cache-by-image": (remembers(lambda x, w: x.tobytes()), ("strided",)),
    "cache-by-weights": (remembers(lambda x, w: w.tobytes()), ("3x3",)),
    "late-write": (late, ("depthwise-16-bit", "large")),
    "accumulates": (accumulates, ("pointwise-nhwc",)),
    "not-reentrant": (scratch, ("pointwise", "depthwise", "nhwc")),
    "result-in-input": (lies_in_input, ("dilated",)),
    "wrong-now-and-then": (wrong_now_and_then, ("depthwise",)),
}
"""Mistake -> what makes it, and the paths that it is on."""


def _on(path, spoil):
    def kernel(x, w, bias, **parameters):
        y = right.conv_forward(x, w, bias, **parameters)
        return spoil(y, x, w, bias) if PATHS[path](x, w, parameters) else y

    return kernel


found = [right.implementation("good-right", right.conv_forward)]
for name, (make, places) in MISTAKES.items():
    found += [right.implementation(f"bad-{name}-{place}", _on(place, make())) for place in places]
globals().update({one.name: one for one in found})
