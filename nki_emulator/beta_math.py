"""What instructions of the Beta 1 API share: operands, types of results, and arithmetic with undefined elements.

Engines compute in float32 and round once to the type of the result. Pages: "NKI API Common Fields" and "NKI Type
Promotion", Neuron SDK 2.26.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import erf, pi, sqrt
from typing import Any

import numpy as np

from .arithmetic import IDENTITIES
from .beta_index import broadcast, executed
from .beta_tensor import BetaTensor, Memory
from .dtypes import DTYPES, FLOAT32, INT32, DType, dtype_of
from .errors import refuse
from .indexing import Ints
from .machine import begin, current
from .operands import ON_CHIP, SBUF, as_float
from .operators import ACTIVATIONS, OPERATORS, Activation, Operator, activated
from .storage import Region
from .targets import MOVING_FREE, STATIONARY_FREE

Function = Callable[..., np.ndarray]


def data_type(dtype: Any, default: DType | None = None) -> DType:
    """A type of nki.language, or NumPy's of the same elements; None is the default where there is one."""
    if dtype is None and default is not None:
        return default
    if isinstance(dtype, DType):
        return dtype
    try:
        return dtype_of(np.empty(0, dtype))
    except TypeError:
        refuse("dtype", f"{dtype!r} is not a data type")


def tile(value: Any, what: str, regions: Sequence[Region] = ON_CHIP) -> BetaTensor:
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
    if not first.is_float:
        return DTYPES.get(np.promote_types(first.stored, second.stored).name, FLOAT32)
    small, large = sorted((first, second), key=lambda dtype: dtype.itemsize)
    if small.itemsize < large.itemsize:
        return large
    return DTYPES["bfloat16"] if small.itemsize == 1 else FLOAT32


def _operand_type(value: Any) -> DType:
    """Of a tile or number; Python's numbers are of the widest type."""
    if isinstance(value, BetaTensor):
        return value.dtype
    if isinstance(value, np.generic):
        return data_type(value.dtype)
    if type(value) not in (bool, int, float):
        refuse("operand", f"an operand must be a tile or a number, not {value!r}")
    return {bool: DTYPES["uint8"], int: INT32, float: FLOAT32}[type(value)]


def new_tile(
    values: np.ndarray, defined: Any, dtype: DType, region: Region = Region.sbuf, ran: np.ndarray | None = None
) -> BetaTensor:
    """A new tile with these values, rounded once; `ran` is where the instruction was not masked out.

    What has one dimension, as a column of a matrix has, becomes (P, 1).
    """
    defined = np.broadcast_to(defined, values.shape)
    if values.ndim == 1:
        values, defined = values[:, None], defined[:, None]
        ran = ran if ran is None else ran[:, None]
    new = BetaTensor.of(Memory(current(), values.shape, dtype, region))
    new.write(values, defined if ran is None else defined & ran)
    new.executed = ran
    return new


def copied(name: str, src: Any, dtype: Any, mask: Any, regions: Sequence[Region] = ON_CHIP) -> BetaTensor:
    """A new tile in SBUF with the elements of another tensor; another dtype goes through float32."""
    begin(name)
    values, defined = tile(src, "src", regions).read(mask)
    result = data_type(dtype, src.dtype)
    return new_tile(values if result is src.dtype else as_float(values), defined, result, ran=executed(mask, src.shape))


def number_or_values(value: Any, mask: Any = None) -> tuple[Any, Any]:
    """float32 values and where they are defined."""
    if isinstance(value, BetaTensor):
        values, defined = tile(value, "an operand").read(mask)
        return as_float(values), defined
    return np.float32(value), np.True_


def elementwise(
    name: str, function: Function, operands: Sequence[Any], dtype: Any, mask: Any, default: DType | None = None
) -> BetaTensor:
    """A new tile: function of tiles and numbers, broadcast as NumPy does, also along partitions.

    Its type is `dtype`, or the default, or what the types of the operands are promoted to.
    """
    begin(name)
    types = [_operand_type(value) for value in operands]
    if not any(isinstance(value, BetaTensor) for value in operands):
        refuse("operand", f"nl.{name} of numbers; one operand is a tile")
    shape = broadcast(*[value.shape for value in operands if isinstance(value, BetaTensor)])
    result = types[0]
    for kind in types[1:]:
        result = promoted(result, kind)
    pairs = [number_or_values(value) for value in operands]
    defined = np.broadcast_to(np.logical_and.reduce([np.broadcast_to(k, shape) for _, k in pairs]), shape)
    ran = executed(mask, shape)
    values = function(*[np.where(defined, v, np.float32(1)) for v, _ in pairs])
    return new_tile(values, defined, data_type(dtype, default or result), ran=ran)


_ALIASES = {"amax": "maximum", "amin": "minimum", "max": "maximum", "min": "minimum", "sum": "add", "prod": "multiply"}
_ALIASES |= {"absolute": "abs", "true_divide": "divide", "logical_not": "logical_not"}


def _density(x: np.ndarray) -> np.ndarray:
    """Of the normal distribution."""
    return np.asarray(np.exp(-np.square(x) / 2) / sqrt(2 * pi))


def _logistic(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


_normal = np.vectorize(lambda x: (1 + erf(x / sqrt(2))) / 2, otypes=[np.float64])
BETA_ACTIVATIONS = {
    activation.name: activation
    for activation in (
        Activation("gelu_dx", lambda x: _normal(x) + x * _density(x)),
        Activation("gelu_apprx_sigmoid", lambda x: x * _logistic(1.702 * x)),
        Activation("silu_dx", lambda x: _logistic(x) * (1 + x * (1 - _logistic(x)))),
        Activation("erf_dx", lambda x: 2 / sqrt(pi) * np.exp(-np.square(x))),
        Activation("mish", lambda x: x * np.tanh(np.logaddexp(0, x))),
    )
}
"""Those that only the first generation has here: their names stand for these functions in its pages."""


def accumulated(dst: BetaTensor, src: BetaTensor, mask: Any) -> None:
    """dst += src, rounded once for each addition; several elements of dst may be one."""
    values, defined = src.read()
    if src.size != dst.size:
        refuse("shape", f"dst {dst} has {dst.size} elements, src {src} has {src.size}")
    ran = executed(mask, dst.shape)
    part = np.ones(dst.shape, np.bool_) if ran is None else ran
    _, sound = dst.read()
    if not (defined.reshape(dst.shape) & sound)[part].all():
        refuse("uninitialised", f"undefined elements of {dst} or {src} are added")
    dst.add(as_float(values).reshape(dst.shape), part)


def operator_named(op: Any, what: str = "op") -> Operator:
    """The operator that a function of nki.language or of NumPy stands for."""
    name = getattr(op, "__name__", str(op))
    operator = OPERATORS.get(_ALIASES.get(name, name))
    if operator is None or operator.bits:
        refuse("operator", f"{what} {name!r} is no arithmetic operator here")
    return operator


def activation_named(op: Any) -> Function:
    """The activation function that a function of nki.language or of NumPy stands for, float32 to float32."""
    name = getattr(op, "__name__", str(op))
    name = _ALIASES.get(name, name)
    activation = ACTIVATIONS.get(name) or BETA_ACTIVATIONS.get(name)
    if activation is None:
        refuse("operator", f"op {name!r} is no activation function here")
    return lambda values: activated(activation, values)


def free_axes(shape: Ints, axis: Any) -> Ints:
    """The axes that a reduction names, all of them free."""
    named = (axis,) if isinstance(axis, int | np.integer) else tuple(axis)
    axes = tuple(sorted(int(a) + len(shape) if a < 0 else int(a) for a in named))
    if not axes or axes[0] < 1 or axes[-1] >= len(shape) or len(set(axes)) < len(axes):
        refuse("reduce-axis", f"axis {axis} of a tile of {shape}: only free dimensions are reduced")
    return axes


def reduced(
    operator: Operator, values: np.ndarray, defined: np.ndarray, axes: Ints, keepdims: bool
) -> tuple[np.ndarray, np.ndarray]:
    """float32 values reduced over some axes; undefined where one of its terms is. At least two dimensions stay."""
    if operator.reduction is None:
        refuse("operator", f"nl.{operator.name} does not reduce here")
    kept = tuple(axis for axis in range(values.ndim) if axis not in axes)
    if keepdims:
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(values.shape))
    else:
        shape = tuple(values.shape[axis] for axis in kept)
        shape += (1,) if len(shape) < 2 else ()
    terms, sound = (
        part.transpose(kept + axes).reshape(int(np.prod(shape)), -1)
        for part in (np.where(defined, values, np.float32(1)), defined)
    )
    return operator.reduction(terms, axis=-1).reshape(shape), sound.all(-1).reshape(shape)


def masked(
    operator: Operator, values: np.ndarray, defined: np.ndarray, ran: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Terms of a reduction: what a mask leaves out changes no result, and a row that it leaves out is undefined."""
    if ran is None:
        return values, defined
    rows = ran.reshape(ran.shape[0], -1).any(axis=1).reshape((-1,) + (1,) * (values.ndim - 1))
    return np.where(ran & defined, values, np.float32(IDENTITIES[operator.name])), (defined | ~ran) & rows


def flat(access: BetaTensor) -> tuple[np.ndarray, np.ndarray]:
    """[P, F] of float32 values, and where they are defined."""
    values, defined = access.read()
    return as_float(values).reshape(access.shape[0], -1), defined.reshape(access.shape[0], -1)


def _operand(access: BetaTensor, what: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[K, F] of an operand of a product: values, where they are defined, and which of the F take part.

    Rows that are masked out take no part in the sum.
    """
    if not tile(access, what, SBUF).dtype.is_float:
        refuse("matmul-dtype", f"{what} {access} is no float, which the Tensor Engine multiplies")
    whole = BetaTensor(access.memory, access.values, access.defined, access.partition, access.key, access.shape)
    if access.limit is None:
        values, defined = flat(whole)
        return values, defined, np.ones(values.shape[1], np.bool_)
    limit = access.limit.reshape(access.shape[0], -1)
    values, defined = (part.reshape(limit.shape) for part in whole.read(access.limit))
    return np.where(limit, as_float(values), np.float32(0)), defined | ~limit, np.asarray(limit.any(axis=0))


def product(stationary: BetaTensor, moving: BetaTensor, mask: Any = None) -> BetaTensor:
    """A new tile in PSUM: stationary[K, M].T @ moving[K, ...], accumulated in float32.

    The free dimensions of `moving`, of which there may be several, are those of the result; those of `stationary`
    become its partitions.
    """
    machine = begin("nc_matmul")
    (a, a_known, rows), (b, b_known, columns) = _operand(stationary, "stationary"), _operand(moving, "moving")
    if len(a) != len(b):
        refuse("shape", f"stationary has {len(a)} partitions and moving {len(b)}; both are the contraction")
    m, n = a.shape[1], b.shape[1]
    if m > STATIONARY_FREE or n > MOVING_FREE:
        refuse("matmul-size", f"{m} stationary and {n} moving elements a partition; at most 128 and 512 fit")
    values = np.where(a_known, a, np.float32(0)).T @ np.where(b_known, b, np.float32(0))
    machine.counters.matmuls += 1
    machine.counters.macs += a.size * n
    shape = (m, *moving.shape[1:])
    defined = np.logical_and.outer(a_known.all(axis=0), b_known.all(axis=0)).reshape(shape)
    ran = None if rows.all() and columns.all() else np.logical_and.outer(rows, columns).reshape(shape)
    chosen = executed(mask, shape)
    if chosen is not None:
        ran = chosen if ran is None else ran & chosen
    result = new_tile(values.reshape(shape), defined, FLOAT32, Region.psum, ran)
    result.memory.is_product = True
    return result


def double_row(stationary: BetaTensor, moving: BetaTensor, mask: Any = None) -> BetaTensor:
    """The product of two rows of 8-bit floats at once: stationary[K, 2, M], moving[K, 2, N]. From gen3 on."""
    if current().generation < 3:
        refuse("target", "double_row_gen3 needs gen3")
    for operand, what in ((stationary, "stationary"), (moving, "moving")):
        if tile(operand, what, SBUF).ndim != 3 or operand.shape[1] != 2 or operand.dtype.itemsize != 1:
            refuse("operand-shape", f"{what} {operand} must be (K, 2, free) of 8-bit floats")
    parts = [product(stationary[:, i], moving[:, i], mask) for i in range(2)]
    return elementwise("add", np.add, parts, FLOAT32, None)


def transposed(
    data: BetaTensor, region: Region = Region.psum, mask: Any = None, dtype: DType | None = None
) -> BetaTensor:
    """A new tile [F, P] of data[P, F]; the mask is one of data."""
    begin("nc_transpose")
    ran = executed(mask, tile(data, "data").shape)
    values, defined = (part.reshape(data.shape[0], -1) for part in data.read(mask))
    if values.shape[1] > 128:
        refuse("transpose-shape", f"{data} has {values.shape[1]} elements a partition, at most 128 become partitions")
    turned = None if ran is None else ran.reshape(values.shape).T
    return new_tile(as_float(values).T, defined.T, dtype or data.dtype, region, turned)
