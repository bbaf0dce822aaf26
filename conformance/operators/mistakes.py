"""Definition of a known mistake: an exact computation of the wrong thing, made from the operator's own reference.

In most mistakes, a kernel uses other parameters than it was given, or reads or writes a tensor in another order. It is
modelled by the reference on a changed geometry and rearranged inputs; outputs are rearranged by the adjoint, so that
one definition covers all directions of an operator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from conformance.operators.base import Arrays, Operator, Workload
from conformance.operators.spatial import RANKS, Extents, GeometryError, fitted, spans

T = TypeVar("T")
Compute = Callable[[Operator, Any, Arrays, Any], Arrays]
"""(operator, geometry, inputs, dtype) -> outputs computed in dtype."""
Sees = Callable[[Any], Any]
"""Geometry -> the geometry that the kernel mistakes it for."""
Change = Callable[[np.ndarray, Any], np.ndarray]
"""Moves, copies or zeroes elements of a tensor. A change never computes with them, so that it also works on indices."""

_ROLES = {"x": "x", "dx": "x", "w": "w", "dw": "w", "y": "y", "dy": "y", "bias": "bias", "dbias": "bias"}
_ROLES |= {"da": "a", "db": "b"}


ROUNDING = "rounding"
"""Kind of the mistakes whose errors are as small as a rounding; they are recognised by the bits of 16-bit results."""
BUDGET, TIMES = 1 << 26, 16
"""Limits of the geometry that a kernel mistakes a problem for: BUDGET multiply-adds or elements, or TIMES those of the
problem if these are more. A reference with padding of 500 on two more axes would take terabytes and end the run."""
AXES_NAMED = {
    3: re.compile(r"\b(D|T|plane)\b"),
    2: re.compile(r"\b(H|rows?|axes|transposed|column-major|every column apart|R\*R|(strides|dilations) swapped)\b"),
}
"""Number of dimensions -> pattern of the names of mistakes that do not exist in fewer dimensions."""


class InapplicableError(Exception):
    """The mistake does not exist on this problem."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong computation with a name that completes the sentence "likely cause: ...".

    It applies to all operators of the families that list it, or only to those named in `operators`.
    """

    name: str
    kind: str
    compute: Compute
    operators: tuple[str, ...] = ()
    when: Callable[[Any], bool] = lambda geometry: True

    @property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of dimensions in which the mistake exists: those with the axes that its name mentions, and none, as
        matrix products have it, whose names mention rows and columns of matrices."""
        named = next((least for least, axes in AXES_NAMED.items() if axes.search(self.name)), 1)
        least = max(named, self.compute.rank) if isinstance(self.compute, Misread) else named
        return (0, *(rank for rank in RANKS if rank >= least))

    def outputs(self, workload: Workload, inputs: Arrays, dtype: Any = np.float64) -> Arrays | None:
        """Return the outputs of a kernel with this mistake; None where the mistake does not exist."""
        return self._attempted(workload, self.compute, workload.operator, workload.geometry, inputs, dtype)

    def read_beyond(self, workload: Workload, inputs: Arrays) -> Arrays | None:
        """Return the outputs of a kernel with this mistake that fills all of y (or reads all of dy) with its windows,
        even beyond the image; None where that makes no difference."""
        if not isinstance(self.compute, Misread):
            return None
        return self._attempted(workload, self.compute.beyond, workload, inputs)

    def taken_for(self, workload: Workload) -> tuple[Workload, ...]:
        """Return what a kernel with this mistake may take a problem for, if it chooses sizes itself."""
        if not isinstance(self.compute, Misread):
            return ()
        return self._attempted(workload, self.compute.taken_for, workload) or ()

    def outputs_as(self, workload: Workload, seen: Workload, inputs: Arrays) -> Arrays | None:
        """Return the outputs in the shapes of `seen`, one of `taken_for`; None where the mistake does not exist."""
        if not isinstance(self.compute, Misread):
            return None
        return self._attempted(workload, self.compute.computed, workload, seen, inputs)

    def _attempted(self, workload: Workload, compute: Callable[..., T], *arguments: Any) -> T | None:
        geometry = workload.geometry
        if (self.operators and workload.operator.name not in self.operators) or not self.when(geometry):
            return None
        if geometry.rank not in self.ranks:
            return None
        try:
            with np.errstate(all="ignore"):
                return compute(*arguments)
        except (GeometryError, InapplicableError):
            return None


@dataclass(frozen=True, slots=True, eq=False)
class Misread:
    """The reference on the geometry that the kernel sees; `changes` rearrange x, w, y or bias, as inputs or outputs.
    The mistake exists in `rank` dimensions and more."""

    sees: Sees
    changes: Mapping[str, Change]
    rank: int = 1

    def __call__(self, operator: Operator, geometry: Any, inputs: Arrays, dtype: Any) -> Arrays:
        """Return the outputs in buffers of the shapes that the problem requires."""
        workload = operator.on(geometry)
        return self._restored(workload, self.computed(workload, operator.on(self.sees(geometry)), inputs, dtype))

    def computed(self, workload: Workload, seen: Workload, inputs: Arrays, dtype: Any = np.float64) -> Arrays:
        """Return the outputs in the shapes of `seen`, what the problem is taken for. Raises InapplicableError if
        computing them takes far more than the problem does."""
        if _amount(seen) > max(BUDGET, TIMES * _amount(workload)):
            raise InapplicableError
        changed = dict(inputs)
        for name in inputs:
            if change := self._change(name):
                changed[name] = change(inputs[name], workload.geometry)
        given = {name: fitted(changed[name], tensor.shape) for name, tensor in seen.inputs.items()}
        return seen.reference(given, dtype)

    def beyond(self, workload: Workload, inputs: Arrays) -> Arrays:
        """Return the outputs with a window for every place of y. Raises InapplicableError if that is no difference."""
        seen, size = self.sees(workload.geometry), workload.geometry.output_size
        if seen.output_size == size:
            raise InapplicableError
        spanned = workload.operator.on(spanning(seen, size))
        return self._restored(workload, self.computed(workload, spanned, inputs))

    def taken_for(self, workload: Workload) -> tuple[Workload, ...]:
        """Return what the kernel sees; for a gradient also what has the image or window of dy's size."""
        if any(map(self._change, workload.outputs)):
            return ()
        seen, operator = self.sees(workload.geometry), workload.operator
        if "dy" not in operator.arguments or hasattr(seen, "reaching"):
            return (operator.on(seen),)
        moved = [
            (p - 1) * u - sum(sides)
            for p, u, sides in zip(workload.geometry.output_size, seen.stride, seen.padding, strict=True)
        ]
        image = tuple(first + span for first, span in zip(moved, spans(seen), strict=True))
        axes = zip(seen.size, moved, seen.dilation, strict=True)
        window = tuple((size - first - 1) // d + 1 for size, first, d in axes)
        found = [seen]
        for sizes in ({"size": image}, {"window": window}):
            with suppress(GeometryError):
                found.append(replace(seen, **sizes))
        return tuple(map(operator.on, found))

    def _change(self, name: str) -> Change | None:
        return self.changes.get(_ROLES.get(name, name))

    def _restored(self, workload: Workload, found: Arrays) -> Arrays:
        return {
            name: restored(found[name], self._change(name), tensor.shape, workload.geometry)
            for name, tensor in workload.outputs.items()
        }


def _amount(workload: Workload) -> int:
    """Return the largest of the numbers of multiply-adds, of elements, and of elements of the padded image: with the
    stride of one axis used on another, the padding for as many windows of 260 columns took 2 GB and 18 s."""
    geometry = workload.geometry
    extents = (size + sum(padding) for size, padding in zip(geometry.size, geometry.padding, strict=True))
    return max(workload.flops // 2, workload.bytes(1), geometry.c * math.prod(extents))


def misread(sees: Sees = lambda geometry: geometry, *, rank: int = 1, **changes: Change) -> Misread:
    """Return the mistake of a kernel that sees other parameters, or tensors in another order."""
    return Misread(sees, changes, rank)


H, W, D = -2, -1, -3
"""Axes of an image or a window, counted from the last."""


def on_axis(values: tuple[T, ...], axis: int, change: Callable[[T], T]) -> tuple[T, ...]:
    """Change the value of one axis. Raises InapplicableError if the values have no such axis."""
    if -axis > len(values):
        raise InapplicableError
    return tuple(change(value) if place == len(values) + axis else value for place, value in enumerate(values))


def everywhere(values: tuple[T, ...], axis: int) -> tuple[T, ...]:
    """Use the value of one axis for every axis. Raises InapplicableError if the values have no such axis."""
    if -axis > len(values):
        raise InapplicableError
    return (values[axis],) * len(values)


def swapped(values: tuple[T, ...]) -> tuple[T, ...]:
    """Exchange the values of the last two axes; a single value is returned as it is."""
    return values if len(values) < 2 else (*values[:-2], values[-1], values[-2])


def spanning(g: Any, size: Extents) -> Any:
    """Return the geometry whose windows make an output of this size, padded exactly as far as the windows reach.

    A pooling has no windows of padding alone: it gets only those that begin in the image. A transposed convolution has
    its windows in the output, which is cropped at its end.
    """
    if hasattr(g, "reaching"):
        return g.reaching(size)
    sizes, padding = [], []
    for extent, count, span, stride, (before, _) in zip(g.size, size, spans(g), g.stride, g.padding, strict=True):
        if hasattr(g, "ceil_mode"):
            count = min(count, -(-(extent + before) // stride))
        end = (count - 1) * stride + span - before
        sizes.append(min(extent, end))
        padding.append((before, max(0, end - extent)))
    return replace(g, size=tuple(sizes), padding=tuple(padding))


def restored(found: np.ndarray, change: Change | None, shape: tuple[int, ...], geometry: Any) -> np.ndarray:
    """Apply the adjoint of `fitted(change(...))`: add every element of `found` where the change takes it from."""
    if change is None:
        return fitted(found, shape)
    size = int(np.prod(shape))
    places = change(np.arange(1, size + 1).reshape(shape), geometry)
    sums = np.bincount(fitted(places, found.shape).reshape(-1), found.reshape(-1), size + 1)
    return sums[1:].reshape(shape).astype(found.dtype)


def zeroed(*where: Any) -> Change:
    """Return a change that writes zeros at an index such as `..., -1`."""

    def change(array: np.ndarray, _: Any) -> np.ndarray:
        out = array.copy()
        out[where] = 0
        return out

    return change


def rolled(axis: int, by: int = 1) -> Change:
    """Return a change that rotates the tensor along an axis."""
    return lambda array, _: np.roll(array, by, axis)


def of_neighbours(dx: np.ndarray, rank: int) -> np.ndarray:
    """Add up, for each element, its predecessors on the last axis and (if `rank` > 1) on the axis before that."""
    return np.roll(dx, 1, -1) + (np.roll(dx, 1, -2) if rank > 1 else 0)


def on_outputs(change: Change, *names: str) -> Compute:
    """Return the computation that applies a change to the reference's outputs of these names."""

    def compute(operator: Operator, geometry: Any, inputs: Arrays, dtype: Any) -> Arrays:
        outputs = operator.reference(geometry, inputs, dtype)
        present = [name for name in names if name in outputs]
        return outputs | {name: change(outputs[name], geometry).astype(outputs[name].dtype) for name in present}

    return compute


def in_format_of(array: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Round values to the format of an array, which must have 16 bits, and return them in float64. Raises
    InapplicableError for other formats."""
    if array.dtype.itemsize != 2:
        raise InapplicableError
    return values.astype(array.dtype).astype(np.float64)


def _of_results(change: Callable[[np.ndarray], np.ndarray]) -> Compute:
    """Return the computation that applies a change to every output of the reference."""

    def compute(operator: Operator, geometry: Any, inputs: Arrays, dtype: Any) -> Arrays:
        return {name: change(array) for name, array in operator.reference(geometry, inputs, dtype).items()}

    return compute


_RESULTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "results all zero": np.zeros_like,
    "results with their sign changed": np.negative,
    "absolute values of the results": np.abs,
    "results clamped at zero (a fused ReLU)": lambda array: np.maximum(array, 0),
    "results twice as large": lambda array: array * 2,
    "results half as large": lambda array: array / 2,
}
OF_RESULTS = tuple(Mistake(name, "results", _of_results(change)) for name, change in _RESULTS.items())
"""Mistakes of every family whose results are floating-point numbers (not requantized ones)."""


def channels_last(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Read a buffer of [N, C, H, W] (`shape`) as if it were [N, H, W, C]."""
    n, c, *size = shape
    return np.moveaxis(array.reshape(n, *size, c), -1, 1)
