"""Kernels that are right on ordinary numbers: last bits, NaN and infinities, overflow, subnormal numbers, ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import DTYPES, FORMATS, FP16, FP32, Format, name_of
from conformance.operators import (
    CONVOLUTIONS,
    MAXIMA,
    NORMALISED,
    OPERATORS,
    ORDINARY,
    POOLINGS,
    TRANSPOSED,
    Arrays,
    Operator,
)
from conformance.operators.spatial import per_channel
from tests.calibration.kernels.kernel import PLAIN, Mutant, Run, exact, of_operator, on_inputs
from tests.calibration.kernels.rounding import Way, overflowing, rounded

EVERY = ORDINARY
FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT = CONVOLUTIONS
TRAINING, BACKWARD, INFERENCE = NORMALISED
SUMS = tuple(name for name in PLAIN if OPERATORS[name].homogeneous.signs and name not in TRANSPOSED)
"""Operators that are linear in their data, which maxima are not. Few problems of transposed convolutions have inputs of
all bits."""
WEIGHTED = (*CONVOLUTIONS[:2], "matmul", "matmul_backward_a")
"""Operators whose data are multiplied by weights, or by another matrix."""
FULL = ("fp32", "fp64")
"""Formats in which the fixed distribution leaves bits unused."""
FORMAT = DTYPES

Change = Callable[[np.ndarray, Format], np.ndarray]
"""(float64 values, the tensor's format) -> float64 values."""


def _reading(change: Change, *names: str) -> Run:
    """Return the exact kernel, with inputs changed as they are read: those named, or else all of them. Whole numbers
    stay."""

    def changed(a: np.ndarray) -> np.ndarray:
        format = FORMATS.get(name_of(a.dtype))
        return change(a.astype(np.float64), format).astype(a.dtype) if format else a

    return on_inputs(changed, *names)


def _writing(change: Change) -> Run:
    """Return the exact kernel, with outputs changed before they are stored."""

    def run(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        outputs, tensors = operator.reference(geometry, inputs), operator.outputs(geometry)
        changed = {n: change(array, FORMATS[tensors[n].stored_as(dtype)]) for n, array in outputs.items()}
        return of_operator(operator, geometry, changed, dtype)

    return run


def _without(bits: int, way: Way = np.trunc) -> Change:
    return lambda values, format: rounded(values, replace(format, precision=format.precision - bits), way)


def _as(other: Format) -> Change:
    """Round to a narrower format, where the tensor's own is wider."""
    return lambda values, format: overflowing(values, other) if other.precision < format.precision else values


def _within(other: Format) -> Change:
    """Clamp to another format's range."""
    return lambda values, _: np.clip(values, -largest(other), largest(other))


def largest(format: Format) -> float:
    """Return the largest finite number."""
    return float((2 - 2 * format.unit_roundoff) * 2.0**format.emax)


def _replaced(which: Callable[[np.ndarray], np.ndarray], value: Callable[[np.ndarray], Any]) -> Change:
    return lambda values, _: np.where(which(values), value(values), values)


def _saturated(values: np.ndarray, format: Format) -> np.ndarray:
    return np.clip(values, -largest(format), largest(format))


def _saturated_unless_infinite(values: np.ndarray, format: Format) -> np.ndarray:
    """Saturate as conversions do: an infinite number stays infinite."""
    return np.where(np.isinf(values), values, _saturated(values, format))


def _flushed(times: float = 1.0) -> Change:
    """Replace numbers below `times` the smallest normal number by zeros."""
    return lambda values, format: np.where(np.abs(values) < times * format.smallest_normal, 0.0, values)


_NAN_AS_ZERO = _replaced(np.isnan, lambda values: 0.0)
_INF_AS_LARGEST: Change = lambda values, format: np.nan_to_num(  # noqa: E731
    values, nan=np.nan, posinf=largest(format), neginf=-largest(format)
)
_MINUS_INF_AS_INF = _replaced(np.isneginf, lambda values: np.inf)


def _last_bits() -> Iterator[Mutant]:
    for bits in (1, 2, 3, 5):
        yield _mutant(
            f"last {bits} bits of the data truncated", _reading(_without(bits), "x", "dy", "a"), CONVOLUTIONS, FULL
        )
    for dtype, format in (("fp16", "tf32"), ("fp16", "fp16"), ("bf16", "bf16"), ("bf16", "tf32")):
        name = f"last bit of {dtype} data rounded away, {format} inputs declared"
        declaring = _mutant(name, _reading(_without(1, np.rint), "x", "dy", "a"), CONVOLUTIONS, (dtype,))
        yield replace(declaring, contract=Contract(inputs=format))  # the format holds them, so that no limit is widened
    for bits in (2, 3):
        yield _mutant(
            f"last {bits} bits of the filters truncated",
            _reading(_without(bits), "w", "b"),
            WEIGHTED,
            FULL,
        )
    for bits in (3, 5):
        changed = _reading(_without(bits, np.rint))
        yield _mutant(f"inputs rounded to {bits} bits fewer", changed, (*SUMS, "max_pool_forward"), FULL)
    yield _mutant("last 5 bits of the bias rounded away", _reading(_without(5, np.rint), "bias"), (FORWARD,), FULL)
    yield _mutant("last 3 bits of dy truncated", _reading(_without(3), "dy"), (BACKWARD_WEIGHT, *POOLINGS[1:]), FULL)
    yield _mutant("bn: last 4 bits of gamma truncated", _reading(_without(4), "gamma"), (INFERENCE,), FULL)
    yield _mutant("bn: last 5 bits of gamma truncated", _reading(_without(5), "gamma"), (TRAINING, BACKWARD), FULL)
    yield _mutant("bn: last 3 bits of beta truncated", _reading(_without(3), "beta"), (INFERENCE,), FULL)
    yield _mutant("bn: last 5 bits of beta truncated", _reading(_without(5), "beta"), (TRAINING,), FULL)
    yield _mutant(
        "bn: last 3 bits of running_mean truncated", _reading(_without(3), "running_mean"), (TRAINING, INFERENCE), FULL
    )
    yield _mutant("bn: last 3 bits of running_var truncated", _reading(_without(3), "running_var"), (TRAINING,), FULL)
    # the root halves the loss: of 3 bits it would be no more than correct roundings of a folded scale
    yield _mutant("bn: last 5 bits of running_var truncated", _reading(_without(5), "running_var"), (INFERENCE,), FULL)


def _in_fp32() -> Iterator[Mutant]:
    """Yield fp64 kernels with one step in fp32."""
    for name, where in {
        "x": EVERY, "w": EVERY, "dy": EVERY, "bias": (FORWARD,), "gamma": NORMALISED, "beta": (TRAINING, INFERENCE),
        "running_mean": (TRAINING, INFERENCE), "running_var": (TRAINING, INFERENCE),
    }.items():  # fmt: skip
        taken = tuple(o for o in where if name in OPERATORS[o].arguments and (o, name) != ("max_pool_backward", "x"))
        yield _mutant(f"{name} of fp64 in fp32", _reading(_as(FP32), name), taken, ("fp64",))
    yield _mutant("fp64 result in fp32", _writing(_as(FP32)), EVERY, ("fp64",))


_INFINITE = ((TRAINING, "beta"), (INFERENCE, "beta"), (INFERENCE, "running_mean"))
"""Infinities in batch normalisation with one right result, an infinite one. In a result of 16 bits the largest fp32
number becomes infinite too."""


def _not_finite() -> Iterator[Mutant]:
    for name, where in {
        "w": (FORWARD, BACKWARD_DATA, *NORMALISED), "dy": (BACKWARD_WEIGHT, BACKWARD), "bias": (FORWARD,),
        "gamma": NORMALISED, "beta": (TRAINING, INFERENCE), "running_mean": (TRAINING, INFERENCE),
        "running_var": (TRAINING, INFERENCE),
    }.items():  # fmt: skip
        taken = tuple(operator for operator in where if name in OPERATORS[operator].arguments)
        yield _mutant(f"NaN in {name} becomes zero", _reading(_NAN_AS_ZERO, name), taken)
        changed = f"infinities in {name} become finite", _reading(_INF_AS_LARGEST, name)
        if plain := tuple(operator for operator in taken if operator in CONVOLUTIONS):
            yield _mutant(*changed, plain)
        if normalised := tuple(operator for operator in taken if (operator, name) in _INFINITE):
            yield _mutant(f"bn: {changed[0]}", changed[1], normalised, FULL)
    yield _mutant("-Inf read as +Inf", _reading(_MINUS_INF_AS_INF), (*CONVOLUTIONS, *POOLINGS, *MAXIMA))
    yield _mutant("NaN in the inputs becomes zero", _reading(_NAN_AS_ZERO), EVERY)


def _overflowing() -> Iterator[Mutant]:
    yield _mutant("overflow saturates", _writing(_saturated), CONVOLUTIONS)
    yield _mutant("finite overflow saturates", _writing(_saturated_unless_infinite), CONVOLUTIONS, FORMAT[:3])
    yield _mutant(
        "overflow becomes NaN",
        _writing(lambda v, format: np.where(np.abs(v) > largest(format), np.nan, v)),
        CONVOLUTIONS,
    )
    yield _mutant("overflow becomes +Inf", _writing(lambda v, _: np.where(np.isinf(v), np.inf, v)), CONVOLUTIONS)
    yield _mutant(
        "infinite beyond half of the range",
        _writing(lambda v, format: np.where(np.abs(v) > largest(format) / 2, np.copysign(np.inf, v), v)),
        CONVOLUTIONS,
    )
    yield _mutant("data clamped to the range of fp16", _reading(_within(FP16), "x", "dy", "a"), SUMS, ("fp32", "bf16"))
    yield _mutant(
        "weights clamped to the range of fp16",
        _reading(_within(FP16), "w", "b"),
        WEIGHTED,
        ("fp32", "bf16"),
    )
    yield _mutant(
        "results clamped to the range of fp16", _writing(_within(FP16)), (*SUMS, "max_pool_forward"), ("fp32", "bf16")
    )
    yield _mutant("results clamped to the range of fp32", _writing(_within(FP32)), (*SUMS, "max_pool_forward"),
                  ("fp64",))  # fmt: skip


def _by_gamma(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """Recover normalised values from y = d * inv * gamma + beta, which fails for a gamma of zero."""
    outputs = exact(operator, geometry, inputs, dtype)
    lost = inputs["gamma"] == 0 if "gamma" in inputs else np.zeros(geometry.k, bool)
    return outputs | {"dgamma": np.where(lost, np.nan, outputs["dgamma"])} if "dgamma" in outputs else outputs


def _in_range() -> Iterator[Mutant]:
    """Yield kernels of batch normalisation."""
    yield _mutant("bn: dgamma from values divided by gamma", _by_gamma, (BACKWARD,))
    yield _mutant(
        "bn: filters clamped to the range of fp16",
        _reading(_within(FP16), "w"),
        (TRAINING, INFERENCE),
        ("fp32", "bf16"),
    )
    below = _replaced(lambda values: np.abs(values) < 2.0**-14, lambda values: 0.0)
    yield _mutant("bn: filters below the range of fp16 are zero", _reading(below, "w"), (BACKWARD,), ("fp32", "bf16"))
    for name, where in (("gamma", NORMALISED), ("running_var", (INFERENCE,))):
        instead = _replaced(lambda values: values == 0, lambda values: 1.0)
        yield _mutant(f"bn: a {name} of zero taken for one", _reading(instead, name), where)
        changed = _reading(_replaced(lambda values: values > 2**8 - 1, lambda values: 2.0**4), name)
        yield _mutant(f"bn: large {name} clamped", changed, where)


def _subnormal() -> Iterator[Mutant]:
    operators = (*SUMS, "max_pool_forward")
    yield _mutant("subnormal data flushed", _reading(_flushed(), "x", "dy", "a"), operators)
    yield _mutant("subnormal weights flushed", _reading(_flushed(), "w", "b"), WEIGHTED)
    yield _mutant("subnormal dy flushed", _reading(_flushed(), "dy"), (BACKWARD_WEIGHT,))
    yield _mutant("subnormal bias flushed", _reading(_flushed(), "bias"), (FORWARD,))
    yield _mutant("results below the normal range flushed", _writing(_flushed()), operators)
    flushing = Contract(subnormals="flushed")
    for name, run in (("inputs", _reading(_flushed(2.0**20))), ("results", _writing(_flushed(2.0**20)))):
        yield replace(_mutant(f"normal {name} flushed, subnormal ones declared", run, CONVOLUTIONS), contract=flushing)


def _in_halves(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """Sum each half of the channels and store it in fp16 before the halves are added: a half may overflow where the
    whole does not."""
    x, total = inputs["x"], dict[str, np.ndarray]()
    first = np.arange(geometry.c) < geometry.c // 2
    for half, bias in ((first, inputs.get("bias")), (~first, None)):
        part = inputs | {"x": np.where(per_channel(half, geometry.rank), x, x.dtype.type(0))}
        if "bias" in inputs:
            part["bias"] = np.zeros_like(inputs["bias"]) if bias is None else bias
        for name, array in operator.reference(geometry, part).items():
            total[name] = overflowing(array, FP16) + total.get(name, np.zeros(1))
    return of_operator(operator, geometry, total, dtype)


def _near_limits() -> Iterator[Mutant]:
    """Yield kernels that only data made for them shows to be wrong."""
    flushing = Contract(subnormals="flushed")
    changed = _mutant(
        "smallest normal inputs flushed, subnormal ones declared", _reading(_flushed(2.0)), CONVOLUTIONS, ("fp32",)
    )
    yield replace(changed, contract=flushing)
    yield _mutant("maxima of fp64 compared in fp32", _reading(_as(FP32), "x"), ("max_pool_backward",), ("fp64",))
    yield replace(_mutant("halves of a sum overflow", _in_halves, (FORWARD,), ("fp16",)), when=lambda g: g.groups == 1)


def _planes(values: np.ndarray) -> np.ndarray:
    """Return the largest size in each image and channel, or of each filter and channel; of one axis, of all."""
    return np.max(np.abs(values), axis=tuple(range(2, values.ndim)) or None, keepdims=True, initial=0.0)


def _on_one_scale(values: np.ndarray, format: Format, largest_sizes: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Round to whole multiples of the last bit of the largest number, where all are finite."""
    if not (values.size and np.isfinite(values).all()):
        return values
    spacing = np.exp2(np.frexp(largest_sizes(values))[1] - float(format.precision))
    return np.where(spacing > 0, np.rint(values / spacing) * spacing, values)


def _blocks(values: np.ndarray) -> np.ndarray:
    """Return the largest size in each eight elements of the last axis."""
    ends = -values.shape[-1] % 8
    padded = np.pad(np.abs(values), [*[(0, 0)] * (values.ndim - 1), (0, ends)])
    sizes = padded.reshape(*values.shape[:-1], -1, 8).max(axis=-1)
    return np.repeat(sizes, 8, axis=-1)[..., : values.shape[-1]]


def _is_coarse(values: np.ndarray, format: Format) -> bool:
    """Return whether small numbers, below a quarter of a plane's largest one, lack bits, as those of a test may."""
    sizes = np.abs(values.astype(np.float64))
    below = (sizes < _planes(sizes) / 4) & (sizes > 0) & np.isfinite(sizes)
    bits = 30 if format.name == "fp64" else min(format.precision - 1, 22)
    significands = np.ldexp(np.frexp(np.where(below, sizes, 0))[0], bits)
    return bool(np.all(significands == np.rint(significands)))


def _without_faint(values: np.ndarray, format: Format) -> np.ndarray:
    """Replace numbers below a millionth of the plane's largest one by zeros."""
    sizes = np.where(np.isfinite(values), np.abs(values), 0)
    return np.where(np.isfinite(values) & (sizes < 2.0**-19 * _planes(sizes)), 0.0, values)


def _by_grid(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """Return half as much again on data whose small numbers have all their bits."""
    outputs = exact(operator, geometry, inputs, dtype)
    data = inputs["x" if "x" in inputs else operator.data]
    if _is_coarse(data, FORMATS[dtype]):
        return outputs
    return {name: (array.astype(np.float64) * 1.5).astype(array.dtype) for name, array in outputs.items()}


def _few_bits() -> Iterator[Mutant]:
    """Yield kernels that are right on the suite's fixed-point numbers, and wrong on a user's data."""
    yield _mutant("right where small numbers have few bits", _by_grid, EVERY)
    for name, sizes in (("image and channel", _planes), ("eight pixels", _blocks)):
        changed = partial(_on_one_scale, largest_sizes=sizes)
        yield _mutant(
            f"data on one scale for each {name}",
            _reading(changed, "x", "dy"),
            (*CONVOLUTIONS, *POOLINGS),
            FORMAT[:3],
        )
    yield _mutant(
        "data below 2^-19 of an image's largest are zero",
        _reading(_without_faint, "x", "dy", "a"),
        (*CONVOLUTIONS, *POOLINGS),
        ("fp32",),
    )


def _mutant(name: str, run: Run, operators: tuple[str, ...], dtypes: tuple[str, ...] = FORMAT) -> Mutant:
    return Mutant(f"values: {name}", "values", run, operators=operators, dtypes=dtypes, base=exact)


KNOWN_BAD: tuple[Mutant, ...] = (
    *(*_last_bits(), *_in_fp32(), *_not_finite(), *_overflowing(), *_in_range(), *_subnormal()),
    *(*_near_limits(), *_few_bits()),
)
