"""nki.language: tensors, loads and stores, and functions that compute, each by instructions on new tiles.

Page of each: "nki.language.<name>", Neuron SDK 2.32. Functions stand for operators too, as in
nisa.tensor_tensor(..., op=nl.add).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from . import isa_vector
from .dtypes import DTYPES, FLOAT32, DType, checked
from .errors import refuse
from .indexing import integer, positive
from .isa_matmul import nc_matmul, nc_transpose
from .isa_memory import dma_copy, dma_transpose, memset, tensor_copy
from .isa_vector import activation, reduced_axes, tensor_reduce, tensor_scalar, tensor_tensor
from .machine import current
from .operands import HBM, ON_CHIP, PSUM, SBUF, tensor, tile, write
from .operators import ACTIVATIONS, OPERATORS, REDUCTIONS_BY_NAME, Operator
from .storage import Region, Storage, placed
from .tensor import NkiTensor


def ndarray(
    shape: tuple[int, ...], dtype: DType, buffer: Region = Region.sbuf, name: str = "", address: Any = None
) -> NkiTensor:
    """A new tensor whose contents are undefined, at an address (partition, byte) if one is given."""
    if not isinstance(buffer, Region):
        refuse("buffer", f"{buffer!r} is no memory of nki.language")
    sizes = positive(shape, "the shape")
    if sizes == (1,) and buffer.on_chip:
        sizes = (1, 1)  # as the pages of the registers write a single element
    if len(sizes) < 2 and buffer.on_chip:
        refuse("shape", f"a tensor on chip has a partition and a free dimension; {sizes} has one")
    if address is not None:
        return NkiTensor.of(placed(current(), sizes, checked(dtype), buffer, name, address))
    return NkiTensor.of(Storage(current(), sizes, checked(dtype), buffer, name))


def full(
    shape: tuple[int, ...], fill_value: float, dtype: DType, buffer: Region = Region.sbuf, name: str = ""
) -> NkiTensor:
    """A new tensor filled with a number; one in HBM cannot be, no engine writes there."""
    new = ndarray(shape, dtype, buffer, name)
    if new.buffer.on_chip:
        memset(new, fill_value)
    else:
        _fill(new, fill_value)
    return new


def _fill(access: NkiTensor, value: float) -> None:
    """In HBM, by DMA from a tile of one element: no engine fills there."""
    tile = ndarray((1, 1), access.dtype)
    memset(tile, value)
    dma_copy(access, NkiTensor(tile.storage, access.shape, (0,) * access.ndim, 0, access.dtype))


def zeros(shape: tuple[int, ...], dtype: DType, buffer: Region = Region.sbuf, name: str = "") -> NkiTensor:
    return full(shape, 0, dtype, buffer, name)


def ones(shape: tuple[int, ...], dtype: DType, buffer: Region = Region.sbuf, name: str = "") -> NkiTensor:
    return full(shape, 1, dtype, buffer, name)


def empty_like(x: NkiTensor, dtype: DType | None = None, buffer: Region | None = None, name: str = "") -> NkiTensor:
    """A new tensor of the shape, and unless they are given the dtype and memory, of another."""
    return ndarray(x.shape, kind(dtype, x), x.buffer if buffer is None else buffer, name)


def zeros_like(x: NkiTensor, dtype: DType | None = None, buffer: Region | None = None, name: str = "") -> NkiTensor:
    return zeros(x.shape, kind(dtype, x), x.buffer if buffer is None else buffer, name)


def filled(instruction: Callable[..., Any], shape: Any, dtype: DType, *operands: Any, **options: Any) -> NkiTensor:
    """A new tile in SBUF, filled by an instruction."""
    new = ndarray(shape, dtype)
    instruction(new, *operands, **options)
    return new


def kind(dtype: DType | None, x: NkiTensor) -> DType:
    return x.dtype if dtype is None else dtype


def load(src: NkiTensor, dtype: DType | None = None) -> NkiTensor:
    """A new tile in SBUF with what is in HBM."""
    access = tensor(src, "src", HBM)
    return filled(dma_copy, access.shape, kind(dtype, access), access)


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Into HBM, from SBUF; shapes agree."""
    tensor(dst, "dst", HBM)
    if tensor(value, "value", SBUF).shape != dst.shape:
        refuse("shape", f"value {value} is stored to dst {dst}")
    dma_copy(dst, value)


def load_transpose2d(src: NkiTensor, dtype: DType | None = None) -> NkiTensor:
    """A new tile in SBUF with the transpose of a matrix in HBM."""
    access = tensor(src, "src", HBM)
    if access.ndim != 2:
        refuse("shape", f"src {access} is no matrix")
    result = filled(dma_transpose, access.shape[::-1], access.dtype, access)
    return result if dtype is None or dtype is access.dtype else Copy()(result, dtype)


def transpose(x: NkiTensor, dtype: DType | None = None) -> NkiTensor:
    """A new tile in PSUM with the transpose of a tile of two dimensions."""
    if tile(x, "x").ndim != 2:
        refuse("shape", f"x {x} is no matrix")
    result = ndarray((x.shape[1], x.shape[0]), x.dtype, Region.psum)
    nc_transpose(result, x)
    return result if dtype is None or dtype is x.dtype else Copy()(result, dtype)


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """A new tile in PSUM: x.T @ y if x is transposed already; otherwise transpose it yourself."""
    if not transpose_x:
        refuse(
            "unsupported-operation", "matmul that transposes x is not supported; transpose it, with transpose_x=True"
        )
    tile(x, "x", SBUF)
    tile(y, "y", SBUF)
    result = ndarray((x.free, y.free), DTYPES["float32"], Region.psum)
    nc_matmul(result, x, y, accumulate=False)
    return result


def broadcast_to(x: NkiTensor, shape: tuple[int, ...], dtype: DType | None = None) -> NkiTensor:
    """A tile repeated along dimensions of size 1: a view, or where partitions are repeated a copy by DMA."""
    sizes = positive(shape, "the shape")
    if dtype is not None and dtype is not tile(x, "x").dtype:
        x = Copy()(x, dtype)
    if len(sizes) != tile(x, "x").ndim:
        refuse("shape", f"x {x} broadcast to {sizes}, of another rank")
    for dim in range(1, len(sizes)):
        if sizes[dim] != x.shape[dim]:
            x = x.broadcast(dim, sizes[dim])
    if sizes[0] == x.shape[0]:
        return x
    if x.shape[0] != 1:
        refuse("shape", f"x {x} broadcast to {sizes[0]} partitions")
    result = ndarray((sizes[0], *x.shape[1:]), x.dtype)
    dma_copy(result, NkiTensor(x.storage, result.shape, (0, *x.strides[1:]), x.offset, x.dtype))
    return result


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    return x.expand_dim(axis + x.ndim + 1 if axis < 0 else axis)


def shared_identity_matrix(n: int, dtype: DType = DTYPES["uint8"], dst: NkiTensor | None = None) -> NkiTensor:
    machine = current()
    machine.begin("shared_identity_matrix")
    result = ndarray((integer(n, "n"), n), dtype) if dst is None else tile(dst, "dst", SBUF)
    if result.shape != (n, n):
        refuse("shape", f"dst {result} is not ({n}, {n})")
    write(machine, result, np.eye(n, dtype=np.float32))
    return result


def loop_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """affine_range, sequential_range and static_range: Python's range."""
    low, high = (integer(bound, "a bound of a range") for bound in ((0, start) if stop is None else (start, stop)))
    return range(low, high, integer(step, "step"))


# a kernel runs on one core here: there is no grid


def program_id(axis: int = 0) -> int:
    return 0


def num_programs(axes: int = 0) -> int:
    return 1


def program_ndim() -> int:
    return 0


def _lies_in(regions: tuple[Region, ...]) -> Callable[[Region], bool]:
    def test(buffer: Region) -> bool:
        return buffer in regions

    return test


is_sbuf, is_psum, is_hbm, is_on_chip = _lies_in(SBUF), _lies_in(PSUM), _lies_in(HBM), _lies_in(ON_CHIP)


@contextmanager
def no_reorder() -> Iterator[None]:
    """Instructions run in program order here anyway; loops on the device are not supported inside."""
    machine = current()
    before, machine.unordered = machine.unordered, False
    try:
        yield
    finally:
        machine.unordered = before


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    if type(print_prefix) is not str:
        refuse("operand", f"print_prefix {print_prefix!r} must be a string")
    print(print_prefix, tensor, tensor.array)


class Function:
    """A function of nki.language: callable on tiles, and a name for `op=` of instructions."""

    def __init__(self, name: str, operator: Operator | None, is_activation: bool) -> None:
        self.__name__, self.operator, self.is_activation = name, operator, is_activation

    def __call__(self, *operands: Any, dtype: DType | None = None) -> NkiTensor:
        """A new tile in SBUF. Binary functions take a positional dtype last, as all do."""
        arity = 1 if self.operator is None else self.operator.arity
        if len(operands) == arity + 1 and dtype is None:
            operands, dtype = operands[:arity], operands[arity]
        if len(operands) != arity:
            refuse("operand", f"nl.{self.__name__} takes {arity} operands, not {len(operands)}")
        if arity == 1:
            return self._unary(operands[0], dtype)
        return self._binary(operands[0], operands[1], dtype)

    def _binary(self, x: Any, y: Any, dtype: DType | None) -> NkiTensor:
        tiles = [operand for operand in (x, y) if isinstance(operand, NkiTensor)]
        if not tiles:
            refuse("operand", f"nl.{self.__name__} of two numbers; one operand is a tile")
        if dtype is None and tiles[0].dtype is not tiles[-1].dtype:
            types = f"{tiles[0].dtype} and {tiles[-1].dtype}"
            refuse("dtype", f"nl.{self.__name__} of {types}: give the dtype of the result")
        result = ndarray(tiles[0].shape, tiles[0].dtype if dtype is None else dtype)
        if self.__name__ == "power" and len(tiles) == 1:
            refuse("unsupported-operation", "nl.power of a tile and a number is not supported; both are tiles")
        if len(tiles) == 1:
            reverse = tiles[0] is y
            tensor_scalar(result, tiles[0], self, x if reverse else y, reverse0=reverse)
        elif x.shape != y.shape:
            refuse("shape", f"nl.{self.__name__} of {x} and {y}: shapes differ, and broadcasting is not documented")
        else:
            tensor_tensor(result, x, y, self)
        return result

    def _unary(self, x: Any, dtype: DType | None) -> NkiTensor:
        shape = tile(x, "x").shape
        if self.__name__ == "reciprocal":
            return filled(isa_vector.reciprocal, shape, kind(dtype, x), x)
        if self.is_activation:
            return filled(activation, shape, kind(dtype, x), self, x)
        return filled(tensor_scalar, shape, kind(dtype, x), x, self, None)


FUNCTIONS = {
    name: Function(name, OPERATORS.get(name), name in ACTIVATIONS) for name in OPERATORS.keys() | ACTIVATIONS.keys()
}


class Reduction:
    """nl.sum, nl.max, nl.min and nl.prod: one tensor_reduce, rounded once to dtype, which defaults to that of the tile.

    So a sum of bf16 is rounded to bf16 before anything else is done with it.
    """

    is_activation = False

    def __init__(self, name: str, operator: Operator) -> None:
        self.__name__, self.operator = name, operator

    def __call__(self, x: NkiTensor, axis: Any, dtype: DType | None = None, keepdims: bool = False) -> NkiTensor:
        """A new tile in SBUF without the reduced dimensions, or with size 1 there; at least two dimensions stay."""
        count = reduced_axes(tile(x, "x"), axis)
        shape = x.shape[: x.ndim - count]
        if keepdims or len(shape) < 2:
            shape += (1,) * count
        return filled(tensor_reduce, shape, kind(dtype, x), self, x, axis, keepdims=keepdims)


REDUCTIONS = {name: Reduction(name, OPERATORS[operator]) for name, operator in REDUCTIONS_BY_NAME.items()}


def mean(x: NkiTensor, axis: Any, dtype: DType | None = None, keepdims: bool = False) -> NkiTensor:
    """The sum in float32 times the reciprocal of the count, rounded once to dtype (that of x)."""
    total = REDUCTIONS["sum"](x, axis, FLOAT32, keepdims)
    return filled(tensor_scalar, total.shape, kind(dtype, x), total, FUNCTIONS["multiply"], total.size / x.size)


def negative(x: NkiTensor, dtype: DType | None = None) -> NkiTensor:
    return filled(tensor_scalar, tile(x, "x").shape, kind(dtype, x), x, FUNCTIONS["multiply"], -1.0)


class Copy:
    """nl.copy: a function, and the identity among the activation functions."""

    __name__ = "copy"
    operator = None
    is_activation = True

    def __call__(self, x: NkiTensor, dtype: DType | None = None) -> NkiTensor:
        """A new tile in SBUF."""
        return filled(tensor_copy, tile(x, "x").shape, kind(dtype, x), x)
