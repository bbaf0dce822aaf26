"""Known-bad kernels of max pooling: comparisons, initial values, arithmetic of the gradient, and paths that forget."""

from __future__ import annotations

from collections.abc import Callable
from operator import le, lt

import numpy as np

from conformance.dtypes import BF16, FORMATS, FP16, FP32, TF32, Format
from conformance.operators import MAXIMA, Arrays, Operator
from conformance.operators.max_pool.geometry import MaxPoolGeometry
from conformance.operators.max_pool.mistakes import Choice, choosing
from conformance.operators.max_pool.operators import selected
from conformance.operators.spatial import cropped, is_padded, padded, taps
from tests.calibration.kernels.kernel import FP32_ONLY, SHORT, STORED, Mutant, Run, exact, on_outputs, stored
from tests.calibration.kernels.rounding import Way, bits, rounded
from tests.calibration.kernels.structure import Paths, on_paths

FORWARD, BACKWARD = BOTH = MAXIMA
Key = Callable[[np.ndarray], np.ndarray]
"""Keys by which elements are compared."""


def _choosing(choice: Choice) -> Run:
    """Return a kernel that chooses other elements than the largest."""
    compute = choosing(choice)
    return lambda operator, g, inputs, dtype: stored(compute(operator, g, inputs, np.float64), dtype)


def _compared_by(key: Key) -> Run:
    """Return a kernel that chooses the element with the largest key, or gives it the gradient."""
    return _choosing(lambda g, x: selected(g, key(x)))


def _as_bits(x: np.ndarray) -> np.ndarray:
    """Return patterns of fp32 as signed integers: negative numbers compare in reverse."""
    with np.errstate(over="ignore"):
        return x.astype(np.float32).view(np.int32).astype(np.float64)


def _starting_at(value: Callable[[str], float]) -> Run:
    """Return a kernel whose accumulator starts at another value than minus infinity, the value of padding too."""

    def run(operator: Operator, g: MaxPoolGeometry, inputs: Arrays, dtype: str) -> Arrays:
        return stored({"y": np.maximum(operator.reference(g, inputs)["y"], value(dtype))}, dtype)

    return run


def _lowest(dtype: str) -> float:
    """Return the lowest number of fp32, or of a format of less range: stored, it is not infinite."""
    return max(-65504.0, float(np.finfo(np.float32).min)) if dtype == "fp16" else -1e38


def _greater(operator: Operator, g: MaxPoolGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Compute `if (value > best) best = value`, in which a NaN never is greater."""
    image, y = padded(inputs["x"], g.overhang, np.dtype(np.float64), -np.inf), np.full(g.y.shape, -np.inf)
    for place in taps(g):
        seen = image[place]
        y = np.where(seen > y, seen, y)
    return stored({"y": y}, dtype)


def _first_where_infinite(g: MaxPoolGeometry, x: np.ndarray) -> np.ndarray:
    """Choose the usual element, but in a window with an infinity its first element in the image."""
    infinite = padded(np.isposinf(x), g.overhang, np.dtype(np.bool_))
    has_one = np.any([infinite[place] for place in taps(g)], axis=0)
    return np.where(has_one, selected(g, np.zeros_like(x)), selected(g, x))


def _added(keep: Callable[[np.ndarray, str], np.ndarray], by_mask: bool = False) -> Run:
    """Add gradients one by one to `keep(sum, storage dtype)`; `by_mask`, times one where the maximum is and times zero
    elsewhere, so that NaN and Inf reach the whole window."""

    def run(operator: Operator, g: MaxPoolGeometry, inputs: Arrays, dtype: str) -> Arrays:
        found, dy = selected(g, inputs["x"].astype(np.float64)), inputs["dy"].astype(np.float64)
        image = padded(np.zeros(g.x.shape), g.overhang, np.dtype(np.float64))
        for tap, place in enumerate(taps(g)):
            arriving = dy * (found == tap) if by_mask else np.where(found == tap, dy, 0)
            image[place] = keep(image[place] + arriving, dtype)
        return stored({"dx": cropped(image, g.overhang, g.size)}, dtype)

    return run


def _added_in(format: Format, way: Way = np.rint) -> Run:
    """Add gradients in an accumulator of some format."""
    return _added(lambda total, dtype: rounded(total, format, way))


def _index_of_bits(count: int) -> Run:
    """Store positions of the window in an integer that does not hold them all."""
    return _choosing(lambda g, x: selected(g, x) % (1 << count))


def _stored_by_way_of(format: Format, way: Way = np.rint) -> Run:
    return on_outputs(lambda array, g: rounded(array, format, way))


_PRECISION: dict[str, tuple[Run, tuple[str, ...], tuple[str, ...]]] = {
    "result rounded to bf16": (_stored_by_way_of(BF16), BOTH, FP32_ONLY),
    "result rounded to fp16": (_stored_by_way_of(FP16), BOTH, ("fp32", "bf16")),
    "result rounded to tf32": (_stored_by_way_of(TF32), BOTH, FP32_ONLY),
    "result truncated to 22 bits": (_stored_by_way_of(bits(22), np.trunc), BOTH, FP32_ONLY),
    "elements compared in bf16": (_compared_by(lambda x: rounded(x, BF16)), BOTH, FP32_ONLY),
    "elements compared in tf32": (_compared_by(lambda x: rounded(x, TF32)), BOTH, FP32_ONLY),
    "elements compared as integers": (_compared_by(_as_bits), BOTH, STORED),
    "elements compared by their whole part": (_compared_by(np.trunc), BOTH, STORED),
    "gradients added in bf16": (_added_in(BF16), (BACKWARD,), STORED),
    "gradients added in fp16": (_added_in(FP16), (BACKWARD,), ("fp32", "fp16")),
    "gradients added in 20 bits": (_added_in(bits(20)), (BACKWARD,), FP32_ONLY),
    "gradients added toward zero": (_added_in(FP32, np.trunc), (BACKWARD,), FP32_ONLY),
    "gradients added in the storage dtype": (
        _added(lambda total, dtype: rounded(total, FORMATS[dtype])),
        (BACKWARD,),
        SHORT,
    ),
}

_MEMORY: dict[str, tuple[Run, tuple[str, ...]]] = {
    "maximum starts at the lowest number": (_starting_at(_lowest), (FORWARD,)),
    "maximum starts at the smallest positive number": (
        _starting_at(lambda dtype: FORMATS[dtype].smallest_normal),
        (FORWARD,),
    ),
    "maximum starts at -1": (_starting_at(lambda dtype: -1.0), (FORWARD,)),
    "NaN is never greater": (_greater, (FORWARD,)),
    "gradient multiplied by a mask": (_added(lambda total, dtype: total, by_mask=True), (BACKWARD,)),
    "index of the window in 8 bits": (_index_of_bits(8), (BACKWARD,)),
    "index of the window in 3 bits": (_index_of_bits(3), (BACKWARD,)),
    "dx not zeroed where nothing was chosen": (
        on_outputs(lambda array, g: np.where(array == 0, 1.0, array)),
        (BACKWARD,),
    ),
}

_ALWAYS = ("image n uses image n-1", "last row of x (dx) left out", "padding of W one too large before")
_STRIDES = ("strides swapped", "stride of H used for both axes")
_PADDINGS = ("padding mirrored (before and after exchanged)", "max pooling: padding is zero instead of minus infinity")
_SHAPES = ("window swapped between H and W", "max pooling: last column of the window left out")

_PATHS: Paths = {
    "global": (lambda g: g.size == g.window, (*_ALWAYS[:2], "max pooling: minimum instead of maximum")),
    "single-element window": (lambda g: max(g.window) == 1, ("image n uses image n-1", "stride ignored")),
    "one-axis window": (lambda g: min(g.window) == 1 < max(g.window), (*_ALWAYS[:2], *_STRIDES, *_SHAPES)),
    "non-overlapping": (lambda g: g.stride == g.window, (*_ALWAYS[:2], "remainder of the stride in front")),
    "overlapping": (lambda g: all(map(lt, g.stride, g.window)), (*_ALWAYS, *_STRIDES, *_PADDINGS)),
    "padded": (lambda g: is_padded(g.padding), (*_ALWAYS, *_STRIDES, *_PADDINGS)),
    "dilated": (lambda g: max(g.dilation) > 1, (*_ALWAYS[:2], "dilations swapped", "dilation ignored", *_PADDINGS)),
    "ceil": (lambda g: g.ceil_mode, (*_ALWAYS, *_STRIDES, "floor instead of ceil, y (dy) packed for it")),
    "wide channels": (lambda g: g.c >= 64, (*_ALWAYS[:2], "input channels rotated by one", _PADDINGS[1])),
    "long row": (lambda g: g.w >= 256, ("stride ignored", "last column of x (dx) left out", _PADDINGS[1])),
}


KNOWN_BAD: tuple[Mutant, ...] = (
    *(
        Mutant(f"max: {name}", "precision", run, operators=operators, dtypes=dtypes, base=exact)
        for name, (run, operators, dtypes) in _PRECISION.items()
    ),
    *(Mutant(f"max: {name}", "memory", run, operators=where, base=exact) for name, (run, where) in _MEMORY.items()),
    *on_paths(_PATHS, BOTH, "paths", "{mistake}, on the {path} path of a max pooling"),
    Mutant(
        "max: gradient of an infinite maximum goes to the first element, in windows apart",
        "paths",
        _choosing(_first_where_infinite),
        operators=(BACKWARD,),
        base=exact,
        when=lambda g: all(map(le, g.window, g.stride)) and not is_padded(g.padding) and g.rank == 2,
    ),
)
