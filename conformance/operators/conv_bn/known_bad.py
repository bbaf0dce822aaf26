"""Known-bad kernels of convolution with batch normalisation: single elements, buffers, and paths that forget; and those
of `known_bad_arithmetic`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.dtypes import BF16, FORMATS, FP16
from conformance.operators import NORMALISED, Arrays, ConvBnGeometry, Operator
from conformance.operators.conv_bn import known_bad_arithmetic
from conformance.operators.conv_bn.known_bad_arithmetic import BACKWARD, FORWARD, GOOD, OUTWARD, TRAINING, mutant
from conformance.operators.known_kernels.kernel import FP32_ONLY, SHORT, STORED, Mutant, Run
from conformance.operators.known_kernels.rounding import narrowed
from conformance.operators.known_kernels.structure import Paths, on_paths
from conformance.operators.spatial import is_padded

Change = Callable[[np.ndarray], np.ndarray]

_OF = {
    "y": OUTWARD,
    **dict.fromkeys(("mean", "var", "running_mean", "running_var"), (FORWARD,)),
    **dict.fromkeys(("dx", "dw", "dgamma", "dbeta"), (BACKWARD,)),
}
"""Output -> operators that have it."""
_STATISTICS = ("running_mean", "running_var", "dgamma", "dbeta", "mean", "var")


def _on(output: str, change: Change) -> Run:
    """Something done to one output."""

    def run(operator: Operator, geometry: ConvBnGeometry, inputs: Arrays, dtype: str) -> Arrays:
        outputs = GOOD(operator, geometry, inputs, dtype)
        return outputs | ({output: change(outputs[output])} if output in outputs else {})

    return run


def _at(place: Callable[[np.ndarray], int], value: Callable[[Any], Any]) -> Change:
    """Something else at one flat index."""

    def change(array: np.ndarray) -> np.ndarray:
        out = array.copy()
        flat = out.reshape(-1)
        flat[place(flat)] = value(flat[place(flat)].astype(np.float64))
        return out

    return change


def _tail(value: float) -> Change:
    """The last few elements were never written."""

    def change(array: np.ndarray) -> np.ndarray:
        out = array.copy()
        out.reshape(-1)[-max(1, array.size // 30) :] = value
        return out

    return change


def _largest(flat: np.ndarray) -> int:
    return int(np.nan_to_num(np.abs(flat.astype(np.float64))).argmax())


_CHANGES: dict[str, Change] = {
    "largest element of {} off by 1%": _at(_largest, lambda v: v * 1.01),
    "last element of {} off by one": _at(lambda flat: -1, lambda v: v + 1),
    "one element of {} NaN": _at(lambda flat: len(flat) * 5 // 7, lambda v: np.nan),
    "tail of {} never written (zeros)": _tail(0.0),
    "tail of {} never written (NaN)": _tail(np.nan),
    "{} in reverse": lambda array: array[::-1].copy(),
    "sign of {} changed": lambda array: -array,
    "NaN in {} becomes zero": lambda array: np.nan_to_num(array.astype(np.float64)).astype(array.dtype),
    "{} with a gain of 0.1%": lambda array: (array.astype(np.float64) * 1.001).astype(array.dtype),
}  # fmt: skip


def _outputs() -> Iterator[Mutant]:
    for output, operators in _OF.items():
        wide = output in _STATISTICS
        for name, change in _CHANGES.items():
            if "NaN in" in name and output == "dbeta":
                continue
            dtypes = FP32_ONLY if "gain" in name and not wide else STORED
            yield mutant(name.format(output), _on(output, change), operators, dtypes, _having(output))
    for output in _STATISTICS:
        for format in (BF16, FP16):
            change = partial(narrowed, format=format)
            name = f"{output} stored in {format.name}"
            yield mutant(name, _on(output, change), _OF[output], when=_having(output))


def _having(output: str) -> Callable[[Any], bool]:
    if output.startswith("running"):
        return lambda geometry: bool(geometry.running)
    return lambda geometry: geometry.affine or output not in ("dgamma", "dbeta")


def _by_image(operator: Operator, geometry: ConvBnGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """The gradients of gamma and beta added up image by image in the storage dtype, as atomics may."""
    outputs = GOOD(operator, geometry, inputs, dtype)
    c = GOOD.channels(geometry, inputs, dtype)
    d = c.d.reshape(geometry.k, geometry.n, -1)
    dy = inputs["dy"].astype(np.float32).swapaxes(0, 1).reshape(d.shape)
    for name, parts in {"dgamma": (dy * d).sum(2) * c.inverse[:, None], "dbeta": dy.sum(2)}.items():
        total = np.zeros_like(parts[:, 0])
        for part in parts.T:
            total = narrowed(total + part, FORMATS[dtype])
        outputs[name] = total
    return outputs


def _losing(operator: Operator, geometry: ConvBnGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """A few channels' statistics miss the last image of the batch: an update that was lost."""
    moments = GOOD.moments

    def lost(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, squares = moments(z)
        fewer = z.shape[-1] - max(1, z.shape[-1] // geometry.n // 4)
        other_mean, other_squares = moments(z[:, :fewer])
        hit = np.random.default_rng(mean.size).random(mean.shape) < 0.3
        hit[len(hit) // 2] = True
        scale = z.dtype.type(z.shape[-1] / fewer)
        return np.where(hit, other_mean, mean), np.where(hit, other_squares * scale, squares)

    return replace(GOOD, moments=lost)(operator, geometry, inputs, dtype)


def _two_elements(operator: Operator, geometry: ConvBnGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Two elements are taken to be one deviation from their mean, which epsilon makes wrong."""
    inverse = GOOD.inverse

    def without_epsilon(var: np.ndarray, eps: np.ndarray, outside: bool) -> np.ndarray:
        return inverse(var, var.dtype.type(0), outside)

    return replace(GOOD, inverse=without_epsilon)(operator, geometry, inputs, dtype)


_OTHERS = (
    mutant("dgamma and dbeta added in the storage dtype", _by_image, (BACKWARD,), SHORT,
            lambda g: g.affine and g.n > 1),
    mutant("statistics that lost an update", _losing, TRAINING),
    mutant("two elements taken to be one deviation from their mean", _two_elements, TRAINING, FP32_ONLY,
            lambda g: g.count == 2),
)  # fmt: skip

_CONVOLVED = ("filter flipped in H and W", "stride ignored", "padding ignored", "image n uses image n-1")
_NORMAL = (
    "variance biased where the unbiased one is due, or the reverse",
    "last image left out of the statistics",
    "epsilon inside of the root where it belongs outside, or the reverse",
)
_PATHS: Paths = {
    "pointwise": (lambda g: max(g.window) == 1, _NORMAL),
    "depthwise": (lambda g: 1 < g.groups == g.c, (*_NORMAL, *_CONVOLVED)),
    "grouped": (lambda g: 1 < g.groups < g.c, (*_NORMAL, *_CONVOLVED)),
    "strided": (lambda g: max(g.stride) > 1, (*_NORMAL, *_CONVOLVED)),
    "dilated": (lambda g: max(g.dilation) > 1, (_NORMAL[0], _NORMAL[2], "dilation ignored", *_CONVOLVED[:1])),
    "unpadded": (lambda g: not is_padded(g.padding), (*_NORMAL, _CONVOLVED[0], _CONVOLVED[3])),
    "single image": (lambda g: g.n == 1, (_NORMAL[0], _NORMAL[2], _CONVOLVED[0], _CONVOLVED[2])),
    "few elements": (lambda g: g.count < 4, (*_NORMAL[:1], _NORMAL[2])),
    "many elements": (lambda g: g.count > 4096, ("tail of the statistics beyond tiles of 64 left out", *_NORMAL[1:])),
    "odd channels": (lambda g: g.k % 4 > 0, (*_NORMAL, _CONVOLVED[0])),
    "wide channels": (lambda g: g.k >= 64, (_NORMAL[2], _CONVOLVED[0])),
    "not affine": (lambda g: not g.affine, (*_NORMAL, _CONVOLVED[0])),
    "not running": (lambda g: not g.running, (*_NORMAL, _CONVOLVED[0])),
    "epsilon outside": (lambda g: g.eps_outside, (*_NORMAL, *_CONVOLVED)),
}

KNOWN_BAD: tuple[Mutant, ...] = (
    *known_bad_arithmetic.KNOWN_BAD,
    *_outputs(),
    *_OTHERS,
    *on_paths(_PATHS, NORMALISED, "batchnorm", "bn: {mistake}, on the {path} path"),
)
