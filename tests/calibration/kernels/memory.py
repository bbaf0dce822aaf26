"""Buffers and masks: elements that are never written, lost, read beyond the end, or hidden."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

from conformance.operators import FAMILIES, MAXIMA, OPERATORS, POOLINGS, Arrays, Operator
from conformance.operators.mistakes import D, H, W
from tests.calibration.kernels.kernel import PLAIN, Mutant, Run, exact, on_inputs, on_outputs, stored

TAIL = 0.03


def tail(leftover: Callable[[np.ndarray], np.ndarray], *names: str) -> Run:
    """Let the last few elements of the outputs named, or of every one, keep the old content of the buffer."""

    def run(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        outputs = exact(operator, geometry, inputs, dtype)
        for name in names or outputs:
            flat = outputs[name].reshape(-1)
            count = max(1, round(TAIL * flat.size))
            flat[-count:] = leftover(flat)[:count]
        return outputs

    return run


def nothing(flat: np.ndarray) -> np.ndarray:
    return np.full_like(flat, np.nan)


def masked_reads(shift: int, axis: int, of: Callable[[Operator], str] = attrgetter("data")) -> Run:
    """Read elements of an input beside the window and multiply them by zero, so that NaN and Inf leak."""

    def run(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        name = of(operator)
        beside = inputs | {name: np.roll(inputs[name], shift, axis)}
        outputs, leak = (operator.reference(geometry, given) for given in (inputs, beside))
        return stored({name: outputs[name] + 0 * leak[name] for name in outputs}, dtype)

    return run


def _masked_padding(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """Read padding from the nearest element of the next image and multiply it by zero."""
    outputs = operator.reference(geometry, inputs)
    stray = np.roll(inputs[operator.data], 1, 0)
    hole = np.zeros_like(stray)
    first, last = (..., *(0,) * geometry.rank), (..., *(-1,) * geometry.rank)
    hole[first], hole[last] = stray[last], stray[first]
    leak = operator.reference(geometry, inputs | {operator.data: hole})
    return stored({name: outputs[name] + 0 * leak[name] for name in outputs}, dtype)


def without_nan(array: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(array), np.zeros((), array.dtype), array)


def _without_inf(array: np.ndarray) -> np.ndarray:
    """Replace infinities by the largest number of a 16-bit format, which every storage format rounds to a finite
    one."""
    return np.where(np.isinf(array), np.copysign(60000.0, array.astype(np.float64)), array).astype(array.dtype)


_RUNS: dict[str, Run] = {
    "tail of the output never written (NaN)": tail(nothing),
    "tail of the output never written (zeros)": tail(np.zeros_like),
    "tail of the output never written (other results)": tail(lambda flat: flat[::-1].copy()),
    "reads beside the row, times zero": masked_reads(1, W),
    "reads of another channel, times zero": masked_reads(1, 1),
    "reads of another image, times zero": _masked_padding,
    "NaN in the result becomes zero": on_outputs(lambda y, _: without_nan(y)),
    "NaN in the result is lost to a maximum": on_outputs(lambda y, _: np.fmax(y, np.finfo(np.float32).min)),
    "NaN in the inputs becomes zero": on_inputs(without_nan),
    "infinite results clamped to a finite number": on_outputs(lambda y, _: _without_inf(y)),
    "infinite inputs clamped to a finite number": on_inputs(_without_inf),
    "infinite results become NaN": on_outputs(lambda y, _: y + 0 * y),
}


def _unwritten_from(start: int) -> Run:
    """Write zeros behind the last element that an index of a few bits reaches."""
    return on_outputs(lambda array, _: np.where(np.arange(array.size).reshape(array.shape) < start, array, 0.0))


_POOLED: dict[str, Run] = {
    "added to an output that was never zeroed": on_outputs(lambda array, _: array + 1),
    "index of 15 bits": _unwritten_from(1 << 15),
    "index of 16 bits": _unwritten_from(1 << 16),
}
"""Kernels of poolings."""

_OF_AXES: dict[str, tuple[Run, tuple[int, ...]]] = {
    "reads beside the column, times zero": (masked_reads(1, H), (2, 3)),
    "reads beside the plane, times zero": (masked_reads(1, D), (3,)),
}
"""Kernels with the numbers of dimensions that have such an axis."""

_OF_IMAGES = tuple(name for name in PLAIN if FAMILIES[OPERATORS[name].family].rank)
KNOWN_BAD: tuple[Mutant, ...] = (
    *(Mutant(name, "memory", run, operators=PLAIN, base=exact) for name, run in _RUNS.items()),
    *(
        Mutant(name, "memory", run, operators=_OF_IMAGES, base=exact, ranks=ranks)
        for name, (run, ranks) in _OF_AXES.items()
    ),
    *(
        Mutant(f"pooled: {name}", "memory", run, operators=(*POOLINGS, *MAXIMA), base=exact)
        for name, run in _POOLED.items()
    ),
)
