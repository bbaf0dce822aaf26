"""Instructions that move elements to where an index or a mask says. Page of each: "nki.isa.<name>", Neuron SDK 2.32."""

from __future__ import annotations

from typing import Any

import numpy as np

from .engines import ISSUED, NkiInstruction
from .errors import refuse
from .machine import begin
from .operands import SBUF, as_float, flat, no_overlap, read, same_sizes, tile, write
from .operators import operator_of
from .tensor import NkiTensor

QUADRANT = 32
CORE = 16
"""Partitions that each processor of GpSimd reaches."""
_UNMODIFIED = 255


def _same_dtype(dst: NkiTensor, src: NkiTensor, what: str) -> None:
    if dst.dtype is not src.dtype:
        refuse("operand-dtype", f"dst {dst} must be {src.dtype} as {what} is")


def _chosen(index: NkiTensor, dtype: str, limit: int) -> np.ndarray:
    """[P, F] of indices below `limit`."""
    if index.dtype.name != dtype:
        refuse("operand-dtype", f"indices {index} must be {dtype}")
    indices = flat(read(index, "the indices")).astype(np.int64)
    if (indices >= limit).any():
        refuse("out-of-bounds", f"an index in {index} is {indices.max()}; there are {limit} elements a partition")
    return indices


def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst[p, i] = data[p, indices[p, i]], all in SBUF."""
    machine = begin("nc_n_gather")
    dst, data, indices = tile(dst, "dst", SBUF), tile(data, "data", SBUF), tile(indices, "indices", SBUF)
    _same_dtype(dst, data, "data")
    same_sizes(dst, indices, "indices")
    if data.shape[0] != dst.shape[0]:
        refuse("shape", f"data {data} must have the partitions of dst {dst}")
    no_overlap(dst, data, "data", in_place=False)
    write(machine, dst, np.take_along_axis(flat(read(data, "data")), _chosen(indices, "uint32", data.free), axis=1))
    return ISSUED


def local_gather(
    dst: NkiTensor, src_buffer: NkiTensor, index: NkiTensor, num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """Each 16 partitions of dst = those of src_buffer at the indices that stand in the same 16 partitions, column by
    column, `num_elem_per_idx` elements from each."""
    machine = begin("local_gather")
    dst, src, index = tile(dst, "dst", SBUF), tile(src_buffer, "src_buffer", SBUF), tile(index, "index", SBUF)
    _same_dtype(dst, src, "src_buffer")
    if src.shape[0] != index.shape[0] or src.shape[0] % CORE:
        refuse("shape", f"src_buffer {src} and index {index} must have the same multiple of {CORE} partitions")
    if num_elem_per_idx not in (1, 2, 4, 8, 16, 32):
        refuse("operand", f"num_elem_per_idx {num_elem_per_idx!r} is none of 1, 2, 4, 8, 16 and 32")
    available = index.free * CORE
    count = available if num_valid_indices is None else num_valid_indices
    if type(count) is not int or not 1 <= count <= min(available, 4096):
        refuse("operand", f"num_valid_indices {count!r}; a core has {available} indices and takes at most 4096")
    if dst.shape[0] != src.shape[0] or dst.free != count * num_elem_per_idx:
        refuse("shape", f"dst {dst} must be {src.shape[0]} partitions of {count * num_elem_per_idx} elements")
    no_overlap(dst, src, "src_buffer", in_place=False)
    chosen, values = _chosen(index, "uint16", src.free - num_elem_per_idx + 1), flat(read(src, "src_buffer"))
    result = np.empty((dst.shape[0], dst.free), values.dtype)
    for first in range(0, src.shape[0], CORE):
        core = slice(first, first + CORE)
        starts = chosen[core].T.reshape(-1)[:count]
        result[core] = values[core][:, (starts[:, None] + np.arange(num_elem_per_idx)).reshape(-1)]
    write(machine, dst, result)
    return ISSUED


def nc_stream_shuffle(dst: NkiTensor, src: NkiTensor, shuffle_mask: Any, name: str | None = None) -> NkiInstruction:
    """Partition i of each 32 of dst = partition shuffle_mask[i] of those of src; 255 leaves it as it is."""
    machine = begin("nc_stream_shuffle")
    dst, src = tile(dst, "dst"), tile(src, "src")
    mask = list(shuffle_mask) if isinstance(shuffle_mask, tuple | list) else []
    if len(mask) != QUADRANT or any(type(entry) is not int for entry in mask):
        refuse("operand", f"shuffle_mask must be {QUADRANT} ints")
    if any(not (0 <= entry < QUADRANT or entry == _UNMODIFIED) for entry in mask):
        refuse("operand", f"shuffle_mask {mask}: entries are 0 to {QUADRANT - 1}, or {_UNMODIFIED}")
    _same_dtype(dst, src, "src")
    if dst.free != src.free:
        refuse("shape", f"dst {dst} and src {src} must have as many elements a partition")
    values, result = flat(read(src, "src")), np.zeros((dst.shape[0], dst.free), dst.dtype.host)
    moved = np.zeros(dst.shape[0], np.bool_)
    for partition in range(dst.shape[0]):
        first, entry = partition - partition % QUADRANT, mask[partition % QUADRANT]
        first = 0 if src.shape[0] <= QUADRANT else first
        if entry == _UNMODIFIED:
            continue
        if first + entry >= src.shape[0]:
            refuse("out-of-bounds", f"partition {partition} of dst takes {first + entry} of src {src}")
        result[partition], moved[partition] = values[first + entry], True
    for chosen in np.flatnonzero(moved):
        write(machine, dst.slice(0, int(chosen), int(chosen) + 1), result[chosen : chosen + 1])
    return ISSUED


_ACROSS = ("add", "average", "maximum", "bitwise_or", "bitwise_and")


def tensor_partition_reduce(dst: NkiTensor, op: Any, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst[1, F] = data[P, F] reduced over its partitions, on GpSimd."""
    machine = begin("tensor_partition_reduce")
    dst, data = tile(dst, "dst", SBUF), tile(data, "data", SBUF)
    operator = operator_of(machine, op)
    if operator.name not in _ACROSS or operator.reduction is None:
        refuse("operator", f"nl.{operator.name}; tensor_partition_reduce has {', '.join(_ACROSS)}")
    if dst.shape[0] != 1 or dst.free != data.free:
        refuse("shape", f"dst {dst} must be one partition of {data.free} elements")
    no_overlap(dst, data, "data", in_place=False)
    values = flat(read(data, "data"))
    if operator.bits and (data.dtype.is_float or dst.dtype is not data.dtype):
        refuse("operand-dtype", f"dst {dst} and data {data} must be integers of one type")
    write(machine, dst, operator.reduction(values if operator.bits else as_float(values), axis=0))
    return ISSUED
