"""Known-bad kernels of average pooling: arithmetic, buffers, special values, and paths that forget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import gt, lt

import numpy as np

from conformance.dtypes import BF16, FORMATS, FP16, FP32, TF32, Format
from conformance.operators import POOLINGS, Arrays, Operator, PoolGeometry
from conformance.operators.pooling import window_sums
from conformance.operators.spatial import is_padded, padded
from tests.calibration.avg_pool.gathering import gathered
from tests.calibration.kernels.arithmetic import Change, added, scaled_in_fp32, to, to_storage, unchanged
from tests.calibration.kernels.kernel import (
    DEFAULT,
    FP32_ONLY,
    SHORT,
    STORED,
    Mutant,
    Run,
    exact,
    stored,
)
from tests.calibration.kernels.rounding import Way, bits, flushed, outward, overflowing
from tests.calibration.kernels.structure import Paths, on_paths

FORWARD, BACKWARD = POOLINGS


@dataclass(frozen=True, slots=True)
class Pooling:
    """Arithmetic of a kernel. With the defaults: exact sums, exact quotients and one rounding.

    given        changes the inputs
    columns      changes the sums over a row of the window, where gradients have one divisor
    accumulate   format and rounding of a sequential accumulator; in the tensors' own if `in_storage`
    before       changes a sum before it is divided
    reciprocal   changes the reciprocals of divisors, `divisor` the divisors
    share        changes quotients that are added, in gradients or where `first` says that all are divided first
    after        changes the result
    """

    given: Change = unchanged
    columns: Change = unchanged
    accumulate: tuple[Format, Way] | None = None
    in_storage: bool = False
    before: Change = unchanged
    reciprocal: Change | None = None
    divisor: Change = unchanged
    share: Change = unchanged
    first: bool = False
    after: Change = unchanged

    def __call__(self, operator: Operator, geometry: PoolGeometry, inputs: Arrays, dtype: str) -> Arrays:
        storage, (name,) = FORMATS[dtype], operator.outputs(geometry)
        seen = gathered(operator, geometry, inputs)
        terms, divisors = self.given(seen.terms, storage), seen.shares
        if self.first or not seen.common:
            shares = self.share(self._divided(terms, divisors, storage), storage)
            total = self._sum(shares, storage, geometry.rank)
        else:
            total = self.before(self._sum(terms, storage, geometry.rank), storage)
            total = self._divided(total, divisors[(0,) * geometry.rank], storage)
        return stored({name: self.after(total, storage)}, dtype)

    def _sum(self, terms: np.ndarray, storage: Format, rank: int) -> np.ndarray:
        """Sum over the first `rank` axes."""
        if self.columns is not unchanged:
            terms = self.columns(terms.sum(rank - 1, keepdims=True), storage)
        chosen = (storage, np.rint) if self.in_storage else self.accumulate
        if chosen is None:
            return terms.sum(tuple(range(rank)))
        return added(terms.reshape(-1, *terms.shape[rank:]), *chosen)

    def _divided(self, values: np.ndarray, divisors: np.ndarray, storage: Format) -> np.ndarray:
        known = self.divisor(divisors, storage)
        return values / known if self.reciprocal is None else values * self.reciprocal(1 / known, storage)


GOOD = Pooling()


def _infinite_beyond(sums: np.ndarray, storage: Format) -> np.ndarray:
    """Return exact sums, infinite where the format cannot hold them although it can hold the average."""
    return np.where(np.isinf(overflowing(sums, storage)), np.copysign(np.inf, sums), sums)


def _roundings() -> Iterator[tuple[str, Pooling, tuple[str, ...]]]:
    for format, dtypes in ((BF16, STORED), (FP16, STORED), (TF32, STORED), (bits(18), FP32_ONLY)):
        yield f"reciprocals rounded to {format.name}", Pooling(reciprocal=to(format)), dtypes
    for format in (BF16, FP16, TF32):
        yield f"pooled inputs rounded to {format.name}", Pooling(given=to(format)), FP32_ONLY
    for format in (BF16, FP16):
        yield f"divisors rounded to {format.name}", Pooling(divisor=to(format)), STORED
        yield f"pooled with an accumulator in {format.name}", Pooling(accumulate=(format, np.rint)), STORED
        yield f"columns of the window stored in {format.name}", Pooling(columns=to(format)), STORED
        yield f"sum stored in {format.name} before it is divided", Pooling(before=to(format)), STORED


_ARITHMETIC: tuple[tuple[str, Pooling, tuple[str, ...]], ...] = (
    *_roundings(),
    ("sum rounded to storage before it is divided", Pooling(before=to_storage), SHORT),
    ("pooled in the storage dtype", Pooling(in_storage=True), SHORT),
    ("quotients rounded to storage before they are added", Pooling(share=to_storage, first=True), SHORT),
    ("quotients rounded to bf16 before they are added", Pooling(share=to(BF16), first=True), STORED),
    ("pooled with an fp32 accumulator toward zero", Pooling(accumulate=(FP32, np.trunc)), FP32_ONLY),
    ("pooled with an fp32 accumulator upward", Pooling(accumulate=(FP32, np.ceil)), FP32_ONLY),
    ("pooled with a 20-bit accumulator", Pooling(accumulate=(bits(20), np.rint)), FP32_ONLY),
    ("pooled with a 14-bit accumulator toward zero", Pooling(accumulate=(bits(14), np.trunc)), STORED),
    ("average truncated", Pooling(after=lambda y, storage: overflowing(y, storage, np.trunc)), STORED),
    ("average rounded up", Pooling(after=lambda y, storage: overflowing(y, storage, np.ceil)), STORED),
    ("average rounded away from zero", Pooling(after=lambda y, storage: overflowing(y, storage, outward)), STORED),
    ("average rounded by way of 11 bits", Pooling(after=to(bits(11))), ("fp32", "bf16")),
    ("average rounded by way of 14 bits", Pooling(after=to(bits(14))), ("fp32", "fp16")),
    ("average rounded by way of bf16", Pooling(after=to(BF16)), ("fp32", "fp16")),
    ("average rounded by way of fp16", Pooling(after=to(FP16)), ("fp32", "bf16")),
    ("average rounded to 20 bits", Pooling(after=to(bits(20))), FP32_ONLY),
    ("average truncated to 20 bits", Pooling(after=to(bits(20), np.trunc)), FP32_ONLY),
    ("subnormal averages flushed", Pooling(after=flushed), STORED),
    ("sum scaled by 256 in fp32 before it is divided", Pooling(before=scaled_in_fp32(256.0)), ("fp32", "bf16")),
    ("sum scaled by 1/256 in fp32 before it is divided", Pooling(before=scaled_in_fp32(1 / 256)), ("fp32", "bf16")),
    ("inputs scaled by 1/256 in fp32 before they are added", Pooling(given=scaled_in_fp32(1 / 256)), ("fp32", "bf16")),
    ("divisors in 8 bits", Pooling(divisor=lambda divisors, _: np.maximum(divisors % 256, 1.0)), STORED),
)


def _sliding(operator: Operator, g: PoolGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Sum columns, then slide a window that adds one column and subtracts another, both in fp32.

    Columns that have left the window leave their roundings behind, and NaN and Inf for ever.
    """
    image = padded(inputs["x"], g.overhang, np.dtype(np.float32))
    columns = image
    for axis in range(2, 1 + g.rank):
        u, extent = g.stride[axis - 2], g.window[axis - 2]
        windows = [columns.take(range(i * u, i * u + extent), axis) for i in range(g.output_size[axis - 2])]
        columns = np.stack([window.sum(axis, dtype=np.float32) for window in windows], axis=axis)
    leaving = np.concatenate([np.zeros_like(columns[..., : g.s]), columns[..., : -g.s]], axis=-1)
    steps = np.stack([columns, -leaving], axis=-1).reshape(*columns.shape[:-1], -1)
    sums = steps.cumsum(-1, dtype=np.float32)[..., 1::2][..., g.s - 1 :: g.stride[-1]][..., : g.output_size[-1]]
    return stored({"y": sums / g.divisors.astype(np.float32)}, dtype)


def _without_nan(operator: Operator, g: PoolGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Return the mean of the elements that are not NaN, as np.nanmean does."""
    x = inputs["x"].astype(np.float64)
    numbers = {"x": (~np.isnan(x)).astype(np.float64)}
    kept, all_there = (operator.reference(g, {"x": each})["y"] for each in (numbers["x"], np.ones_like(x)))
    y = operator.reference(g, {"x": np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf)})["y"]
    return stored({"y": y * np.divide(all_there, kept, where=kept > 0, out=np.ones_like(kept))}, dtype)


def _padded_with_ones(operator: Operator, g: PoolGeometry, inputs: Arrays, dtype: str) -> Arrays:
    inside = padded(np.ones(g.x.shape), g.overhang, np.dtype(np.float64))
    image = np.where(inside > 0, padded(inputs["x"], g.overhang, np.dtype(np.float64)), 1.0)
    return stored({"y": window_sums(g, image) / g.divisors}, dtype)


def _reads_on(operator: Operator, g: PoolGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Let a window that hangs over the padded image read on in the next row."""
    over = g.overhang[-1][1] - g.padding[-1][1]
    if over == 0:
        return exact(operator, g, inputs, dtype)
    image = padded(inputs["x"], (*g.overhang[:-1], g.padding[-1]), np.dtype(np.float64))
    image = np.concatenate([image, np.roll(image, -1, -2)[..., :over]], axis=-1)
    return stored({"y": window_sums(g, image) / g.divisors}, dtype)


_BUFFERS: dict[str, tuple[Run, tuple[str, ...]]] = {
    "fp32 sums that slide along the row": (_sliding, (FORWARD,)),
    "NaN left out of the average": (_without_nan, (FORWARD,)),
    "padding holds ones": (_padded_with_ones, (FORWARD,)),
    "window reads on in the next row beyond the padded image": (_reads_on, (FORWARD,)),
}

_ALWAYS = ("image n uses image n-1", "last row of x (dx) left out", "divisor one too large")
_STRIDES = ("strides swapped", "stride of H used for both axes")
_PADDINGS = ("padding ignored", "padding mirrored (before and after exchanged)", "padding of W not counted")
_VALID = ("padding counted", "window size for the divisor (R*S)")
_CEIL = ("floor instead of ceil, y (dy) packed for it", "window size for the divisor (R*S)")
_SHAPES = ("window swapped between H and W", "last column of the window left out")

_PATHS: Paths = {
    "global": (lambda g: g.size == g.window, (*_ALWAYS, "last column of the window left out")),
    "single-element window": (lambda g: max(g.window) == 1, (*_ALWAYS, "stride ignored")),
    "one-axis window": (lambda g: min(g.window) == 1 < max(g.window), (*_ALWAYS, *_STRIDES, *_SHAPES)),
    "oblong window": (lambda g: len({*g.window}) > 1, (*_ALWAYS, *_STRIDES, *_SHAPES)),
    "even window": (lambda g: not any(taps % 2 for taps in g.window), (*_ALWAYS, "window one row too large")),
    "non-overlapping": (lambda g: g.stride == g.window, (*_ALWAYS, "remainder of the stride in front")),
    "overlapping": (lambda g: all(map(lt, g.stride, g.window)), (*_ALWAYS, *_STRIDES, *_PADDINGS)),
    "gapped": (lambda g: all(map(gt, g.stride, g.window)), (*_ALWAYS, "stride taken for the window")),
    "unit stride": (lambda g: max(g.stride) == 1, (*_ALWAYS, *_PADDINGS[:1])),
    "padded": (lambda g: is_padded(g.padding), (*_ALWAYS, *_STRIDES, *_PADDINGS)),
    "valid": (lambda g: not g.count_include_pad, (*_ALWAYS, *_STRIDES, *_VALID, "divisors transposed")),
    "ceil": (lambda g: g.ceil_mode, (*_ALWAYS, *_STRIDES, *_CEIL)),
    "ceil and padded": (lambda g: g.ceil_mode and is_padded(g.padding), (*_ALWAYS, *_PADDINGS, *_CEIL)),
    "ceil and valid": (lambda g: g.ceil_mode and not g.count_include_pad, (*_ALWAYS, "padding counted", *_CEIL)),
    "given-divisor": (
        lambda g: g.divisor_override is not None,
        ("image n uses image n-1", "divisor override ignored", "divisor override applied twice"),
    ),
    "given divisor of valid positions": (
        lambda g: g.divisor_override is not None and not g.count_include_pad,
        ("divisor override ignored", "divisor override on top of the count"),
    ),
    "single image": (lambda g: g.n == 1, ("padding ignored", "divisor one too large", *_SHAPES)),
    "single channel": (lambda g: g.c == 1, ("padding ignored", "last row of x (dx) left out")),
    "wide channels": (lambda g: g.c >= 64, (*_ALWAYS, "input channels rotated by one", "padding ignored")),
    "odd channels": (lambda g: g.c % 4 > 0, (*_ALWAYS, *_STRIDES, "padding ignored")),
    "long row": (lambda g: g.w >= 256, ("stride ignored", "last column of x (dx) left out", "padding ignored")),
}

KNOWN_BAD: tuple[Mutant, ...] = (
    *(Mutant(name, "precision", run, DEFAULT, POOLINGS, dtypes=dtypes, base=GOOD) for name, run, dtypes in _ARITHMETIC),
    # not in one dimension, where no case has such sums
    Mutant(
        "sum infinite beyond the range of fp16 before it is divided",
        "precision",
        Pooling(before=_infinite_beyond),
        DEFAULT,
        POOLINGS[:1],
        dtypes=("fp16",),
        ranks=(2, 3),
        base=GOOD,
    ),
    *(Mutant(name, "memory", run, DEFAULT, where, base=exact) for name, (run, where) in _BUFFERS.items()),
    Mutant(
        "fp32 sums that slide along the row, where windows of eight or more move by one",
        "memory",
        _sliding,
        DEFAULT,
        POOLINGS[:1],
        ranks=(1,),
        when=lambda g: g.stride == (1,) and g.window[0] >= 8,
        base=exact,
    ),
    *on_paths(_PATHS, POOLINGS, "paths", "{mistake}, on the {path} path of a pooling"),
)
