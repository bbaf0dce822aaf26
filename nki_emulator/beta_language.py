"""nki.language of the Beta 1 API. Page of each: "nki.language.<name>", Neuron SDK 2.26."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from .beta_alloc import Placement, place
from .beta_index import broadcast, executed
from .beta_machine import instance
from .beta_math import (
    BETA_ACTIVATIONS,
    accumulated,
    activation_named,
    copied,
    data_type,
    elementwise,
    free_axes,
    masked,
    new_tile,
    operator_named,
    product,
    promoted,
    reduced,
    tile,
    transposed,
)
from .beta_tensor import FUNCTIONS, BetaTensor, Memory
from .dtypes import DTYPES, FLOAT32, DType
from .errors import refuse
from .indexing import integer, positive
from .machine import begin, current
from .operands import HBM, SBUF, as_float
from .operators import ACTIVATIONS, OPERATORS, REDUCTIONS_BY_NAME
from .storage import Region


@dataclass(frozen=True, slots=True)
class ParDim:
    """nl.par_dim: the dimension of a shape that runs along the partitions."""

    size: int


def ndarray(
    shape: Any, dtype: Any, *, buffer: Region | Placement | None = None, name: str = "", **_: Any
) -> BetaTensor:
    """A new tensor whose contents are undefined; the first dimension is the partition unless par_dim marks one.

    Shared HBM is the same for all instances of a grid; other memory is each instance's own. A single dimension on chip
    is that of the partitions, each of one element.
    """
    placement = buffer if isinstance(buffer, Placement) else None
    if placement is not None:
        buffer = placement.region
    if buffer is not None and not isinstance(buffer, Region):
        refuse("operand", f"a buffer {buffer!r}; it is nl.sbuf, nl.psum, one of HBM, or a place from nki.compiler")
    marked = [dim for dim, size in enumerate(shape) if isinstance(size, ParDim)]
    sizes = positive(tuple(size.size if isinstance(size, ParDim) else int(size) for size in shape), "the shape")
    partition, region = marked[0] if marked else 0, buffer or Region.sbuf
    if region.on_chip and len(sizes) == 1:
        sizes = (*sizes, 1)
    machine, element_type = instance(), data_type(dtype)
    make = partial(Memory, machine, sizes, element_type, region, partition, name)
    if placement is not None:
        memory = make()
        place(memory, placement)
        return BetaTensor.of(memory, partition)
    return BetaTensor.of(machine.shared(make) if region is Region.shared_hbm else make(), partition)


def full(
    shape: Any, fill_value: Any, dtype: Any, *, buffer: Region | Placement | None = None, name: str = "", **_: Any
) -> BetaTensor:
    begin("memset")
    new = ndarray(shape, dtype, buffer=buffer, name=name)
    new.write(np.full(new.shape, fill_value, new.dtype.host), np.ones(new.shape, np.bool_))
    return new


def zeros(shape: Any, dtype: Any, **options: Any) -> BetaTensor:
    return full(shape, 0, dtype, **options)


def ones(shape: Any, dtype: Any, **options: Any) -> BetaTensor:
    return full(shape, 1, dtype, **options)


def empty_like(a: BetaTensor, dtype: Any = None, *, buffer: Region | None = None, **_: Any) -> BetaTensor:
    """A new tensor of the shape, and unless they are given the type and memory, of another."""
    return ndarray(a.shape, data_type(dtype, a.dtype), buffer=buffer or a.buffer)


def zeros_like(a: BetaTensor, dtype: Any = None, *, buffer: Region | None = None, **_: Any) -> BetaTensor:
    return full(a.shape, 0, a.dtype if dtype is None else dtype, buffer=buffer or a.buffer)


def load(src: BetaTensor, *, mask: Any = None, dtype: Any = None) -> BetaTensor:
    """A new tile in SBUF with what is in HBM; indices that the mask leaves out may lie outside."""
    new = copied("load", src, dtype, mask, HBM)
    current().counters.dma_bytes_in += src.size * src.itemsize
    return new


def store(dst: BetaTensor, value: BetaTensor, *, mask: Any = None) -> None:
    """Into HBM, from SBUF or by a copy from PSUM; everything that is stored must be defined."""
    machine = begin("store")
    tile(dst, "dst", HBM)
    ran = executed(mask, dst.shape)
    if not isinstance(value, BetaTensor):
        value = full(dst.shape, value, dst.dtype)
    values, defined = tile(value, "value").read()
    fits = value.size == dst.size
    if not fits and broadcast(value.shape, dst.shape) != dst.shape:
        refuse("shape", f"value {value} is stored to dst {dst}")
    values, defined = [v.reshape(dst.shape) if fits else np.broadcast_to(v, dst.shape) for v in (values, defined)]
    stored = defined if ran is None else defined | ~ran
    if not stored.all():
        refuse("uninitialised", f"{stored.size - np.count_nonzero(stored)} undefined elements of {value} are stored")
    dst.write(values if value.dtype is dst.dtype else as_float(values), defined, ran)
    machine.counters.dma_bytes_out += dst.size * dst.itemsize


def load_transpose2d(src: BetaTensor, *, mask: Any = None, dtype: Any = None) -> BetaTensor:
    """A new tile in SBUF with the transpose of a matrix in HBM."""
    begin("load_transpose2d")
    if tile(src, "src", HBM).ndim != 2:
        refuse("shape", f"src {src} is no matrix")
    values, defined = src.read(mask)
    return new_tile(as_float(values).T, defined.T, data_type(dtype, src.dtype))


def copy(src: BetaTensor, *, mask: Any = None, dtype: Any = None) -> BetaTensor:
    return copied("copy", src, dtype, mask)


def matmul(x: BetaTensor, y: BetaTensor, *, transpose_x: bool = False, mask: Any = None) -> BetaTensor:
    """A new tile in PSUM: x.T @ y if x is transposed already, else x @ y by a transpose of x before."""
    if not transpose_x:
        x = transposed(tile(x, "x", SBUF), Region.sbuf)
    return product(x, y, mask)


def transpose(x: BetaTensor, *, dtype: Any = None, mask: Any = None) -> BetaTensor:
    """A new tile in SBUF with the transpose of a tile of two dimensions."""
    return transposed(x, Region.sbuf, mask, data_type(dtype, x.dtype))


def broadcast_to(src: BetaTensor, *, shape: Any, **_: Any) -> BetaTensor:
    return tile(src, "src").broadcast_to(shape)


def expand_dims(data: BetaTensor, axis: int) -> BetaTensor:
    return data.expand_dims(axis)


class Function:
    """An element-wise function of nki.language: callable on tiles, and a name for `op=` of instructions."""

    def __init__(self, name: str, function: Callable[..., np.ndarray], arity: int, result: DType | None = None) -> None:
        self.__name__, self.function, self.arity, self.result = name, function, arity, result

    def __call__(self, *operands: Any, dtype: Any = None, mask: Any = None, **unknown: Any) -> BetaTensor:
        if len(operands) != self.arity or unknown:
            refuse("operand", f"nl.{self.__name__} takes {self.arity} operands, dtype and mask")
        return elementwise(self.__name__, self.function, operands, dtype, mask, self.result)


class Quotient(Function):
    """nl.divide: of integers it is a float32, as NumPy's is a float."""

    def __call__(self, *operands: Any, dtype: Any = None, mask: Any = None, **unknown: Any) -> BetaTensor:
        tiles = [value for value in operands if isinstance(value, BetaTensor)]
        if dtype is None and not any(operand.dtype.is_float for operand in tiles):
            dtype = FLOAT32
        return super().__call__(*operands, dtype=dtype, mask=mask, **unknown)


class Reduction:
    """nl.sum, nl.max, nl.min and nl.prod: in float32, rounded once to dtype, which is that of the tile.

    So a sum of bf16 is rounded to bf16 before anything else is done with it. The page allows the last dimensions
    only, while the average pooling of the same SDK reduces others; any free dimension is taken here.
    """

    def __init__(self, name: str, operator: str) -> None:
        self.__name__, self.operator = name, OPERATORS[operator]

    def __call__(
        self, x: BetaTensor, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False
    ) -> BetaTensor:
        """A new tile in SBUF. Elements that a mask leaves out take no part; a row that it leaves out is undefined."""
        begin(self.__name__)
        values, defined = tile(x, "x").read()
        terms = masked(self.operator, as_float(values), defined, executed(mask, x.shape))
        result = reduced(self.operator, *terms, free_axes(x.shape, axis), keepdims)
        return new_tile(*result, data_type(dtype, x.dtype))


class Bits:
    """A bit operator of nki.language, on tiles of integers and integers."""

    def __init__(self, name: str) -> None:
        self.__name__, self.operator = name, OPERATORS[name]

    def __call__(self, *operands: Any, dtype: Any = None, mask: Any = None) -> BetaTensor:
        """A new tile; numbers take the type of the tile."""
        begin(self.__name__)
        tiles = [tile(value, "an operand") for value in operands if isinstance(value, BetaTensor)]
        if not tiles or len(operands) != self.operator.arity:
            refuse("operand", f"nl.{self.__name__} takes {self.operator.arity} operands, a tile among them")
        types = [operand.dtype for operand in tiles]
        if any(kind.is_float for kind in types):
            refuse("operand-dtype", f"nl.{self.__name__} of floats; it works on the bits of integers")
        result = types[0] if len(types) == 1 else promoted(*types)
        shape = broadcast(*[operand.shape for operand in tiles])
        pairs = [value.read(mask) if isinstance(value, BetaTensor) else (value, True) for value in operands]
        arrays = [np.broadcast_to(np.asarray(values).astype(result.stored), shape) for values, _ in pairs]
        defined = np.logical_and.reduce([np.broadcast_to(sound, shape) for _, sound in pairs])
        return new_tile(self.operator.function(*arrays), defined, data_type(dtype, result), ran=executed(mask, shape))


def mean(x: BetaTensor, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False) -> BetaTensor:
    """The sum in float32 times the reciprocal of the count, rounded once to dtype (that of x).

    With a mask only whole rows may be left out: over how many elements a mean is taken else, no page says.
    """
    ran = executed(mask, x.shape)
    if ran is not None and (ran.any(axis=tuple(range(1, x.ndim))) != ran.all(axis=tuple(range(1, x.ndim)))).any():
        refuse("not-implemented", "a mean of which a mask leaves out a part of a row")
    total = REDUCTIONS["sum"](x, axis, dtype=FLOAT32, mask=mask, keepdims=keepdims)
    return elementwise("multiply", np.multiply, (total, total.size / x.size), dtype, None, x.dtype)


def var(x: BetaTensor, axis: Any, *, dtype: Any = None, mask: Any = None) -> BetaTensor:
    """The mean of squared distances from the mean, in float32, rounded once to dtype (that of x)."""
    average = mean(x, axis, dtype=FLOAT32, mask=mask, keepdims=True)
    distances = elementwise("subtract", np.subtract, (x, average), FLOAT32, mask)
    squares = elementwise("square", np.square, (distances,), FLOAT32, mask)
    return mean(squares, axis, dtype=dtype or x.dtype, mask=mask)


def where(condition: BetaTensor, x: Any, y: Any, *, dtype: Any = None, mask: Any = None) -> BetaTensor:
    """x where condition is not 0, else y."""
    types = [value.dtype for value in (x, y) if isinstance(value, BetaTensor)]
    result = promoted(types[0], types[-1]) if types else FLOAT32
    choose = lambda c, a, b: np.asarray(np.where(c != 0, a, b))  # noqa: E731
    return elementwise("where", choose, (condition, x, y), dtype or result, mask)


def _truth(name: str) -> DType | None:
    """uint8 of what is true or false."""
    compares = name.startswith(("logical_", "greater", "less")) or name.endswith("equal")
    return DTYPES["uint8"] if compares else None


FUNCTIONS.update(
    {
        name: Function(name, operator.function, operator.arity, _truth(name))
        for name, operator in OPERATORS.items()
        if not operator.bits and operator.generation == 2
    },
    **{name: Function(name, activation_named(name), 1) for name in ACTIVATIONS | BETA_ACTIVATIONS},
    divide=Quotient("divide", np.divide, 2),
    negative=Function("negative", np.negative, 1),
    logical_not=Function("logical_not", lambda x: (x == 0).astype(np.float32), 1, DTYPES["uint8"]),
)
FUNCTIONS.update({name: Function(name, getattr(np, name), 1) for name in ("floor", "ceil", "trunc", "cos", "tan")})
FUNCTIONS.update({name: Function(name, getattr(np, name), 2) for name in ("mod", "fmod")})
FUNCTIONS.update({name: Bits(name) for name, operator in OPERATORS.items() if operator.bits})
REDUCTIONS = {name: Reduction(name, operator) for name, operator in REDUCTIONS_BY_NAME.items()}


def loop_range(*bounds: int, directives: Any = None) -> range:
    """affine_range, sequential_range and static_range: Python's range; directives change no result."""
    return range(*(integer(int(bound), "a bound of a range") for bound in bounds))


def program_id(axis: int) -> int:
    program = instance().program
    if not 0 <= axis < len(program):
        refuse("grid", f"program_id({axis}) of a kernel that was launched on a grid of {len(program)} dimensions")
    return program[axis]


def num_programs(axes: int | None = None) -> int:
    """Instances of a grid, along an axis or altogether."""
    grid = instance().grid
    return int(np.prod(grid)) if axes is None else grid[axes]


def program_ndim() -> int:
    return len(instance().grid)


def shared_constant(constant: Any, dtype: Any = None, **_: Any) -> BetaTensor:
    """A tensor in HBM with the content of a NumPy array."""
    array = np.asarray(constant)
    memory = Memory(current(), array.shape, data_type(array.dtype if dtype is None else dtype), Region.hbm)
    new = BetaTensor.of(memory)
    new.write(array if array.dtype.kind in "iub" else as_float(array), np.ones(array.shape, np.bool_))
    memory.is_input = True
    return new


def shared_identity_matrix(n: int, dtype: Any = np.uint8, **_: Any) -> BetaTensor:
    """`shared_constant` of an identity matrix."""
    return shared_constant(np.eye(n, dtype=np.float32), dtype)


def atomic_rmw(dst: BetaTensor, value: Any, op: Any, *, mask: Any = None) -> None:
    """dst = dst + value in HBM, element by element, also where several elements of the access are one."""
    begin("atomic_rmw")
    if operator_named(op).name != "add":
        refuse("operator", "op of atomic_rmw must be add")
    tile(dst, "dst", HBM)
    if not isinstance(value, BetaTensor):
        value = full(dst.shape, value, dst.dtype)
    accumulated(dst, tile(value, "value"), mask)


def finfo(dtype: Any) -> Any:
    """Limits of a float type."""
    return ml_dtypes.finfo(data_type(dtype).stored)  # type: ignore[no-untyped-call]


def loop_reduce(x: BetaTensor, op: Any, loop_indices: Any, *, dtype: Any = None, mask: Any = None) -> BetaTensor:
    """A tile that is reduced by a binary operator into the one that it is assigned to: b[...] = loop_reduce(a)."""
    new = copied("loop_reduce", x, FLOAT32, mask)
    new.pending = operator_named(op).name
    return new


def all_true(x: BetaTensor, axis: Any, *, dtype: Any = None, mask: Any = None) -> BetaTensor:
    """nl.all: 1 where no element along free axes is 0, in uint8."""
    nonzero = elementwise("not_equal", OPERATORS["not_equal"].function, (x, 0.0), FLOAT32, mask)
    return REDUCTIONS["min"](nonzero, axis, dtype=DTYPES["uint8"] if dtype is None else dtype, mask=mask)


def device_print(prefix: str, x: BetaTensor, *, mask: Any = None) -> None:
    print(prefix, x, x.read(mask)[0])
