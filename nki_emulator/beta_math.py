"""What instructions of the Beta 1 API share: operands, types of results, and arithmetic with undefined elements.

Engines compute in float32 and round once to the type of the result. Pages: "NKI API Common Fields" and "NKI Type
Promotion", Neuron SDK 2.26.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .beta_index import broadcast, executed
from .beta_tensor import BetaTensor, Memory
from .dtypes import DTYPES, FLOAT32, INT32, DType, dtype_of
from .errors import refuse
from .machine import Machine, begin, current
from .operands import as_float
from .operators import ACTIVATIONS, OPERATORS, Operator, activated
from .patterns import Ints
from .storage import Region

Function = Callable[..., np.ndarray]


def data_type(dtype: Any) -> DType:
    """A type of nki.language, or NumPy's of the same elements."""
    if isinstance(dtype, DType):
        return dtype
    try:
        return dtype_of(np.empty(0, dtype))
    except TypeError:
        refuse("dtype", f"{dtype!r} is not a data type")


def tile(value: Any, what: str, regions: Sequence[Region] = (Region.sbuf, Region.psum)) -> BetaTensor:
    """`value` if it is a tile: a tensor in one of these memories whose first dimension is the partition."""
    if not isinstance(value, BetaTensor):
        refuse("operand", f"{what} must be a tile, not {value!r}")
    if value.buffer not in regions:
        refuse("buffer", f"{what} is {value}; it must be in {' or '.join(region.value for region in regions)}")
    if value.partition and value.buffer.on_chip:
        refuse("partition-first", f"{what} {value} has its partitions in dimension {value.partition}; index a tile")
    return value


def promoted(first: DType, second: DType) -> DType:
    """The type of the result of two operands."""
    if first is second:
        return first
    if first.is_float != second.is_float:
        return first if first.is_float else second
    if first.is_float:
        return _wider_float(first, second)
    kind = np.promote_types(first.stored, second.stored)
    return DTYPES.get(kind.name, FLOAT32)


def _wider_float(first: DType, second: DType) -> DType:
    small, large = sorted((first, second), key=lambda dtype: dtype.itemsize)
    if small.itemsize < large.itemsize:
        return large
    return DTYPES["bfloat16"] if small.itemsize == 1 else FLOAT32


def operand_type(value: Any) -> DType:
    """Of a tile or number; Python's numbers are of the widest type."""
    if isinstance(value, BetaTensor):
        return value.dtype
    if isinstance(value, np.generic):
        return data_type(value.dtype)
    if type(value) not in (bool, int, float):
        refuse("operand", f"an operand must be a tile or a number, not {value!r}")
    return {bool: DTYPES["uint8"], int: INT32, float: FLOAT32}[type(value)]


def fresh(
    values: np.ndarray, known: np.ndarray, dtype: DType, region: Region = Region.sbuf, ran: np.ndarray | None = None
) -> BetaTensor:
    """A new tile with these values, rounded once; `ran` is where the instruction was not masked out.

    What has one dimension, as a column of a matrix has, becomes (P, 1).
    """
    if values.ndim == 1:
        values, known = values[:, None], np.broadcast_to(known, values.shape)[:, None]
        ran = ran if ran is None else ran[:, None]
    memory = Memory(current(), values.shape, dtype, region)
    found = BetaTensor.of(memory)
    known = np.broadcast_to(known, values.shape)
    found.write(values, known if ran is None else known & ran)
    found.executed = ran
    return found


def number_or_values(value: Any, mask: Any = None) -> tuple[Any, Any]:
    """float32 values and where they are defined."""
    if isinstance(value, BetaTensor):
        values, known = tile(value, "an operand").read(mask)
        return as_float(values), known
    return np.float32(value), np.True_


def elementwise(name: str, function: Function, operands: Sequence[Any], dtype: Any, mask: Any) -> BetaTensor:
    """A new tile: function of tiles and numbers, broadcast as NumPy does, also along partitions."""
    begin(name)
    types = [operand_type(value) for value in operands]
    if not any(isinstance(value, BetaTensor) for value in operands):
        refuse("operand", f"nl.{name} of numbers; one operand is a tile")
    shape = broadcast(*[value.shape for value in operands if isinstance(value, BetaTensor)])
    result = types[0]
    for found in types[1:]:
        result = promoted(result, found)
    pairs = [number_or_values(value) for value in operands]
    known = np.broadcast_to(np.logical_and.reduce([np.broadcast_to(k, shape) for _, k in pairs]), shape)
    ran = executed(mask, shape)
    values = function(*[np.where(known, v, np.float32(1)) for v, _ in pairs])
    return fresh(values, known, result if dtype is None else data_type(dtype), ran=ran)


_ALIASES = {"amax": "maximum", "amin": "minimum", "max": "maximum", "min": "minimum", "sum": "add", "prod": "multiply"}
_ALIASES |= {"absolute": "abs", "true_divide": "divide", "logical_not": "logical_not"}


def operator_named(op: Any, what: str = "op") -> Operator:
    """The operator that a function of nki.language or of NumPy stands for."""
    name = getattr(op, "__name__", str(op))
    found = OPERATORS.get(_ALIASES.get(name, name))
    if found is None or found.bits:
        refuse("operator", f"{what} {name!r} is no arithmetic operator here")
    return found


def activation_named(op: Any) -> Function:
    """The activation function that a function of nki.language or of NumPy stands for, float32 to float32."""
    name = getattr(op, "__name__", str(op))
    found = ACTIVATIONS.get(_ALIASES.get(name, name))
    if found is None:
        refuse("operator", f"op {name!r} is no activation function here")
    return lambda values: activated(found, values)


def free_axes(shape: Ints, axis: Any) -> Ints:
    """The axes that a reduction names, all of them free."""
    named = (axis,) if isinstance(axis, int | np.integer) else tuple(axis)
    found = tuple(sorted(int(a) + len(shape) if a < 0 else int(a) for a in named))
    if not found or found[0] < 1 or found[-1] >= len(shape) or len(set(found)) < len(found):
        refuse("reduce-axis", f"axis {axis} of a tile of {shape}: only free dimensions are reduced")
    return found


def reduced(
    operator: Operator, values: np.ndarray, known: np.ndarray, axes: Ints, keepdims: bool
) -> tuple[np.ndarray, np.ndarray]:
    """float32 values reduced over some axes; undefined where one of its terms is. At least two dimensions stay."""
    if operator.reduction is None:
        refuse("operator", f"nl.{operator.name} does not reduce here")
    kept = tuple(axis for axis in range(values.ndim) if axis not in axes)
    order = kept + axes
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(values.shape))
    if not keepdims:
        shape = tuple(values.shape[axis] for axis in kept)
        shape += (1,) if len(shape) < 2 else ()
    rows = int(np.prod([values.shape[axis] for axis in kept]))
    terms = np.where(known, values, np.float32(1)).transpose(order).reshape(rows, -1)
    return operator.reduction(terms, axis=-1).reshape(shape), known.transpose(order).reshape(rows, -1).all(-1).reshape(
        shape
    )


def product(stationary: BetaTensor, moving: BetaTensor) -> BetaTensor:
    """A new tile in PSUM: stationary[K, M].T @ moving[K, N], accumulated in float32."""
    machine = begin("nc_matmul")
    for found, what in ((stationary, "stationary"), (moving, "moving")):
        tile(found, what, (Region.sbuf,))
        if not found.dtype.is_float:
            refuse("matmul-dtype", f"{what} {found} is no float, which the Tensor Engine multiplies")
    a, b = _flat(stationary), _flat(moving)
    _check_product(machine, a[0].shape, b[0].shape)
    values = np.where(a[1], a[0], np.float32(0)).T @ np.where(b[1], b[0], np.float32(0))
    known = np.logical_and.outer(a[1].all(axis=0), b[1].all(axis=0))
    machine.counters.matmuls += 1
    machine.counters.macs += a[0].size * b[0].shape[1]
    return fresh(values, known, FLOAT32, Region.psum)


def _flat(found: BetaTensor) -> tuple[np.ndarray, np.ndarray]:
    values, known = found.read()
    return as_float(values).reshape(found.shape[0], -1), known.reshape(found.shape[0], -1)


def _check_product(machine: Machine, stationary: Ints, moving: Ints) -> None:
    (k, m), (rows, n) = stationary, moving
    if k != rows:
        refuse("shape", f"stationary has {k} partitions and moving {rows}; both are the contraction")
    if m > 128 or n > 512:
        refuse("matmul-size", f"{m} stationary and {n} moving elements a partition; at most 128 and 512 fit")


def transposed(data: BetaTensor, region: Region = Region.psum) -> BetaTensor:
    """A new tile [F, P] of data[P, F]."""
    begin("nc_transpose")
    values, known = _flat(tile(data, "data"))
    if values.shape[1] > 128:
        refuse("transpose-shape", f"{data} has {values.shape[1]} elements a partition, at most 128 become partitions")
    return fresh(values.T, known.T, data.dtype, region)
