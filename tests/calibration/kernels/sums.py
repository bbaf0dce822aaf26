"""A sum of products written plainly: its order, its number of accumulators, and its roundings on the way.

Where a step works in float64 and rounds once to a narrower accumulator, the float64 part is exact: products of the
suite's data and an accumulator of their spacing fit in 53 bits (`conformance.inputs.distributions`). So a fused
multiply-add is one rounding here as it is in hardware.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from conformance.dtypes import WHOLE, Format, sums_of
from conformance.operators import Arrays, Operator
from conformance.operators.spatial import fitted, per_channel
from tests.calibration.kernels.lowering import lowered
from tests.calibration.kernels.rounding import Way, parts, rounded, stored

State = tuple[np.ndarray, ...]
"""The accumulators, and the compensation of a compensated sum."""
Factors = tuple[np.ndarray, np.ndarray]

Step = Callable[[State, Factors], State]
"""Adds one product to every accumulator."""
Order = Callable[[int, int, int], np.ndarray]
"""(terms, taps of the window, a number that depends on the data) -> indices of the terms in the order of the sum."""
Prepare = Callable[[np.ndarray, np.ndarray], Factors]
"""Changes the factors [G, M, KS] and [G, KS, T] before they are multiplied."""
Combine = Callable[[np.ndarray], np.ndarray]
"""Partial sums [lanes, ...] -> their sum."""


def separate(state: State, factors: Factors) -> State:
    """Multiply, round, add, round, in the dtype of the factors."""
    return (state[0] + factors[0] * factors[1],)


def fused(format: Format, way: Way, state: State, factors: Factors) -> State:
    """Add an exact product with one rounding."""
    return (rounded(state[0] + factors[0] * factors[1], format, way),)


def rounded_twice(format: Format, state: State, factors: Factors) -> State:
    """Round the product to the accumulator's format, and then the sum."""
    return (rounded(state[0] + rounded(factors[0] * factors[1], format), format),)


def fused_fp32(state: State, factors: Factors) -> State:
    """Compute `fused` to fp32 and to nearest, where the cast is the rounding."""
    return ((state[0] + factors[0] * factors[1]).astype(np.float32),)


def kahan(state: State, factors: Factors) -> State:
    """Sum with compensation (Kahan 1965): the loss of an addition is taken from the next term."""
    total, lost = state if len(state) == 2 else (state[0], np.zeros_like(state[0]))
    term = factors[0] * factors[1] - lost
    after = total + term
    return after, (after - total) - term


def exact_dot(state: State, factors: Factors) -> State:
    """Add all lanes' products exactly, then to one accumulator with one rounding, as a matrix unit may do."""
    dot = (factors[0] * factors[1]).sum(axis=0, keepdims=True)
    return ((state[0][:1] + dot).astype(np.float32),)


def natural(terms: int, taps: int, data: int) -> np.ndarray:
    """Order terms as the operator is defined: channels, rows of the window, columns."""
    return np.arange(terms)


def backwards(terms: int, taps: int, data: int) -> np.ndarray:
    """Order terms with the last product first."""
    return np.arange(terms)[::-1]


def tap_by_tap(terms: int, taps: int, data: int) -> np.ndarray:
    """Order terms by tap: all channels of one tap, then of the next."""
    return np.arange(terms).reshape(-1, taps).T.reshape(-1)


def shuffled(terms: int, taps: int, data: int) -> np.ndarray:
    """Order terms as atomics happen to arrive: other data give another order."""
    return np.random.default_rng(data).permutation(terms)


def in_turn(partials: np.ndarray) -> np.ndarray:
    return sum(partials[1:], start=partials[0])


def pairwise(partials: np.ndarray) -> np.ndarray:
    """Add neighbours, then neighbours of sums: a tree."""
    while len(partials) > 1:
        odd = partials[len(partials) & ~1 :]
        partials = np.concatenate([partials[:-1:2] + partials[1::2], odd])
    return in_turn(partials)


def in_turn_stored(format: Format, partials: np.ndarray) -> np.ndarray:
    """Add one after the other onto a sum that is kept in `format`, as atomic additions to an output are."""
    return reduce(lambda total, part: rounded((total + part).astype(np.float64), format), partials)


def as_given(a: np.ndarray, b: np.ndarray) -> Factors:
    """Return the inputs without rounding."""
    return a, b


def narrowed(format: Format, a: np.ndarray, b: np.ndarray) -> Factors:
    return rounded(a, format), rounded(b, format)


def cut_off(format: Format, a: np.ndarray, b: np.ndarray) -> Factors:
    """Round toward zero, as tensor cores do that ignore the lowest bits."""
    return rounded(a, format, np.trunc), rounded(b, format, np.trunc)


def split_in_three(format: Format, products: int, a: np.ndarray, b: np.ndarray, way: Way = np.rint) -> Factors:
    """Return the first six or all nine products of three parts of each factor, the smallest first."""
    places = sorted(np.ndindex(3, 3), key=sum)[:products][::-1]
    left, right = (parts(factor, format, 3, way) for factor in (a, b))
    return (
        np.stack([left[i] for i, _ in places], axis=-1).reshape(*a.shape[:2], -1),
        np.stack([right[j] for _, j in places], axis=2).reshape(len(b), -1, b.shape[-1]),
    )


def split(format: Format, a: np.ndarray, b: np.ndarray) -> Factors:
    """Return three products for each: low * high, high * low, high * high; that of the low parts is dropped."""
    (a_high, a_low), (b_high, b_low) = parts(a, format, 2), parts(b, format, 2)
    left = np.stack([a_low, a_high, a_high], axis=-1).reshape(*a.shape[:2], -1)
    return left, np.stack([b_high, b_low, b_high], axis=2).reshape(len(b), -1, b.shape[-1])


@dataclass(frozen=True, slots=True)
class Sum:
    """sum_i a[g, m, i] * b[g, i, t], in an order and with roundings that are chosen.

    lanes      accumulators that work side by side, given the number of terms
    strided    whether neighbouring terms go to neighbouring lanes, or every lane has a stretch of its own
    work       dtype in which a step computes
    held       dtype that the accumulators end in and are combined in
    kept       format that partial sums are stored in before they are combined, where it is narrower
    keeps      the rounding to it: of 16-bit tensors, whose sums stay in range, without overflow
    """

    step: Step = separate
    order: Order = natural
    lanes: Callable[[int], int] = lambda terms: 1
    strided: bool = False
    combine: Combine = in_turn
    prepare: Prepare = as_given
    work: type = np.float32
    held: type = np.float32
    kept: Format | None = None
    keeps: Callable[[np.ndarray, Format], np.ndarray] = rounded

    def __call__(self, a: np.ndarray, b: np.ndarray, taps: int = 1) -> np.ndarray:
        """Return the sums [G, M, T] in the dtype `held`."""
        data = zlib.crc32(a.tobytes())
        a, b = self.prepare(a, b)
        grid = self._grid(self.order(b.shape[1], taps, data))
        left, right = (_gathered(factor.astype(self.work), grid) for factor in (a.swapaxes(1, 2), b))
        start: State = (np.zeros((grid.shape[1], len(a), a.shape[1], b.shape[2]), self.work),)
        state = reduce(self.step, zip(left[..., None], right[..., None, :], strict=True), start)
        partials = state[0] if self.kept is None else self.keeps(state[0].astype(np.float64), self.kept)
        return self.combine(partials.astype(self.held)).astype(self.held)

    def _grid(self, order: np.ndarray) -> np.ndarray:
        """Return [steps, lanes] of indices; unused lanes of the last step point behind the last term."""
        terms = len(order)
        lanes = self.lanes(terms)
        steps = -(-terms // lanes)
        filled = np.concatenate([order, np.full(lanes * steps - terms, terms)])
        return filled.reshape(steps, lanes) if self.strided else filled.reshape(lanes, steps).T


def _gathered(factor: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Gather [G, KS, ...] as [steps, lanes, G, ...], zero where there is no term."""
    behind = np.zeros_like(factor[:, :1])
    return np.ascontiguousarray(np.moveaxis(np.concatenate([factor, behind], axis=1)[:, grid], 0, 2))


def blas(a: np.ndarray, b: np.ndarray, taps: int = 1) -> np.ndarray:
    """Multiply by a library's fp32 GEMM on gathered windows."""
    return a.astype(np.float32) @ b.astype(np.float32)


Total = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


def direct(total: Total, operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """Compute an operator as sums of its own products: its main output, zero where there is no product, and dbias in
    the same order."""
    product = lowered(operator, geometry, inputs)
    taps = 1 if operator.name.endswith(("backward_weight", "backward_b")) else math.prod(geometry.window)
    main, *others = operator.outputs(geometry)
    found = product.restored(total(product.a, product.b, taps))
    outputs = {main: fitted(found, operator.outputs(geometry)[main].shape)}
    if others:
        dy = inputs["dy"].astype(np.float64).swapaxes(0, 1).reshape(1, geometry.k, -1)
        outputs[others[0]] = total(dy, np.ones((1, dy.shape[2], 1)), 1).reshape(-1)
    return finished(outputs, inputs, dtype)


def finished(outputs: Arrays, inputs: Arrays, dtype: str) -> Arrays:
    """Add the bias in the accumulator's dtype, and round once to storage."""
    if "bias" in inputs:
        outputs = {
            name: values + per_channel(inputs["bias"].astype(values.dtype), values.ndim - 2)
            for name, values in outputs.items()
        }
    if dtype in WHOLE:
        return outputs
    return {name: stored(values, sums_of(dtype)) for name, values in outputs.items()}


def blocks(size: int) -> Callable[[int], int]:
    """Return a function that gives the number of lanes of at most `size` terms."""
    return lambda terms: -(-terms // size)


def always(lanes: int) -> Callable[[int], int]:
    """Return a function that gives `lanes` lanes, whatever the number of terms."""
    return lambda terms: lanes


def rounding_to(format: Format, way: Way = np.rint) -> Step:
    """Return a fused step into an accumulator of `format`."""
    return partial(fused, format, way)
