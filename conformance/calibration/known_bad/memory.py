"""Buffers and masks: what is never written, lost, read beyond its end, or hidden."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

from conformance.calibration.known_bad.base import PLAIN, Mutant, exact, on_outputs, stored
from conformance.calibration.known_kernel import Run
from conformance.calibration.lowering import lowered
from conformance.inputs.stream import Stream
from conformance.operators import CONVOLUTIONS, Arrays, ConvGeometry, Operator
from conformance.operators.mistakes import D, H, W

CHUNK = 8
LOST = 0.01
"""Share of the outputs that miss a chunk of their sum."""
TAIL = 0.03


def _tail(leftover: Callable[[np.ndarray], np.ndarray]) -> Run:
    """The last few elements hold what was in the buffer before."""

    def run(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        outputs = exact(operator, geometry, inputs, dtype)
        for array in outputs.values():
            flat = array.reshape(-1)
            count = max(1, round(TAIL * flat.size))
            flat[-count:] = leftover(flat)[:count]
        return outputs

    return run


def _racing(chunk_of: Callable[[int], int]) -> Run:
    """A few outputs miss the products of one chunk of the sum; `chunk_of` says which, given how many there are."""

    def run(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
        product = lowered(operator, geometry, inputs)
        start = CHUNK * chunk_of(-(-product.a.shape[2] // CHUNK))
        part = slice(start, start + CHUNK)
        lost = product.restored(product.a[..., part] @ product.b[:, part])
        outputs = operator.reference(geometry, inputs)
        main = next(iter(outputs))
        hit = Stream("race").ternary(lost.shape, LOST, np.dtype(np.float32)) != 0
        hit.reshape(-1)[lost.size // 2] = True
        return stored(outputs | {main: outputs[main] - np.where(hit, lost, 0)}, dtype)

    return run


def _masked_reads(shift: int, axis: int, of: Callable[[Operator], str] = attrgetter("data")) -> Run:
    """Elements of an input beside the window are read and multiplied by zero, so that NaN and Inf leak."""

    def run(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        name = of(operator)
        beside = inputs | {name: np.roll(inputs[name], shift, axis)}
        outputs, leak = (operator.reference(geometry, given) for given in (inputs, beside))
        return stored({name: outputs[name] + 0 * leak[name] for name in outputs}, dtype)

    return run


def _masked_padding(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """Padding is read from the nearest element of the next image and multiplied by zero."""
    outputs = operator.reference(geometry, inputs)
    stray = np.roll(inputs[operator.data], 1, 0)
    hole = np.zeros_like(stray)
    first, last = (..., *(0,) * geometry.rank), (..., *(-1,) * geometry.rank)
    hole[first], hole[last] = stray[last], stray[first]
    leak = operator.reference(geometry, inputs | {operator.data: hole})
    return stored({name: outputs[name] + 0 * leak[name] for name in outputs}, dtype)


def _on_inputs(change: Callable[[np.ndarray], np.ndarray]) -> Run:
    def run(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        return exact(operator, geometry, {name: change(array) for name, array in inputs.items()}, dtype)

    return run


def _without_nan(array: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(array), np.zeros((), array.dtype), array)


def _without_inf(array: np.ndarray) -> np.ndarray:
    """Infinities as the largest number of a 16-bit format, which every storage format rounds to something finite."""
    return np.where(np.isinf(array), np.copysign(60000.0, array.astype(np.float64)), array).astype(array.dtype)


_RUNS: dict[str, Run] = {
    "tail of the output never written (NaN)": _tail(lambda flat: np.full_like(flat, np.nan)),
    "tail of the output never written (zeros)": _tail(np.zeros_like),
    "tail of the output never written (other results)": _tail(lambda flat: flat[::-1].copy()),
    "reads beside the row, times zero": _masked_reads(1, W),
    "reads of another channel, times zero": _masked_reads(1, 1),
    "reads of another image, times zero": _masked_padding,
    "NaN in the result becomes zero": on_outputs(lambda y, _: _without_nan(y)),
    "NaN in the result is lost to a maximum": on_outputs(lambda y, _: np.fmax(y, np.finfo(np.float32).min)),
    "NaN in the inputs becomes zero": _on_inputs(_without_nan),
    "infinite results clamped to a finite number": on_outputs(lambda y, _: _without_inf(y)),
    "infinite inputs clamped to a finite number": _on_inputs(_without_inf),
    "infinite results become NaN": on_outputs(lambda y, _: y + 0 * y),
}

_OF_AXES: dict[str, tuple[Run, tuple[int, ...]]] = {
    "reads beside the column, times zero": (_masked_reads(1, H), (2, 3)),
    "reads beside the plane, times zero": (_masked_reads(1, D), (3,)),
}
"""With the numbers of dimensions that have such an axis."""

_GRADIENTS: dict[str, Run] = {
    "reads of another filter's gradient, times zero": _masked_reads(1, 1, attrgetter("operand")),
    "NaN in a filter's gradient becomes zero": lambda operator, geometry, inputs, dtype: exact(
        operator, geometry, inputs | {"dy": _without_nan(inputs["dy"])}, dtype
    ),
}
"""Of weights, where the gradient is the operand."""

_RACES: dict[str, Run] = {
    "updates lost: first chunk of the sum": _racing(lambda chunks: 0),
    "updates lost: last chunk of the sum": _racing(lambda chunks: chunks - 1),
    "updates lost: a chunk in the middle": _racing(lambda chunks: chunks // 2),
}
"""Of convolutions, whose sums are long enough to be split."""

MEMORY: tuple[Mutant, ...] = (
    *(Mutant(name, "memory", run, operators=PLAIN, base=exact) for name, run in _RUNS.items()),
    *(Mutant(name, "memory", run, operators=PLAIN, base=exact, ranks=ranks) for name, (run, ranks) in _OF_AXES.items()),
    *(Mutant(name, "memory", run, operators=CONVOLUTIONS, base=exact) for name, run in _RACES.items()),
    *(Mutant(name, "memory", run, operators=CONVOLUTIONS[2:], base=exact) for name, run in _GRADIENTS.items()),
)
