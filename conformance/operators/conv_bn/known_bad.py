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
from conformance.operators.known_kernels import memory, scale
from conformance.operators.known_kernels.kernel import FP32_ONLY, SHORT, STORED, Mutant, Run, exact, on_outputs
from conformance.operators.known_kernels.rounding import narrowed
from conformance.operators.known_kernels.structure import Paths, on_paths
from conformance.operators.spatial import is_padded

_OF = {
    "y": OUTWARD,
    **dict.fromkeys(("mean", "var", "running_mean", "running_var"), (FORWARD,)),
    **dict.fromkeys(("dx", "dw", "dgamma", "dbeta"), (BACKWARD,)),
}
"""Output -> operators that have it."""
_STATISTICS = ("running_mean", "running_var", "dgamma", "dbeta", "mean", "var")


_CHANGES: dict[str, Callable[[str], Run]] = {
    "largest element of {} off by 1%": partial(on_outputs, scale.with_(scale.largest, lambda v: v * 1.01)),
    "last element of {} off by one": partial(on_outputs, scale.with_(scale.last, lambda v: v + 1)),
    "one element of {} NaN": partial(on_outputs, scale.with_(scale.inside, lambda v: np.nan)),
    "tail of {} never written (zeros)": partial(memory.tail, np.zeros_like),
    "tail of {} never written (NaN)": partial(memory.tail, memory.nothing),
    "{} in reverse": partial(on_outputs, lambda array, _: array[::-1]),
    "sign of {} changed": partial(on_outputs, lambda array, _: -array),
    "NaN in {} becomes zero": partial(on_outputs, lambda array, _: np.nan_to_num(array)),
    "{} with a gain of 0.1%": partial(on_outputs, scale.times(1.001)),
    "{} stored in bf16": partial(on_outputs, lambda array, _: narrowed(array, BF16)),
    "{} stored in fp16": partial(on_outputs, lambda array, _: narrowed(array, FP16)),
}


def _outputs() -> Iterator[Mutant]:
    for output, operators in _OF.items():
        wide = output in _STATISTICS
        for name, change in _CHANGES.items():
            if ("NaN in" in name and output == "dbeta") or ("stored" in name and not wide):
                continue
            dtypes = FP32_ONLY if "gain" in name and not wide else STORED
            made = mutant(name.format(output), change(output), operators, dtypes, _having(output))
            yield replace(made, base=exact)


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
