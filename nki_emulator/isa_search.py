"""Instructions that look for values in each partition. Page of each: "nki.isa.<name>", Neuron SDK 2.32."""

from __future__ import annotations

from typing import Any

import numpy as np

from .engines import ISSUED, NkiInstruction, needs
from .errors import refuse
from .machine import begin
from .operands import SBUF, flat, no_overlap, read, read_float, same_sizes, tile, write
from .tensor import NkiTensor

EIGHT = 8
LONGEST = 16384
"""Elements a partition that max8 and its like read, at most."""


def _searched(data: NkiTensor, what: str, dimensions: int = 3) -> np.ndarray:
    """[P, F] in float32, with 8 to 16,384 elements a partition."""
    if data.ndim > dimensions + 1 or not EIGHT <= data.free <= LONGEST:
        refuse("shape", f"{what} {data} must have {EIGHT} to {LONGEST} elements a partition in {dimensions} dimensions")
    return flat(read_float(data, what))


def _eight(access: NkiTensor, data: NkiTensor, what: str) -> None:
    if access.shape[0] != data.shape[0] or access.free != EIGHT:
        refuse("shape", f"{what} {access} must be ({data.shape[0]}, {EIGHT})")


def _indices(dst: NkiTensor, what: str) -> None:
    if dst.dtype.name not in ("uint16", "uint32"):
        refuse("operand-dtype", f"{what} {dst} must be uint16 or uint32")


def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst[P, 8] = the largest values of each partition, in descending order."""
    machine = begin("max8")
    dst, src = tile(dst, "dst"), tile(src, "src")
    values = _searched(src, "src")
    _eight(dst, src, "dst")
    if dst.ndim != 2:
        refuse("shape", f"dst {dst} must have two dimensions")
    no_overlap(dst, src, "src", in_place=False)
    write(machine, dst, -np.sort(-values, axis=1)[:, :EIGHT])
    return ISSUED


def _matches(values: np.ndarray, targets: np.ndarray, order: Any) -> np.ndarray:
    """[P, 8] of the place of each wanted value, -1 where there is none; equal ones take one place after the other, in
    the order of the slots."""
    matches = np.full(targets.shape, -1, np.int64)
    for row, (data, eight) in enumerate(zip(values, targets, strict=True)):
        taken = np.zeros(data.size, np.bool_)
        for slot in order:
            places = np.flatnonzero((data == eight[slot]) & ~taken)
            if places.size:
                matches[row, slot] = places[0]
                taken[places[0]] = True
    return matches


def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst[P, 8] = where each of vals[P, 8] stands first in data, all ones where it does not."""
    machine = begin("nc_find_index8")
    dst, data, vals = tile(dst, "dst"), tile(data, "data"), tile(vals, "vals")
    values = _searched(data, "data")
    _eight(dst, data, "dst")
    _eight(vals, data, "vals")
    _indices(dst, "dst")
    matches = _matches(values, flat(read_float(vals, "vals")), range(EIGHT))
    write(machine, dst, np.where(matches < 0, np.iinfo(dst.dtype.stored).max, matches).astype(np.int64))
    return ISSUED


def nc_match_replace8(
    dst: NkiTensor, data: NkiTensor, vals: NkiTensor, imm: float, dst_idx: NkiTensor | None = None,
    name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst = data with the first occurrence of each of vals[P, 8] replaced; equal values go from the last slot on."""
    machine = begin("nc_match_replace8")
    dst, data, vals = tile(dst, "dst"), tile(data, "data"), tile(vals, "vals")
    values = _searched(data, "data").copy()
    _eight(vals, data, "vals")
    same_sizes(dst, data, "data")
    no_overlap(dst, data, "data")
    if type(imm) not in (int, float):
        refuse("operand", f"imm {imm!r} must be a number")
    matches = _matches(values, flat(read_float(vals, "vals")), range(EIGHT - 1, -1, -1))
    rows, slots = np.nonzero(matches >= 0)
    values[rows, matches[rows, slots]] = np.float32(imm)
    write(machine, dst, values)
    if dst_idx is not None:
        index = tile(dst_idx, "dst_idx")
        _eight(index, data, "dst_idx")
        _indices(index, "dst_idx")
        write(machine, index, np.where(matches < 0, np.iinfo(index.dtype.stored).max, matches).astype(np.int64))
    return ISSUED


def nonzero_with_count(
    dst: NkiTensor, src: NkiTensor, index_offset: int = 0, padding_val: int = -1, name: str | None = None
) -> NkiInstruction:
    """dst[p, :-1] = the indices of the elements of src[p] that are not 0, then padding, and dst[p, -1] their number,
    for partitions 0, 16, ..., 112."""
    machine = begin("nonzero_with_count")
    needs(machine, 3)
    dst, src = tile(dst, "dst", SBUF), tile(src, "src", SBUF)
    if dst.dtype.name != "int32" or src.dtype.name not in ("float32", "int32"):
        refuse("operand-dtype", f"dst {dst} must be int32 and src {src} float32 or int32")
    if dst.shape[0] != src.shape[0] or dst.free != src.free + 1:
        refuse("shape", f"dst {dst} must be {src.shape[0]} partitions of {src.free + 1} elements")
    if type(index_offset) is not int or type(padding_val) is not int:
        refuse("operand", f"index_offset {index_offset!r} and padding_val {padding_val!r} must be ints")
    for partition in range(0, src.shape[0], 16):
        values = flat(read(src.slice(0, partition, partition + 1), "src"))[0]
        places = np.flatnonzero(values) + index_offset
        result = np.full((1, dst.free), padding_val, np.int64)
        result[0, : places.size], result[0, -1] = places, places.size
        write(machine, dst.slice(0, partition, partition + 1), result)
    return ISSUED
