"""Known-bad kernels of convolution with batch normalisation, beyond the mistakes that diagnosis knows.

Each is a known-good kernel in which one thing is worse than its contract says; then come single elements of one output,
buffers, and paths that forget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.dtypes import BF16, FORMATS, FP16, STORAGE, TF32, Format
from conformance.operators import NORMALISED, Arrays, ConvBnGeometry, Operator
from conformance.operators.spatial import as_image, by_channel, is_padded
from tests.calibration.conv_bn.normalisation import (
    CENTRED,
    ConvBnKernel,
    Gradient,
    Inverse,
    Moments,
    Reduce,
    Scale,
    Sums,
    centred,
    distances,
    divided,
    in_pairs,
    in_turn,
    per_filter,
    raw,
    summed,
    two_passes,
    welford,
)
from tests.calibration.kernels import memory, scale, sums
from tests.calibration.kernels.kernel import (
    FP32_ONLY,
    SHORT,
    STORED,
    Mutant,
    Run,
    exact,
    on_inputs,
    on_outputs,
)
from tests.calibration.kernels.rounding import bits, narrowed, rounded
from tests.calibration.kernels.structure import Paths, on_paths
from tests.calibration.kernels.sums import Sum

FORWARD, BACKWARD, INFERENCE = (f"conv_bn_{name}" for name in ("forward", "backward", "inference"))
TRAINING, OUTWARD = (FORWARD, BACKWARD), (FORWARD, INFERENCE)
GOOD = ConvBnKernel(summed(sums.blas))


def _totals_in(format: Format) -> Reduce:
    """Return a running sum kept in a narrow format."""

    def total(values: np.ndarray) -> np.ndarray:
        running = np.zeros(values.shape[:-1])
        for term in np.moveaxis(values.astype(np.float64), -1, 0):
            running = rounded(running + term, format)
        return running.astype(values.dtype)

    return total


def _of(change: Callable[[np.ndarray], np.ndarray], good: Moments = CENTRED) -> Moments:
    """Return the statistics of changed elements."""
    return lambda z: good(change(z))


def _then(mean: Callable[[Any], Any], squares: Callable[[Any, int], Any] = lambda squares, count: squares) -> Moments:
    """Return statistics that are changed afterwards."""

    def found(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        right = CENTRED(z)
        return mean(right[0]), squares(right[1], z.shape[-1])

    return found


def _without_cross_term(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Combine blocks as if their means were equal."""
    blocks = np.array_split(z, 2, axis=-1)
    return CENTRED(z)[0], sum((CENTRED(block)[1] for block in blocks), start=np.zeros_like(z[:, 0]))


def _equally_weighed(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Average the means of blocks, though the last one is shorter."""
    size = -(-z.shape[-1] // 4)
    means = [z[:, start : start + size].mean(axis=1) for start in range(0, z.shape[-1], size)]
    mean = np.mean(means, axis=0).astype(z.dtype)
    return mean, in_turn((z - mean[:, None]) ** 2)


def _beyond(tile: int) -> Moments:
    """Give channels beyond the last full tile the statistics that their buffer was initialised with."""

    def found(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, squares = CENTRED(z)
        kept = len(z) // tile * tile if len(z) > tile else len(z)
        mean[kept:], squares[kept:] = 0, z.shape[-1]
        return mean, squares

    return found


def _stale(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give the last channel the statistics of the one before."""
    mean, squares = CENTRED(z)
    if len(mean) > 1:
        mean[-1], squares[-1] = mean[-2], squares[-2]
    return mean, squares


def _floored(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Use a variance of at least 1e-6."""
    mean, squares = CENTRED(z)
    return mean, np.maximum(squares, z.dtype.type(1e-6 * z.shape[-1]))


_MOMENTS: dict[str, tuple[Moments, tuple[str, ...]]] = {
    "raw moments": (raw(), STORED),
    "raw moments in pairs": (raw(in_pairs), STORED),
    "statistics accumulated in bf16": (two_passes(_totals_in(BF16)), STORED),
    "statistics accumulated in fp16": (two_passes(_totals_in(FP16)), STORED),
    "statistics accumulated in 14 bits": (two_passes(_totals_in(bits(14))), STORED),
    "statistics of z in bf16": (_of(partial(narrowed, format=BF16)), STORED),
    "statistics of z in fp16": (_of(partial(narrowed, format=FP16)), STORED),
    "statistics of z in tf32": (_of(partial(narrowed, format=TF32)), FP32_ONLY),
    "mean rounded to bf16": (_then(partial(narrowed, format=BF16)), STORED),
    "mean rounded to fp16": (_then(partial(narrowed, format=FP16)), STORED),
    "variance rounded to bf16": (_then(lambda mean: mean, lambda squares, _: narrowed(squares, BF16)), STORED),
    "variance rounded to 11 bits": (_then(lambda mean: mean, lambda squares, _: narrowed(squares, TF32)), STORED),
    "variance never below 1e-6": (_floored, STORED),
    "statistics take NaN for zero": (_of(np.nan_to_num), STORED),
    "blocks combined without their distance": (_without_cross_term, STORED),
    "blocks of unequal size weighed equally": (_equally_weighed, STORED),
    "statistics of the last channel from the one before": (_stale, STORED),
    "Welford's count one too large": (partial(welford, first=2), STORED),
    **{f"statistics of channels beyond tiles of {tile} not computed": (_beyond(tile), STORED)
       for tile in (8, 16, 32, 64, 128)},
}  # fmt: skip


def _inverted(change: Callable[[np.ndarray], np.ndarray], eps: Callable[[Any], Any] = lambda eps: eps) -> Inverse:
    return lambda var, given, outside: change(divided(var, var.dtype.type(eps(given)), outside))


def _newton(var: np.ndarray, eps: Any, outside: bool) -> np.ndarray:
    """Improve an inverse root of 5 bits once, to about 9."""
    if outside:
        return divided(var, eps, outside)
    value = var + eps
    guess = narrowed(divided(var, eps, outside), bits(5))
    return guess * (var.dtype.type(1.5) - var.dtype.type(0.5) * value * guess * guess)


_INVERSES: dict[str, Inverse] = {
    "inverse deviation of 12 bits": _inverted(partial(narrowed, format=bits(12))),
    "inverse deviation of 16 bits": _inverted(partial(narrowed, format=bits(16))),
    "inverse deviation in bf16": _inverted(partial(narrowed, format=BF16)),
    "inverse deviation in fp16": _inverted(partial(narrowed, format=FP16)),
    "epsilon in bf16": _inverted(lambda inverse: inverse, lambda eps: rounded(np.array([eps], np.float64), BF16)[0]),
    "epsilon in fp16": _inverted(lambda inverse: inverse, lambda eps: np.float16(eps)),
    "root by one Newton step": _newton,
}


def _factor_in(format: Format) -> Scale:
    return lambda c: c.d * narrowed(c.inverse * c.gamma, format)[:, None] + c.beta[:, None]


def _shift_in(format: Format) -> Scale:
    return lambda c: c.z * c.factor[:, None] + narrowed(c.beta - c.mean * c.factor, format)[:, None]


def _distances_in(format: Format) -> Scale:
    return lambda c: narrowed(c.d, format) * c.factor[:, None] + c.beta[:, None]


def _y_then(change: Callable[[np.ndarray], np.ndarray]) -> Scale:
    return lambda c: change(distances(c))


_SCALES: dict[str, tuple[Scale, tuple[str, ...]]] = {
    "gamma times the inverse deviation in bf16": (_factor_in(BF16), STORED),
    "gamma times the inverse deviation of 11 bits": (_factor_in(TF32), FP32_ONLY),
    "shift in bf16": (_shift_in(BF16), STORED),
    "shift in fp16": (_shift_in(FP16), STORED),
    "distances from the mean in bf16": (_distances_in(BF16), ("fp32", "fp16")),
    "distances from the mean in tf32": (_distances_in(TF32), FP32_ONLY),
    "y clamped to two": (_y_then(lambda y: np.clip(y, -2, 2)), STORED),
    "y by way of fp16": (_y_then(partial(narrowed, format=FP16)), ("fp32", "bf16")),
    "y by way of bf16": (_y_then(partial(narrowed, format=BF16)), ("fp32", "fp16")),
    "y of 18 bits": (_y_then(partial(narrowed, format=bits(18))), FP32_ONLY),
}


def _dz_then(change: Callable[[np.ndarray], np.ndarray]) -> Gradient:
    return lambda c, s: change(centred(c, s))


def _with_sums(change: Callable[[Sums], Sums]) -> Gradient:
    return lambda c, s: centred(c, change(s))


_SLOPE_IN_FP16 = _with_sums(lambda s: replace(s, slope=narrowed(s.slope, FP16)))
_GRADIENTS: dict[str, tuple[Gradient, tuple[str, ...]]] = {
    "dz in bf16": (_dz_then(partial(narrowed, format=BF16)), ("fp32", "bf16")),
    "dz in fp16": (_dz_then(partial(narrowed, format=FP16)), ("fp32", "fp16")),
    "dz in tf32": (_dz_then(partial(narrowed, format=TF32)), FP32_ONLY),
    "mean of dy in bf16 in dz": (_with_sums(lambda s: replace(s, total=narrowed(s.total, BF16))), STORED),
    "product of dy and d in bf16 in dz": (_with_sums(lambda s: replace(s, product=narrowed(s.product, BF16))), STORED),
    "slope of the inverse deviation in fp16 in dz": (_SLOPE_IN_FP16, STORED),
}  # fmt: skip


def _summing(**changes: Any) -> ConvBnKernel:
    return ConvBnKernel(summed(Sum(**changes)))


_CONVOLUTIONS: dict[str, tuple[ConvBnKernel, tuple[str, ...]]] = {
    "convolutions of tf32": (_summing(prepare=partial(sums.narrowed, TF32)), FP32_ONLY),
    "convolutions of bf16": (_summing(prepare=partial(sums.narrowed, BF16)), ("fp32", "fp16")),
    "convolutions of fp16": (_summing(prepare=partial(sums.narrowed, FP16)), FP32_ONLY),
    "convolutions accumulated in fp16": (_summing(step=sums.rounding_to(FP16), work=np.float64), STORED),
    "convolutions accumulated in bf16": (_summing(step=sums.rounding_to(BF16), work=np.float64), STORED),
    "convolutions accumulated in 14 bits": (_summing(step=sums.rounding_to(bits(14)), work=np.float64), STORED),
    "z and dz rounded to storage": (replace(GOOD, between=True), SHORT),
    "sums of dy and dy*d in bf16": (replace(GOOD, total=_totals_in(BF16)), STORED),
    "sums of dy and dy*d in fp16": (replace(GOOD, total=_totals_in(FP16)), STORED),
}


def _apart(other: ConvBnKernel) -> Run:
    """Take statistics from one convolution, everything else from another."""

    def run(operator: Operator, geometry: ConvBnGeometry, inputs: Arrays, dtype: str) -> Arrays:
        elsewhere = other.z(geometry, inputs, dtype)
        return replace(GOOD, moments=lambda z: CENTRED(elsewhere))(operator, geometry, inputs, dtype)

    return run


_APART: dict[str, tuple[Run, tuple[str, ...]]] = {
    "statistics from a convolution of bf16": (_apart(_CONVOLUTIONS["convolutions of bf16"][0]), ("fp32", "fp16")),
    "statistics from a z rounded to storage": (_apart(replace(GOOD, between=True)), SHORT),
}


def _on(change: Callable[[np.ndarray], np.ndarray], *names: str) -> Run:
    return on_inputs(change, *names, base=GOOD)


def _in_storage(operator: Operator, geometry: ConvBnGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Read parameters as if they were as narrow as the tensors."""
    narrow = _on(partial(narrowed, format=FORMATS[dtype]), "gamma", "beta", *_OLD)
    return narrow(operator, geometry, inputs, dtype)


def _multiples(array: np.ndarray) -> np.ndarray:
    """Round to multiples of 2^-20: right for filters of the usual size."""
    return (np.rint(array.astype(np.float64) * 2**20) / 2**20).astype(array.dtype)


_OLD = ("running_mean", "running_var")
_INPUTS: dict[str, tuple[Run, tuple[str, ...], tuple[str, ...]]] = {
    "parameters read in storage dtype": (_in_storage, NORMALISED, SHORT),
    "filters in fixed point": (_on(_multiples, "w"), NORMALISED, STORED),
    "gamma in bf16": (_on(partial(narrowed, format=BF16), "gamma"), NORMALISED, STORED),
    "beta in bf16": (_on(partial(narrowed, format=BF16), "beta"), OUTWARD, STORED),
    "old running statistics in bf16": (_on(partial(narrowed, format=BF16), *_OLD), OUTWARD, STORED),
    "old running statistics in fp16": (_on(partial(narrowed, format=FP16), *_OLD), OUTWARD, STORED),
}


def _folded_in_storage(operator: Operator, geometry: ConvBnGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Multiply filters by the scale and store them in the filters' format."""
    nothing = np.zeros((geometry.k, 1), np.float32)
    c = GOOD.with_statistics(geometry, inputs, nothing, inputs["running_mean"], inputs["running_var"])
    w = narrowed(inputs["w"].astype(np.float32) * per_filter(c.factor, geometry.rank), FORMATS[dtype])
    z = GOOD.z(geometry, {"x": inputs["x"], "w": w}, dtype)
    y = as_image(z + (c.beta - c.mean * c.factor)[:, None], geometry)
    return {"y": y.astype(STORAGE[dtype])}


def mutant(
    name: str,
    run: Run,
    operators: tuple[str, ...] = NORMALISED,
    dtypes: tuple[str, ...] = STORED,
    when: Callable[[Any], bool] = lambda geometry: True,
) -> Mutant:
    return Mutant(f"bn: {name}", "batchnorm", run, operators=operators, when=when, dtypes=dtypes, base=GOOD)


def _arithmetic() -> Iterator[Mutant]:
    for name, (found, dtypes) in _MOMENTS.items():
        yield mutant(name, replace(GOOD, moments=found), (FORWARD,) if "NaN" in name else TRAINING, dtypes)
    for name, inverse in _INVERSES.items():
        yield mutant(name, replace(GOOD, inverse=inverse))
    for name, (scaling, dtypes) in _SCALES.items():
        yield mutant(name, replace(GOOD, scale=scaling), OUTWARD, dtypes)
    for name, (gradient, dtypes) in _GRADIENTS.items():
        yield mutant(name, replace(GOOD, gradient=gradient), (BACKWARD,), dtypes)
    for name, (kernel, dtypes) in _CONVOLUTIONS.items():
        yield mutant(name, kernel, (BACKWARD,) if "dy" in name else NORMALISED, dtypes)
    for name, (run, dtypes) in _APART.items():
        yield mutant(name, run, TRAINING, dtypes)
    for name, (run, operators, dtypes) in _INPUTS.items():
        yield mutant(name, run, operators, dtypes)
    yield mutant("filters with the scale in storage dtype", _folded_in_storage, (INFERENCE,), SHORT)


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
    """Add up the gradients of gamma and beta image by image in the storage dtype, as atomics may."""
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
    """Leave the last image of the batch out of a few channels' statistics: an update that was lost."""
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
    """Take two elements to be one deviation from their mean, which epsilon makes wrong."""
    inverse = GOOD.inverse

    def without_epsilon(var: np.ndarray, eps: np.ndarray, outside: bool) -> np.ndarray:
        return inverse(var, var.dtype.type(0), outside)

    return replace(GOOD, inverse=without_epsilon)(operator, geometry, inputs, dtype)


def _cancelling(operator: Operator, geometry: ConvBnGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Compute dgamma as the sum of dy*z less the mean times the sum of dy: where means are large, both are much
    larger."""
    outputs, c = GOOD(operator, geometry, inputs, dtype), GOOD.channels(geometry, inputs, dtype)
    dy = GOOD.wide(by_channel(inputs["dy"]))
    return outputs | {"dgamma": (in_turn(dy * c.z) - c.mean * in_turn(dy)) * c.inverse}


def _sharing(operator: Operator, geometry: ConvBnGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Let equal constants be one array, which holds the new running statistics before gamma and beta are read from
    it."""
    outputs = exact(operator, geometry, inputs, dtype)
    overwritten = {
        name: outputs[updated]
        for name, updated in (("gamma", "running_var"), ("beta", "running_mean"))
        if name in inputs and np.array_equal(inputs[name], inputs[updated])
    }
    return outputs | {"y": exact(operator, geometry, inputs | overwritten, dtype)["y"]}


_OTHERS = (
    mutant("equal constants share an array", _sharing, (FORWARD,), when=lambda g: g.affine and bool(g.running)),
    mutant("dgamma as a difference of two sums", _cancelling, (BACKWARD,), when=lambda g: g.affine),
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
    *_arithmetic(),
    *_outputs(),
    *_OTHERS,
    *on_paths(_PATHS, NORMALISED, "batchnorm", "bn: {mistake}, on the {path} path"),
)
