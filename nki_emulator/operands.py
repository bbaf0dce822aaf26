"""What instructions ask of their operands, and how they read and write them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .dtypes import FLOAT32, FP32, DType, rounded
from .errors import refuse
from .indexing import disjoint, extent
from .machine import Machine, running
from .storage import Region
from .targets import BANK, MAX_DIMENSIONS
from .tensor import NkiTensor

ON_CHIP = (Region.sbuf, Region.psum)
SBUF, PSUM = (Region.sbuf,), (Region.psum,)
HBM = (Region.hbm, Region.private_hbm, Region.shared_hbm)


def tensor(value: Any, what: str, regions: tuple[Region, ...]) -> NkiTensor:
    """`value` if it is a tensor in one of these memories."""
    if type(value) is not NkiTensor:
        if isinstance(value, NkiTensor):
            refuse("indirect", f"{what} {value} is addressed by what lies on chip; only a DMA goes there")
        refuse("operand", f"{what} must be a tensor, not {value!r}")
    machine = value.storage.machine
    if machine is not running():
        refuse("stale-tensor", f"{what} {value} belongs to another call; a kernel depends on its arguments alone")
    if value.storage.region not in regions:
        refuse("buffer", f"{what} is {value}; it must be in {' or '.join(region.value for region in regions)}")
    if machine.trace is not None:
        machine.trace.operand(what, value)
    return value


def tile(value: Any, what: str, regions: tuple[Region, ...] = ON_CHIP) -> NkiTensor:
    """A tensor that a compute engine can address in one access.

    Start partition 0 beyond 64 partitions, 0 or 64 beyond 32, else a multiple of 32, and at most five dimensions:
    "Trainium/Inferentia2 Architecture Guide", Neuron SDK 2.32, on tensor access and start_partition.
    """
    access = tensor(value, what, regions)
    if access.offset or access.storage.partition:
        start, partitions = start_partition(access), access.shape[0]
        step = 128 if partitions > 64 else 64 if partitions > 32 else 32
        if start % step:
            where = f"starts at partition {start}; {partitions} partitions start at a multiple of {step}"
            refuse("start-partition", f"{what} {access} {where}")
    if len(access.shape) > MAX_DIMENSIONS and _dimensions(access) > MAX_DIMENSIONS:
        refuse("access-dimensions", f"{what} {access} is accessed in {_dimensions(access)} dimensions, at most 5 are")
    return access


def start_partition(access: NkiTensor) -> int:
    """Of the 128 on chip."""
    return access.storage.partition + access.offset // access.storage.free


def _dimensions(access: NkiTensor) -> int:
    """Dimensions that are left when adjacent dense ones are merged."""
    count, inner = 1, None
    for size, stride in zip(reversed(access.shape[1:]), reversed(access.strides[1:]), strict=True):
        if size > 1:
            count += inner is None or stride != inner
            inner = stride * size
    return count


def read(access: NkiTensor, what: str) -> np.ndarray:
    """The elements of a tensor, as they are held; every one must have been written. Zeros where nothing is computed."""
    if not access.storage.machine.computes:
        return np.broadcast_to(np.zeros((), access.dtype.host), access.shape)
    written = access.storage.written
    if not written.everywhere:
        missing = access.size - written.count(access.shape, access.strides, access.offset)
        if missing:
            rule = "psum-uninitialised" if access.storage.region is Region.psum else "uninitialised"
            refuse(rule, f"{missing} of {access.size} elements of {what} {access} have not been written")
    return access.array


def as_float(values: np.ndarray) -> np.ndarray:
    """Widened to float32, as engines do with what they read."""
    return values if values.dtype == FP32 else values.astype(FP32)


def read_float(access: NkiTensor, what: str) -> np.ndarray:
    return as_float(read(access, what))


def destination(access: NkiTensor) -> NkiTensor:
    """Refuse to write an array of the caller that is read only, or one element twice in one instruction."""
    source = access.storage.source
    if source is not None:
        if not source.flags.writeable:
            refuse("input-written", f"{access} is an argument, and its array is read only; pass one that is not")
        access.storage.modified = True
    if not disjoint(access.shape, access.strides):
        refuse("overlapping-write", f"several indices of dst {access}, strides {access.strides}, are one element")
    return access


def no_overlap(dst: NkiTensor, src: NkiTensor, what: str, in_place: bool = True) -> None:
    """Refuse a source that shares memory with dst, unless an instruction works in place, element by element."""
    if dst.storage is not src.storage or (in_place and dst.same_elements(src)):
        return
    if np.shares_memory(dst.array, src.array):
        refuse("overlap", f"{what} {src} and dst {dst} share elements that are not the same index by index")


def write(machine: Machine, dst: NkiTensor, values: np.ndarray) -> None:
    """Round once and store; `values` have the elements of dst in order."""
    destination(dst)
    if not machine.computes:
        return
    result = rounded(values, dst.dtype, machine.precise)
    if result.shape != dst.shape:
        result = result.reshape(dst.shape)
    dst.array[...] = result
    written(dst)


def written(dst: NkiTensor, by_matmul: bool = False) -> None:
    """Note that all of dst holds something."""
    storage = dst.storage
    whole = dst.size == storage.size
    if not storage.written.everywhere:
        storage.written.mark(dst.shape, dst.strides, dst.offset, whole, True)
    if storage.started is not None:
        storage.started.mark(dst.shape, dst.strides, dst.offset, whole, by_matmul)


def same_sizes(dst: NkiTensor, data: NkiTensor, what: str = "data") -> None:
    """As many partitions, and elements a partition."""
    if dst.shape[0] != data.shape[0] or dst.size != data.size:
        refuse("shape", f"dst {dst} and {what} {data} differ in partitions or in elements a partition")


def matched(dst: NkiTensor, **sources: NkiTensor) -> None:
    """`same_sizes` and `no_overlap` for each source, by the name of the operand."""
    for what, source in sources.items():
        same_sizes(dst, source, what)
        no_overlap(dst, source, what)


def not_both_in_psum(first: NkiTensor, second: NkiTensor, names: str) -> None:
    """A Vector Engine instruction reads one tile of PSUM at most."""
    if first.storage.region is Region.psum and second.storage.region is Region.psum:
        refuse("both-in-psum", f"{names} are both in PSUM; copy one to SBUF")


def operand(value: Any, data: NkiTensor, what: str, dtype: DType | None = FLOAT32) -> Any:
    """A scalar as float32, or a (P, 1) tile as [P, 1, ...] that broadcasts along the free dimensions of data."""
    if isinstance(value, NkiTensor):
        access = tile(value, what)
        if access.shape[0] != data.shape[0] or access.free != 1:
            refuse("operand-shape", f"{what} {access} must be ({data.shape[0]}, 1) for {data}")
        if dtype is not None and access.dtype is not dtype:
            refuse("operand-dtype", f"{what} {access} must be {dtype}")
        return read_float(access, what).reshape((data.shape[0],) + (1,) * (data.ndim - 1))
    return scalar(value, what)


def scalar(value: Any, what: str) -> np.float32:
    """A number of the kernel, rounded to float32."""
    if type(value) not in (int, float, bool):
        refuse("operand", f"{what} must be a number or a tensor, not {value!r}")
    return np.float32(value)


def in_one_bank(dst: NkiTensor) -> None:
    """A result of the Tensor Engine lies in one bank of PSUM."""
    storage = dst.storage
    first = dst.offset % storage.free
    last = first + extent(dst.shape[1:], dst.strides[1:])
    size = dst.dtype.itemsize
    if first * size // BANK != ((last + 1) * size - 1) // BANK:
        refuse("psum-bank", f"dst {dst} reaches over more than one bank of {BANK} bytes a partition")


def flat(values: np.ndarray) -> np.ndarray:
    return values if values.ndim == 2 else values.reshape(values.shape[0], prod(values.shape[1:]))
