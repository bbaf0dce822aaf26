"""Instructions that move, fill and select; registers and the loops that count in them. Page of each: "nki.isa.<name>",
"nki.language.<name>" for loops, Neuron SDK 2.32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np

from .dtypes import UINT32
from .engines import ISSUED, DgeMode, Engine, NkiInstruction, OobMode, dma_modes, engine_of, needs
from .errors import refuse
from .indexing import VirtualRegister, integer, positive, select_index
from .indirect import IndirectTensor
from .isa_indirect import copy_indirect, transpose_indirect
from .machine import Machine, begin, current
from .operands import (
    HBM,
    PSUM,
    SBUF,
    as_float,
    matched,
    no_overlap,
    not_both_in_psum,
    read,
    same_sizes,
    scalar,
    tensor,
    tile,
    write,
)  # fmt: skip
from .operators import COMPARISONS, OPERATORS, operator_of
from .tensor import NkiTensor


def _count_dma(machine: Machine, dst: NkiTensor, src: NkiTensor) -> None:
    """Bytes that cross the border of the chip; elements that a pattern repeats count each time."""
    if not src.buffer.on_chip:
        machine.counters.dma_bytes_in += src.size * src.dtype.itemsize
    if not dst.buffer.on_chip:
        machine.counters.dma_bytes_out += dst.size * dst.dtype.itemsize


def _dma_operand(value: Any, what: str) -> NkiTensor:
    if isinstance(value, NkiTensor) and value.storage.region in PSUM:
        refuse("dma-psum", f"{what} {value} is in PSUM, which DMA cannot reach; copy it to SBUF")
    if isinstance(value, IndirectTensor):
        return value
    return tensor(value, what, HBM + SBUF)


def dma_copy(
    dst: NkiTensor, src: NkiTensor, priority: int | None = None, oob_mode: OobMode = OobMode.error,
    dge_mode: DgeMode = DgeMode.unknown, engine: Engine = Engine.unknown, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst = src between HBM and SBUF, elements in row-major order; another dtype goes through float32.

    Either may lie at indices on chip; rows at indices out of bounds are refused, or skipped with oob_mode.skip.
    """
    machine = begin("dma_copy")
    dma_modes(machine, dge_mode, oob_mode, priority, engine)
    dst, src = _dma_operand(dst, "dst"), _dma_operand(src, "src")
    if dst.size != src.size:
        refuse("shape", f"dst {dst} has {dst.size} elements, src {src} has {src.size}")
    if dge_mode is DgeMode.hwdge and dst.dtype is not src.dtype:
        refuse("dge-mode", f"hardware DGE moves bytes: dst {dst} and src {src} must have one dtype")
    if isinstance(dst, IndirectTensor) or isinstance(src, IndirectTensor):
        _check_offsets(dge_mode, dst, src)
        copy_indirect(machine, dst, src, oob_mode is OobMode.skip)
    else:
        no_overlap(dst, src, "src", in_place=False)
        write(machine, dst, _copied(read(src, "src"), dst, src))
    _count_dma(machine, dst, src)
    return ISSUED


def _check_offsets(dge_mode: DgeMode, *tensors: NkiTensor) -> None:
    for access in tensors:
        if isinstance(access, IndirectTensor) and access.offsets:
            if dge_mode not in (DgeMode.unknown, DgeMode.swdge):
                refuse("dge-mode", f"{access}: an index vector needs software DGE, not {dge_mode.name}")
            if prod(access.offsets[1:]) != 1:
                refuse("shape", f"{access}: the offsets {access.offsets} of dma_copy must be (P, 1)")


def _copied(values: np.ndarray, dst: NkiTensor, src: NkiTensor) -> np.ndarray:
    """Bit by bit between equal types, else through float32."""
    return values if dst.dtype is src.dtype else as_float(values)


_TRANSPOSES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def dma_transpose(
    dst: NkiTensor, src: NkiTensor, axes: tuple[int, ...] | None = None, priority: int | None = None,
    dge_mode: DgeMode = DgeMode.unknown, oob_mode: OobMode = OobMode.error, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst in SBUF = src with its dimensions as (1, 0), (2, 1, 0) or (3, 1, 2, 0)."""
    machine = begin("dma_transpose")
    dma_modes(machine, dge_mode, oob_mode, priority)
    src = _dma_operand(src, "src")
    by_vector = isinstance(src, IndirectTensor) and bool(src.offsets)
    expected = DgeMode.swdge if by_vector else DgeMode.hwdge
    if dge_mode not in (DgeMode.unknown, expected):
        refuse("dge-mode", f"dma_transpose takes unknown or {expected.name} here, not {dge_mode.name}")
    if oob_mode is OobMode.skip and not src.dynamic:
        refuse("indirect", f"oob_mode.skip is for a src that an index chooses, not {src}")
    tensor(dst, "dst", SBUF)
    order = _TRANSPOSES.get(src.ndim)
    if order is None or (axes is not None and tuple(axes) != order):
        refuse("shape", f"dma_transpose: axes {axes} of {src}; the pages have (1, 0), (2, 1, 0), (3, 1, 2, 0)")
    if dst.dtype is not src.dtype or dst.shape != tuple(src.shape[axis] for axis in order):
        refuse("shape", f"dst {dst} must have the dtype of src {src} and its dimensions as {order}")
    if dge_mode is DgeMode.hwdge:
        rows = src.shape[0]
        fits = rows == 16 if src.ndim == 2 else rows in (1, 2, 4, 8, 16) and rows * src.shape[-2] % 16 == 0
        if not fits or src.shape[-1] > 128 or src.dtype.itemsize != 2:
            refuse("dge-mode", f"hardware DGE cannot transpose {src}: 16 rows, at most 128 columns, 2 bytes an element")
    if isinstance(src, IndirectTensor):
        if by_vector:
            _check_gather_transpose(machine, src)
        transpose_indirect(machine, dst, src, order, oob_mode is OobMode.skip)
    else:
        no_overlap(dst, src, "src", in_place=False)
        write(machine, dst, read(src, "src").transpose(order))
    _count_dma(machine, dst, src)
    return ISSUED


def _check_gather_transpose(machine: Machine, src: IndirectTensor) -> None:
    """Page "nki.isa.dma_transpose", constraints of the indirect transpose."""
    needs(machine, 3, "an indirect DMA transpose")
    rows, (partitions, *columns) = src.shape[0], src.offsets
    if src.index_dtype is not UINT32:
        refuse("operand-dtype", f"{src}: the offsets must be uint32, not {src.index_dtype}")
    if src.dtype.itemsize != 2 or src.shape[-1] > 128:
        refuse("dge-mode", f"software DGE cannot transpose {src}: at most 128 columns, 2 bytes an element")
    if src.ndim == 4 and 1 not in src.shape[1:3]:
        refuse("shape", f"{src}: dimension 1 or 2 of four must be 1")
    if rows % 16:
        refuse("shape", f"{src}: {rows} rows are no multiple of 16")
    if len(columns) != 1 or partitions % 16 or not 16 <= partitions <= 128 or (columns[0] > 1 and partitions != 128):
        refuse("shape", f"offsets {src.offsets}: two dimensions, 16 to 128 rows in steps of 16, 128 with more columns")


def tensor_copy(
    dst: NkiTensor, src: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None
) -> NkiInstruction:
    """dst = src on chip; another dtype goes through float32. Not on the Scalar Engine of gen2."""
    machine = begin("tensor_copy")
    dst, src = tile(dst, "dst"), tile(src, "src")
    allowed = (
        (Engine.vector, Engine.scalar, Engine.gpsimd) if machine.generation > 2 else (Engine.vector, Engine.gpsimd)
    )
    engine_of(machine, engine, allowed, dst, src)
    matched(dst, src=src)
    write(machine, dst, _copied(read(src, "src"), dst, src))
    return ISSUED


def memset(dst: NkiTensor, value: float, engine: Engine = Engine.unknown, name: str | None = None) -> NkiInstruction:
    """Fill dst, on chip, with a constant of the kernel."""
    machine = begin("memset")
    engine_of(machine, engine, (Engine.vector, Engine.gpsimd), tile(dst, "dst"))
    if type(value) not in (int, float, bool):
        refuse("operand", f"value must be a number, not {value!r}")
    if not dst.dtype.is_float:
        limits = np.iinfo(dst.dtype.stored)
        if type(value) is float or not limits.min <= value <= limits.max:
            refuse("memset-value", f"value {value!r} is no integer of {dst.dtype}; pass an integer that it holds")
    if machine.trace is not None:
        machine.trace.flag(zero=value == 0)
    constant = np.float64(value) if not dst.dtype.is_float else np.float32(value)
    write(machine, dst, np.broadcast_to(constant, dst.shape))
    return ISSUED


def tensor_copy_predicated(
    dst: NkiTensor, src: Any, predicate: NkiTensor, reverse_pred: bool = False, name: str | None = None
) -> NkiInstruction:
    """dst = src where predicate is not 0. All of dst must have been written: the rest keeps what it holds."""
    machine = begin("tensor_copy_predicated")
    dst, predicate = tile(dst, "dst"), tile(predicate, "predicate")
    if predicate.dtype.name not in ("uint8", "uint16", "uint32"):
        refuse("operand-dtype", f"predicate {predicate} must be uint8, uint16 or uint32")
    same_sizes(dst, predicate, "predicate")
    chosen = (read(predicate, "predicate") != 0).reshape(dst.shape) ^ bool(reverse_pred)
    before = read(dst, "dst")
    if isinstance(src, NkiTensor):
        same_sizes(dst, tile(src, "src"), "src")
        if src.dtype is not dst.dtype:
            refuse("operand-dtype", f"src {src} must be {dst.dtype} as dst is")
        not_both_in_psum(src, predicate, "src and predicate")
        no_overlap(dst, src, "src")
        values: Any = read(src, "src").reshape(dst.shape)
    else:
        values = scalar(src, "src")
    write(machine, dst, np.where(chosen, values, before))
    return ISSUED


def _affine(dst: NkiTensor, pattern: Any, offset: int, channel_multiplier: int) -> np.ndarray:
    """[P, F] of offset + p * channel_multiplier + the pattern, in 32-bit integers."""
    counts = positive([count for _, count in pattern], "the pattern")
    if len(counts) > 4 or int(np.prod(counts)) != dst.free:
        refuse("shape", f"pattern {pattern} does not have the {dst.free} elements a partition of dst {dst}")
    values = np.arange(dst.shape[0], dtype=np.int64)[:, None] * integer(channel_multiplier, "channel_multiplier")
    values = values + integer(offset, "offset")
    for (step, _), count in zip(pattern, counts, strict=True):
        values = (values[:, :, None] + np.arange(count) * integer(step, "a step")).reshape(dst.shape[0], -1)
    return values.astype(np.int32)


def iota(
    dst: NkiTensor, pattern: Any, offset: int = 0, channel_multiplier: int = 0, name: str | None = None
) -> NkiInstruction:
    """dst[p, i] = offset + p * channel_multiplier + pattern[i], in SBUF."""
    machine = begin("iota")
    write(machine, dst, _affine(tile(dst, "dst", SBUF), pattern, offset, channel_multiplier))
    return ISSUED


def affine_select(
    dst: NkiTensor, pattern: Any, channel_multiplier: int, on_true_tile: NkiTensor, on_false_value: float,
    cmp_op: Any = None, offset: int = 0, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst = on_true_tile where the affine value compares with 0, else the constant; all in SBUF."""
    machine = begin("affine_select")
    dst, data = tile(dst, "dst", SBUF), tile(on_true_tile, "on_true_tile", SBUF)
    matched(dst, on_true_tile=data)
    compare = OPERATORS["equal"] if cmp_op is None else operator_of(machine, cmp_op, "cmp_op")
    if compare.name not in COMPARISONS:
        refuse("operator", f"cmp_op nl.{compare.name} does not compare")
    chosen = compare.function(_affine(dst, pattern, offset, channel_multiplier), 0) != 0
    values = _copied(read(data, "on_true_tile"), dst, data).reshape(dst.shape)
    write(machine, dst, np.where(chosen.reshape(dst.shape), values, scalar(on_false_value, "on_false_value")))
    return ISSUED


def _register(value: Any) -> VirtualRegister:
    if not isinstance(value, VirtualRegister):
        refuse("operand", f"{value!r} is no register")
    return value


def _writable(value: Any) -> VirtualRegister:
    if _register(value).frozen:
        refuse("register-frozen", "a loop owns this register; it cannot be written")
    return value  # type: ignore[no-any-return]


def _one(value: Any, what: str) -> NkiTensor:
    access = tensor(value, what, HBM + SBUF)
    if access.size != 1 or access.dtype.is_float:
        refuse("shape", f"{what} {access} must be a tensor of one integer")
    return access


def register_alloc(x: int | None = None) -> VirtualRegister:
    begin("register_alloc")
    return VirtualRegister(None if x is None else integer(x, "x"))


def register_move(dst: VirtualRegister, src: Any) -> None:
    begin("register_move")
    _writable(dst).value = select_index(src)


def register_load(dst: VirtualRegister, src: NkiTensor) -> None:
    """dst = a (1, 1) tile in SBUF."""
    machine = begin("register_load")
    if not machine.computes:
        if machine.assumed is None:
            refuse("not-implemented", "register_load without arithmetic: what is in memory decides what is issued")
        _one(src, "src")
        _writable(dst).value = machine.assumed
        return
    _writable(dst).value = int(read(_one(src, "src"), "src").reshape(-1)[0])


def register_store(dst: NkiTensor, src: VirtualRegister) -> None:
    """A (1, 1) tile in SBUF = src."""
    machine = begin("register_store")
    write(machine, _one(dst, "dst"), np.full(dst.shape, select_index(_register(src)), np.int64))


def _dynamic(machine: Machine, step: Any) -> int:
    """Step of a loop that runs on the device."""
    if not machine.unordered:
        refuse("loop", "a loop that runs on the device is not supported inside nl.no_reorder()")
    if type(step) is not int or step < 1:
        refuse("loop", f"step {step!r} must be a positive constant of the kernel")
    return step


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[VirtualRegister], Any], step: int = 1) -> None:
    """body_fun(i) for i in range(lower, upper, step); bounds may be registers, i is one that the loop owns."""
    step = _dynamic(current(), step)
    for i in range(select_index(lower), select_index(upper), step):
        if body_fun(VirtualRegister(i, frozen=True)) is not None:
            refuse("loop", "the body of fori_loop returns a value; carry what the next iteration needs in SBUF or HBM")


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """register = body_fun(register) while it is not 0."""
    _dynamic(current(), 1)
    register = _register(init)
    while select_index(register):
        register = body_fun(VirtualRegister(register.value))
        if not isinstance(register, VirtualRegister):
            refuse("loop", f"the body of while_loop returned {register!r}; it returns the register of the condition")


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[VirtualRegister]:
    """Registers that a `for` loop on the device counts in; deprecated since nki 0.6 in favour of fori_loop."""
    low, high = (0, start) if stop is None else (start, stop)
    return _counted(select_index(low), select_index(high), _dynamic(current(), step))


def _counted(low: int, high: int, step: int) -> Iterator[VirtualRegister]:
    for i in range(low, high, step):
        yield VirtualRegister(i, frozen=True)
