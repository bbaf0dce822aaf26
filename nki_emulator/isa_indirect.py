"""What DMA does with rows that lie at indices on chip. Pages: "nki.isa.dma_copy", "nki.isa.dma_transpose" and
"nki.isa.dma_compute", Neuron SDK 2.32."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .dtypes import rounded
from .engines import ISSUED, NkiInstruction, OobMode, member
from .errors import refuse
from .indirect import IndirectTensor
from .machine import Machine, begin
from .operands import HBM, SBUF, as_float, no_overlap, read, tensor, write
from .operators import operator_of
from .tensor import NkiTensor

SOURCES = 16
"""Of one dma_compute, at most."""


def _checked(access: IndirectTensor, skip: bool) -> None:
    if not skip and not access.inside.all():
        count = int((~access.inside).sum())
        refuse("out-of-bounds", f"{count} of {access.inside.size} indices of {access} are out of bounds")


def gathered(access: NkiTensor, skip: bool, what: str) -> np.ndarray:
    """[shape] of the elements at the indices; rows that are skipped hold anything."""
    if not isinstance(access, IndirectTensor):
        return read(access, what)
    _checked(access, skip)
    written = access.storage.written
    if not written.everywhere:
        chosen = access.elements[access.inside].reshape(-1)
        flags = np.zeros(0) if written.flags is None else written.flags[chosen]
        if chosen.size and not (flags.size and flags.all()):
            refuse("uninitialised", f"elements of {what} {access} have not been written")
    return np.asarray(access.storage.data[access.elements])


def copy_indirect(machine: Machine, dst: NkiTensor, src: NkiTensor, skip: bool) -> None:
    """dst = src, row by row, without the rows whose index is out of bounds."""
    values = gathered(src, skip, "src")
    values = values if dst.dtype is src.dtype else as_float(values)
    scatter(machine, dst, values, src.inside if isinstance(src, IndirectTensor) else None, skip)


def scatter(machine: Machine, dst: NkiTensor, values: np.ndarray, mask: np.ndarray | None, skip: bool) -> None:
    """Rows of `values` where the `mask` is set, to those of dst that are in bounds."""
    if isinstance(dst, IndirectTensor):
        _checked(dst, skip)
        rows = values.reshape(dst.shape)
        chosen = dst.inside if mask is None or mask.size != dst.inside.size else dst.inside & mask
        _store(machine, dst, rows, chosen)
    elif mask is None or mask.all():
        write(machine, dst, values)
    elif mask.any():
        if dst.shape[0] != mask.size:
            refuse("shape", f"dst {dst} must have the {mask.size} rows that the indices choose")
        rows = values.reshape(dst.shape)
        for row in np.flatnonzero(mask):
            write(machine, NkiTensor.slice(dst, 0, int(row), int(row) + 1), rows[row : row + 1])


def _store(machine: Machine, dst: IndirectTensor, rows: np.ndarray, chosen: np.ndarray) -> None:
    """Rows to HBM; two rows of one index must be equal, since nothing orders them."""
    storage = dst.storage
    if storage.source is not None:
        if not storage.source.flags.writeable:
            refuse("input-written", f"{dst} is an argument, and its array is read only; pass one that is not")
        storage.modified = True
    values, elements = rounded(rows[chosen], dst.dtype, machine.precise), dst.elements[chosen]
    storage.data[elements] = values
    if not np.array_equal(storage.data[elements], values, equal_nan=values.dtype.kind == "f"):
        refuse("overlapping-write", f"rows of different values go to one index of dst {dst}")
    if not storage.written.everywhere:
        flags = storage.written._view((storage.size,), (1,), 0)
        flags[elements] = True


def transpose_indirect(
    machine: Machine, dst: NkiTensor, src: IndirectTensor, order: tuple[int, ...], skip: bool
) -> None:
    """dst = the rows of src that the indices choose, with their dimensions in another order."""
    values = gathered(src, skip, "src").transpose(order)
    last = order.index(0)
    if src.inside.all():
        write(machine, dst, values)
        return
    for row in np.flatnonzero(src.inside):
        keys = (slice(None),) * last + (slice(int(row), int(row) + 1),)
        write(machine, dst[keys], values[keys])


def dma_compute(
    dst: NkiTensor, srcs: Any, reduce_op: Any, scales: Any = None, unique_indices: bool = True,
    oob_mode: OobMode = OobMode.error, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst = the sum of the sources, in float32. With an index vector dst[i] += a tile, or dst += src[i]."""
    machine = begin("dma_compute")
    member(oob_mode, OobMode, "oob_mode")
    if not isinstance(srcs, tuple | list) or not 1 <= len(srcs) <= SOURCES:
        refuse("operand", f"srcs must be a list of 1 to {SOURCES} tensors")
    if operator_of(machine, reduce_op, "reduce_op").name != "add":
        refuse("operator", "reduce_op must be nl.add")
    if scales is not None and (len(scales) != len(srcs) or any(scale != 1.0 for scale in scales)):
        refuse("operand", f"scales {scales!r} must be 1.0 for each source")
    tensors = [dst, *srcs]
    for access, what in zip(tensors, ["dst", *(f"srcs[{i}]" for i in range(len(srcs)))], strict=True):
        if not isinstance(access, IndirectTensor):
            tensor(access, what, HBM + SBUF)
        if access.size != dst.size:
            refuse("shape", f"{what} {access} has {access.size} elements, dst {dst} has {dst.size}")
    chosen = [access for access in tensors if isinstance(access, IndirectTensor)]
    if chosen:
        _check_update(dst, list(srcs), unique_indices)
    elif oob_mode is OobMode.skip:
        refuse("indirect", "oob_mode.skip is for sources that an index vector chooses")
    skip = oob_mode is OobMode.skip
    if not isinstance(dst, IndirectTensor):
        for source in srcs:
            if not isinstance(source, IndirectTensor):
                no_overlap(dst, source, "a source")
    total = sum(as_float(gathered(source, skip, "a source")).reshape(dst.shape) for source in srcs)
    mask = next((access.inside for access in srcs if isinstance(access, IndirectTensor)), None)
    scatter(machine, dst, np.asarray(total), mask, skip)
    return ISSUED


def _check_update(dst: NkiTensor, srcs: list[NkiTensor], unique_indices: bool) -> None:
    """One of two sources is dst itself; indices are unique."""
    if len(srcs) != 2 or unique_indices is not True:
        refuse("operand", "an update through an index vector takes two sources and unique_indices=True")
    if not any(_same_place(dst, source) for source in srcs):
        refuse("operand", f"one source must be dst {dst} itself, which the other is added to")
    access = next(access for access in (dst, *srcs) if isinstance(access, IndirectTensor))
    kept = access.elements.reshape(access.inside.size, -1)[access.inside, 0]
    if np.unique(kept).size != kept.size and isinstance(dst, IndirectTensor):
        refuse("overlapping-write", f"two indices of {access} are the same; they must be unique")
    if prod(access.offsets[1:]) != 1:
        refuse("shape", f"{access}: the offsets {access.offsets} must be (P, 1)")


def _same_place(dst: NkiTensor, source: NkiTensor) -> bool:
    if isinstance(dst, IndirectTensor) and isinstance(source, IndirectTensor):
        return dst.storage is source.storage and np.array_equal(dst.elements, source.elements)
    return type(dst) is type(source) and dst.storage is source.storage and dst.same_elements(source)
