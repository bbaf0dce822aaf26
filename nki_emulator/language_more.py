"""nki.language: functions that take several instructions. Page of each: "nki.language.<name>", Neuron SDK 2.32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .dtypes import FLOAT32, DType, dtype_of
from .errors import refuse
from .indexing import contiguous
from .isa_vector import reduced_axes, tensor_scalar, tensor_tensor
from .language import FUNCTIONS, REDUCTIONS, filled, kind, mean, ndarray
from .machine import begin, current
from .operands import as_float, read, read_float, tile, write
from .operators import OPERATORS, Operator
from .storage import Region, Storage
from .tensor import NkiTensor


def where(condition: NkiTensor, x: NkiTensor, y: Any, dtype: DType | None = None) -> NkiTensor:
    """x where condition is not 0, else y, a tile or a number."""
    machine = begin("where")
    shape = tile(x, "x").shape
    result = ndarray(shape, kind(dtype, x))
    for operand, what in ((tile(condition, "condition"), "condition"), (y, "y")):
        if isinstance(operand, NkiTensor) and operand.shape != shape:
            refuse("shape", f"{what} {operand} must have the shape of x {x}")
    other = read(tile(y, "y"), "y") if isinstance(y, NkiTensor) else _number(y)
    values = read(x, "x")
    if not (x.dtype is result.dtype and (not isinstance(y, NkiTensor) or y.dtype is x.dtype)):
        values, other = as_float(values), as_float(np.asarray(other))
    write(machine, result, np.where(read(condition, "condition") != 0, values, other).astype(values.dtype))
    return result


def _number(value: Any) -> np.ndarray:
    if type(value) not in (int, float, bool):
        refuse("operand", f"y {value!r} must be a tile or a number")
    return np.asarray(value, np.float32)


class Computed:
    """A function of one tile that the pages define by its values, in float32, rounded once to dtype (that of x)."""

    is_activation = False
    operator: Operator | None = None

    def __init__(self, name: str, function: Any) -> None:
        self.__name__, self._function = name, function

    def __call__(self, x: NkiTensor, dtype: DType | None = None) -> NkiTensor:
        machine = begin(self.__name__)
        result = ndarray(tile(x, "x").shape, kind(dtype, x))
        values = self._function(read_float(x, "x").astype(np.float64)).astype(np.float32)
        write(machine, result, values)
        return result


COMPUTED = {
    name: Computed(name, function)
    for name, function in {
        "cos": np.cos,
        "tan": np.tan,
        "ceil": np.ceil,
        "floor": np.floor,
        "trunc": np.trunc,
        "logical_not": lambda x: (x == 0).astype(np.float64),
    }.items()
}


class Sine(Computed):
    """nl.sin: of any number, by range reduction; as `op` of nisa.activation it is that of -pi to pi."""

    is_activation = True


class Rsqrt(Computed):
    """nl.rsqrt: on GpSimd, without PSUM, since nki 0.5; as `op` the operator and the activation function."""

    is_activation = True
    operator = OPERATORS["rsqrt"]

    def __call__(self, x: NkiTensor, dtype: DType | None = None) -> NkiTensor:
        result = ndarray(tile(x, "x").shape, kind(dtype, x))
        tensor_scalar(result, x, self, None)
        return result


SHADOWED = {"sin": Sine("sin", np.sin), "rsqrt": Rsqrt("rsqrt", None)}
"""Functions that are not their activation function when they are called."""


class Constant:
    """A name for `op=` that is no function: nl.prelu, nl.bypass and nl.average."""

    is_activation = False

    def __init__(self, name: str, operator: Operator | None = None) -> None:
        self.__name__, self.operator = name, operator


AVERAGE = Operator("average", np.add, reduction=lambda x, axis: x.mean(axis=axis, dtype=np.float32))
CONSTANTS = {
    "prelu": Constant("prelu"),
    "bypass": Constant("bypass"),
    "average": Constant("average", AVERAGE),
}


def all(x: NkiTensor, axis: Any, dtype: DType | None = None) -> NkiTensor:
    """1 where no element along the axes is 0."""
    return _ALL(x, axis, dtype)


_ALL = type(REDUCTIONS["sum"])("all", OPERATORS["logical_and"])


def var(x: NkiTensor, axis: Any, dtype: DType | None = None, keepdims: bool = False) -> NkiTensor:
    """The mean of squared distances from the mean, in float32, rounded once; reduced dimensions stay, of size 1."""
    count = reduced_axes(tile(x, "x"), axis)
    kept = x.shape[: x.ndim - count]
    rows = kept + (1,) * count
    if len(kept) == 1:
        average = mean(x, axis, FLOAT32).reshape((x.shape[0], 1))
        distances = filled(tensor_scalar, x.shape, FLOAT32, x, FUNCTIONS["subtract"], average)
    else:
        wide = mean(x, axis, FLOAT32, keepdims=True)
        for dim in range(len(kept), x.ndim):
            wide = wide.broadcast(dim, x.shape[dim])
        distances = filled(tensor_tensor, x.shape, FLOAT32, x, wide, FUNCTIONS["subtract"])
    tensor_tensor(distances, distances, distances, FUNCTIONS["multiply"])
    return mean(distances, axis, kind(dtype, x), keepdims=True).reshape(rows)


def shared_constant(constant: Any) -> NkiTensor:
    """A tensor in shared HBM with the values of an array, or of a .npy file."""
    machine = current()
    if isinstance(constant, str | Path):
        constant = np.load(constant)
    if not isinstance(constant, np.ndarray) or constant.size == 0 or constant.ndim == 0:
        refuse("operand", f"constant must be an array or the path of one, not {constant!r}")
    dtype = dtype_of(constant)
    stored = constant.view(np.uint8) if constant.dtype == np.bool_ else constant
    values = np.ascontiguousarray(stored).reshape(-1).astype(dtype.host)
    storage = Storage(machine, constant.shape, dtype, Region.shared_hbm, "constant", values)
    return NkiTensor(storage, constant.shape, contiguous(constant.shape), 0, dtype)
