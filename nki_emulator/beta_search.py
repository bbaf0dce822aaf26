"""Searching and gathering instructions of the Beta 1 API. Page of each: "nki.isa.<name>" or "nki.language.<name>",
Neuron SDK 2.26."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .beta_index import executed
from .beta_math import data_type, flat, new_tile, tile
from .beta_tensor import BetaTensor
from .dtypes import DTYPES, FLOAT32, INT32, UINT32
from .errors import refuse
from .machine import begin
from .operands import as_float

EIGHT = 8
SEARCHED = (8, 16384)
"""Elements a partition that a search reads."""
LANES_OF_A_CORE = 16
"""Partitions of one of the eight cores of GpSimd."""
QUADRANT = 32
UNMOVED = 255
"""In a shuffle mask: the partition keeps what it holds."""
GATHERED = (1, 2, 4, 8, 16, 32)


def _searched(data: BetaTensor, mask: Any, what: str, least: int = SEARCHED[0]) -> tuple[np.ndarray, np.ndarray]:
    """[P, F] of float32 and which elements are searched; all of those must be defined."""
    values, defined = (part.reshape(data.shape[0], -1) for part in tile(data, what).read(mask))
    if not least <= values.shape[1] <= SEARCHED[1]:
        refuse(
            "search-size",
            f"{what} {data} has {values.shape[1]} elements a partition; {least} to {SEARCHED[1]} are searched",
        )
    ran = executed(mask, data.shape)
    part = np.ones(values.shape, np.bool_) if ran is None else ran.reshape(values.shape)
    if (part & ~defined).any():
        refuse("uninitialised", f"{what} {data} is searched; {(part & ~defined).sum()} of its elements are undefined")
    return as_float(values), part


def _eight(vals: BetaTensor, partitions: int) -> np.ndarray:
    """[P, 8] of float32."""
    values, defined = flat(tile(vals, "vals"))
    if values.shape != (partitions, EIGHT):
        refuse("operand-shape", f"vals {vals} must have {partitions} partitions of 8 elements")
    if not defined.all():
        refuse("uninitialised", f"vals {vals} has undefined elements")
    return values


def max8(*, src: BetaTensor, mask: Any = None, dtype: Any = None) -> BetaTensor:
    """A new tile [P, 8]: the largest elements of each partition, descending."""
    begin("max8")
    values, part = _searched(src, mask, "src")
    if part.any(axis=1).any() and part.sum(axis=1)[part.any(axis=1)].min() < EIGHT:
        refuse("search-size", f"src {src} is masked to fewer than 8 elements of a partition")
    largest = -np.sort(-np.where(part, values, np.float32(-np.inf)), axis=1)[:, :EIGHT]
    return new_tile(largest, part.any(axis=1, keepdims=True), data_type(dtype, src.dtype))


def _matched(values: np.ndarray, part: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """[P, 8] of the places where each wanted value occurs first; one that was found before is not found again."""
    places = np.zeros(targets.shape, np.int64)
    remaining = part.copy()
    for partition in np.flatnonzero(part.any(axis=1)):
        for i, value in enumerate(targets[partition]):
            matches = np.flatnonzero(remaining[partition] & (values[partition] == value))
            if not matches.size:
                refuse(
                    "search-missing",
                    f"value {value} of vals is not in partition {partition}; what happens is undefined",
                )
            places[partition, i] = matches[0]
            remaining[partition, matches[0]] = False
    return places


def nc_find_index8(*, data: BetaTensor, vals: BetaTensor, mask: Any = None, dtype: Any = None) -> BetaTensor:
    """A new tile [P, 8]: where each of 8 values of a partition occurs first, in uint32 or uint16."""
    begin("nc_find_index8")
    result = data_type(dtype, UINT32)
    if result.name not in ("uint16", "uint32"):
        refuse("operand-dtype", f"dtype {result} of nc_find_index8; indices are uint16 or uint32")
    values, part = _searched(data, mask, "data")
    targets = _eight(vals, len(values))
    first = np.array(
        [[np.flatnonzero(p & (v == w))[:1] for w in ws] or [] for v, p, ws in zip(values, part, targets, strict=True)],
        object,
    )
    if any(not cell.size for row in first for cell in row):
        refuse("search-missing", f"a value of vals {vals} is not in data {data}; what happens is undefined")
    return new_tile(np.array([[int(cell[0]) for cell in row] for row in first]), True, result)


def nc_match_replace8(
    *, data: BetaTensor, vals: BetaTensor, imm: Any, dst_idx: BetaTensor | None = None, mask: Any = None,
    dtype: Any = None,
) -> BetaTensor:  # fmt: skip
    """A new tile: data with the first occurrence of each of 8 values of a partition replaced by a number.

    Where they were goes to `dst_idx`, counted along the flattened free dimensions.
    """
    begin("nc_match_replace8")
    values, part = _searched(data, mask, "data", least=1)
    places = _matched(values, part, _eight(vals, len(values)))
    replaced = values.copy()
    rows = np.flatnonzero(part.any(axis=1))
    replaced[rows[:, None], places[rows]] = np.float32(imm)
    if dst_idx is not None:
        if dst_idx.size != places.size or tile(dst_idx, "dst_idx").dtype.is_float:
            refuse("operand-shape", f"dst_idx {dst_idx} must hold 8 integers of each partition")
        ran = np.broadcast_to(part.any(axis=1, keepdims=True), places.shape).reshape(dst_idx.shape)
        dst_idx.write(places.reshape(dst_idx.shape), np.ones(dst_idx.shape, np.bool_), ran)
    return new_tile(replaced.reshape(data.shape), True, data_type(dtype, data.dtype), ran=executed(mask, data.shape))


def nc_stream_shuffle(
    src: BetaTensor, dst: BetaTensor, shuffle_mask: Sequence[int], *, dtype: Any = None, mask: Any = None
) -> None:
    """dst[32 q + i] = src[32 q + shuffle_mask[i]] in each quadrant q of 32 partitions; 255 leaves a partition alone."""
    begin("nc_stream_shuffle")
    values, defined = (part.reshape(src.shape[0], -1).copy() for part in tile(src, "src").read())
    if tile(dst, "dst").dtype is not src.dtype or dst.size // dst.shape[0] != values.shape[1]:
        refuse("shape", f"src {src} and dst {dst} must have one dtype and as many elements a partition")
    if len(shuffle_mask) != QUADRANT or any(not 0 <= int(i) < QUADRANT and int(i) != UNMOVED for i in shuffle_mask):
        refuse("operand", f"shuffle_mask {list(shuffle_mask)} must be 32 partitions of a quadrant, or 255")
    whole = -(-max(len(values), dst.shape[0]) // QUADRANT) * QUADRANT
    lines = [q + int(i) if int(i) != UNMOVED else -1 for q in range(0, whole, QUADRANT) for i in shuffle_mask]
    source = np.array(lines[: dst.shape[0]])
    moved = source >= 0
    if (source[moved] >= len(values)).any():
        refuse("out-of-bounds", f"shuffle_mask reads partition {source.max()} of src {src}")
    result, sound = values[source].reshape(dst.shape), defined[source].reshape(dst.shape)
    ran = np.broadcast_to(moved.reshape((-1,) + (1,) * (dst.ndim - 1)), dst.shape)
    chosen = executed(mask, dst.shape)
    dst.write(result, sound, ran if chosen is None else ran & chosen)


def local_gather(
    src_buffer: BetaTensor, index: BetaTensor, num_elem_per_idx: int = 1, num_valid_indices: int | None = None, *,
    mask: Any = None,
) -> BetaTensor:  # fmt: skip
    """A new tile [P, n, num_elem_per_idx]: each group of 16 partitions gathers by the indices that lie in it.

    Indices of a group are taken along its partitions first; they count elements of a partition.
    """
    begin("local_gather")
    if mask is not None:
        refuse("not-implemented", "local_gather with a mask")
    values, defined = flat(tile(src_buffer, "src_buffer"))
    partitions = len(values)
    if tile(index, "index").dtype.name != "uint16" or index.shape[0] != partitions or partitions % LANES_OF_A_CORE:
        refuse("operand-shape", f"index {index} must be uint16, with the partitions of {src_buffer}, a multiple of 16")
    if num_elem_per_idx not in GATHERED:
        refuse("operand", f"num_elem_per_idx {num_elem_per_idx} is none of {GATHERED}")
    places, placed = index.read()
    if not placed.all():
        refuse("uninitialised", f"index {index} has undefined elements")
    per_core = places.reshape(partitions // LANES_OF_A_CORE, LANES_OF_A_CORE, -1)
    count = per_core[0].size if num_valid_indices is None else int(num_valid_indices)
    if not 0 < count <= min(per_core[0].size, 4096):
        refuse("operand", f"num_valid_indices {count} of {per_core[0].size} indices of a core, at most 4096")
    lines = per_core.transpose(0, 2, 1).reshape(len(per_core), -1)[:, :count].astype(np.int64)
    taken = (lines[:, :, None] + np.arange(num_elem_per_idx)).reshape(len(lines), -1)
    if taken.max() >= values.shape[1]:
        refuse("out-of-bounds", f"index {taken.max()} in a partition of {src_buffer}; what happens is undefined")
    rows = np.repeat(taken, LANES_OF_A_CORE, axis=0)
    shape = (partitions, count, num_elem_per_idx)
    pair = [np.take_along_axis(part, rows, axis=1).reshape(shape) for part in (values, defined)]
    return new_tile(pair[0], pair[1], src_buffer.dtype)


def gather_flattened(data: BetaTensor, indices: BetaTensor, *, mask: Any = None, dtype: Any = None) -> BetaTensor:
    """A new tile of the shape of `indices`: of each partition of data, flattened, the elements that they name."""
    begin("gather_flattened")
    values, defined = flat(tile(data, "data"))
    places, placed = tile(indices, "indices").read(mask)
    if indices.dtype is not UINT32:
        refuse("operand-dtype", f"indices {indices} must be uint32")
    ran = executed(mask, indices.shape)
    used = placed if ran is None else ran
    if not placed[used].all():
        refuse("uninitialised", f"indices {indices} has undefined elements")
    lines = np.where(used, places, 0).reshape(len(values), -1).astype(np.int64)
    if lines.max() >= values.shape[1]:
        refuse("out-of-bounds", f"index {lines.max()} in a partition of {data}; what is read is garbage")
    pair = [np.take_along_axis(part, lines, axis=1).reshape(indices.shape) for part in (values, defined)]
    return new_tile(pair[0], pair[1], data_type(dtype, data.dtype), ran=ran)


def sequence_bounds(*, segment_ids: BetaTensor, dtype: Any = None) -> BetaTensor:
    """A new tile [1, 2, n]: of each element where its segment starts and ends; n and -1 for padding, whose id is 0."""
    begin("sequence_bounds")
    result = data_type(dtype, segment_ids.dtype)
    values, defined = tile(segment_ids, "segment_ids").read()
    if segment_ids.ndim != 2 or len(values) != 1 or {segment_ids.dtype, result} - {FLOAT32, INT32}:
        refuse("operand-shape", f"segment_ids {segment_ids} must be (1, n) of float32 or int32")
    if not defined.all():
        refuse("uninitialised", f"segment_ids {segment_ids} has undefined elements")
    line, n = values[0], values.shape[1]
    changes = np.flatnonzero(np.concatenate(([True], line[1:] != line[:-1], [True])))
    lengths = np.diff(changes)
    starts, ends = np.repeat(changes[:-1], lengths), np.repeat(changes[1:], lengths)
    bounds = np.stack([np.where(line == 0, n, starts), np.where(line == 0, -1, ends)])
    return new_tile(bounds[None].astype(np.int32), True, result)


DTYPES_OF_PREDICATES = frozenset(DTYPES[name] for name in ("int8", "uint8", "int16", "uint16", "bool_"))
