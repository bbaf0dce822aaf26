"""Tensors, loads and stores of nki.language. Page of each: "nki.language.<name>", Neuron SDK 2.32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .dtypes import DTYPES, DType, checked
from .errors import refuse
from .indexing import DynamicSlice
from .isa_matmul import nc_matmul, nc_transpose
from .isa_memory import dma_copy, dma_transpose, memset
from .machine import current
from .operands import HBM, ON_CHIP, PSUM, SBUF, tensor, tile, write
from .patterns import integer, positive
from .placement import placed
from .storage import Region, Storage
from .tensor import NkiTensor


def ndarray(
    shape: tuple[int, ...], dtype: DType, buffer: Region = Region.sbuf, name: str = "", address: Any = None
) -> NkiTensor:
    """A new tensor whose contents are undefined, at an address (partition, byte) if one is given."""
    if not isinstance(buffer, Region):
        refuse("buffer", f"{buffer!r} is no memory of nki.language")
    sizes = positive(shape, "the shape")
    if len(sizes) < 2 and buffer.on_chip:
        refuse("shape", f"a tensor on chip has a partition and a free dimension; {sizes} has one")
    if address is not None:
        return NkiTensor.of(placed(current(), sizes, checked(dtype), buffer, name, address))
    return NkiTensor.of(Storage(current(), sizes, checked(dtype), buffer, name))


def full(
    shape: tuple[int, ...], fill_value: float, dtype: DType, buffer: Region = Region.sbuf, name: str = ""
) -> NkiTensor:
    """A new tensor filled with a number; one in HBM cannot be, no engine writes there."""
    found = ndarray(shape, dtype, buffer, name)
    if not found.buffer.on_chip:
        refuse("not-implemented", f"filling {found}; fill a tile and copy it")
    memset(found, fill_value)
    return found


def zeros(shape: tuple[int, ...], dtype: DType, buffer: Region = Region.sbuf, name: str = "") -> NkiTensor:
    """A new tensor of zeros."""
    return full(shape, 0, dtype, buffer, name)


def ones(shape: tuple[int, ...], dtype: DType, buffer: Region = Region.sbuf, name: str = "") -> NkiTensor:
    """A new tensor of ones."""
    return full(shape, 1, dtype, buffer, name)


def empty_like(x: NkiTensor, dtype: DType | None = None, buffer: Region | None = None, name: str = "") -> NkiTensor:
    """A new tensor of the shape, and unless they are given the dtype and memory, of another."""
    return ndarray(x.shape, x.dtype if dtype is None else dtype, x.buffer if buffer is None else buffer, name)


def zeros_like(x: NkiTensor, dtype: DType | None = None, buffer: Region | None = None, name: str = "") -> NkiTensor:
    """`empty_like`, filled with zeros."""
    return zeros(x.shape, x.dtype if dtype is None else dtype, x.buffer if buffer is None else buffer, name)


def load(src: NkiTensor, dtype: DType | None = None) -> NkiTensor:
    """A new tile in SBUF with what is in HBM."""
    found = tensor(src, "src", HBM)
    result = ndarray(found.shape, found.dtype if dtype is None else dtype)
    dma_copy(result, found)
    return result


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Into HBM, from SBUF; shapes agree."""
    tensor(dst, "dst", HBM)
    if tensor(value, "value", SBUF).shape != dst.shape:
        refuse("shape", f"value {value} is stored to dst {dst}")
    dma_copy(dst, value)


def load_transpose2d(src: NkiTensor, dtype: DType | None = None) -> NkiTensor:
    """A new tile in SBUF with the transpose of a matrix in HBM."""
    found = tensor(src, "src", HBM)
    if found.ndim != 2:
        refuse("shape", f"src {found} is no matrix")
    if dtype is not None and dtype is not found.dtype:
        refuse("not-implemented", "load_transpose2d to another dtype")
    result = ndarray((found.shape[1], found.shape[0]), found.dtype)
    dma_transpose(result, found)
    return result


def transpose(x: NkiTensor, dtype: DType | None = None) -> NkiTensor:
    """A new tile in PSUM with the transpose of a tile of two dimensions."""
    if tile(x, "x").ndim != 2:
        refuse("shape", f"x {x} is no matrix")
    if dtype is not None and dtype is not x.dtype:
        refuse("not-implemented", "transpose to another dtype")
    result = ndarray((x.shape[1], x.shape[0]), x.dtype, Region.psum)
    nc_transpose(result, x)
    return result


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """A new tile in PSUM: x.T @ y if x is transposed already; otherwise transpose it yourself."""
    if not transpose_x:
        refuse("not-implemented", "matmul that transposes x; use nc_transpose and transpose_x=True")
    tile(x, "x", SBUF)
    tile(y, "y", SBUF)
    result = ndarray((x.free, y.free), DTYPES["float32"], Region.psum)
    nc_matmul(result, x, y, accumulate=False)
    return result


def broadcast_to(x: NkiTensor, shape: tuple[int, ...], dtype: DType | None = None) -> NkiTensor:
    """A tile repeated along dimensions of size 1: a view, or where partitions are repeated a copy by DMA."""
    sizes = positive(shape, "the shape")
    if dtype is not None and dtype is not x.dtype:
        refuse("not-implemented", "broadcast_to another dtype")
    if len(sizes) != tile(x, "x").ndim:
        refuse("shape", f"x {x} broadcast to {sizes}, of another rank")
    for dim in range(1, len(sizes)):
        if sizes[dim] != x.shape[dim]:
            x = x.broadcast(dim, sizes[dim])
    return x if sizes[0] == x.shape[0] else _repeated(x, sizes[0])


def _repeated(x: NkiTensor, partitions: int) -> NkiTensor:
    """A new tile whose partitions all hold the one of x."""
    if x.shape[0] != 1:
        refuse("shape", f"x {x} broadcast to {partitions} partitions")
    result = ndarray((partitions, *x.shape[1:]), x.dtype)
    dma_copy(result, NkiTensor(x.storage, result.shape, (0, *x.strides[1:]), x.offset, x.dtype))
    return result


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """A view with a new dimension of size 1."""
    return x.expand_dim(axis + x.ndim + 1 if axis < 0 else axis)


def shared_identity_matrix(n: int, dtype: DType = DTYPES["uint8"], dst: NkiTensor | None = None) -> NkiTensor:
    """The identity (n, n) in SBUF."""
    machine = current()
    machine.begin("shared_identity_matrix")
    result = ndarray((integer(n, "n"), n), dtype) if dst is None else tile(dst, "dst", SBUF)
    if result.shape != (n, n):
        refuse("shape", f"dst {result} is not ({n}, {n})")
    write(machine, result, np.eye(n, dtype=np.float32))
    return result


def ds(start: int, size: int) -> DynamicSlice:
    """start:start + size, as an index."""
    return DynamicSlice(start, size)


def loop_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """affine_range, sequential_range and static_range: Python's range."""
    bounds = (0, start) if stop is None else (start, stop)
    return range(*(integer(bound, "a bound of a range") for bound in bounds), integer(step, "step"))


def program_id(axis: int = 0) -> int:
    """0: a kernel runs on one core here."""
    return 0


def num_programs(axes: int = 0) -> int:
    """1: a kernel runs on one core here."""
    return 1


def program_ndim() -> int:
    """0: there is no grid."""
    return 0


def is_sbuf(buffer: Region) -> bool:
    """Whether it is SBUF."""
    return buffer in SBUF


def is_psum(buffer: Region) -> bool:
    """Whether it is PSUM."""
    return buffer in PSUM


def is_hbm(buffer: Region) -> bool:
    """Whether it is any HBM."""
    return buffer in HBM


def is_on_chip(buffer: Region) -> bool:
    """Whether it is SBUF or PSUM."""
    return buffer in ON_CHIP


@contextmanager
def no_reorder() -> Iterator[None]:
    """Instructions run in program order here anyway."""
    yield


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print a tensor."""
    print(print_prefix, tensor, tensor.array)
