"""Selecting instructions of the Beta 1 API, the registers that they reduce into, and copies at offsets that are data.

Page of each: "nki.isa.<name>", Neuron SDK 2.26; of tensor_scalar_cumulative, whose example is in the tests of the
documentation of SDK 2.32 alone, the page of the present generation.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from . import arithmetic
from .beta_index import executed
from .beta_math import copied, data_type, new_tile, number_or_values, operator_named, tile
from .beta_search import DTYPES_OF_PREDICATES
from .beta_tensor import BetaTensor
from .dtypes import FLOAT32
from .engines import ReduceCmd
from .errors import refuse
from .machine import Machine, Registers, begin
from .operands import as_float
from .operators import COMPARISONS, applied

LOWEST = float(np.finfo(np.float32).min)
EXACT = 2**24
"""Up to here float32 holds every integer."""


def reduce_into(
    registers: Registers, command: ReduceCmd, result: BetaTensor | None, terms: np.ndarray, start: float, combine: Any
) -> None:
    """Reduce values [P] of an instruction into registers, as its command says, and give out what they hold.

    Raises:
        Refusal: the registers are used before a reset, or asked for without a command.
    """
    if command is ReduceCmd.idle:
        if result is not None:
            refuse("operand", "reduce_res with reduce_cmd.idle, which does not reduce")
        return
    if command is ReduceCmd.reset:
        registers.write(np.full(terms.shape, start, np.float32))
    else:
        before = np.float32(start) if command is ReduceCmd.reset_reduce else registers.read(terms.size)
        registers.write(combine(before, terms))
    if result is not None:
        if tile(result, "reduce_res").shape[0] != terms.size or result.size != terms.size:
            refuse("operand-shape", f"reduce_res {result} must be ({terms.size}, 1)")
        values = registers.read(terms.size).reshape(result.shape)
        result.write(values, np.ones(result.shape, np.bool_))


def _maximum(machine: Machine, reduce_op: Any) -> None:
    if operator_named(reduce_op, "reduce_op").name != "maximum":
        refuse("operator", f"reduce_op of {machine.operation} must be max")


def _bound(value: BetaTensor, data: BetaTensor, what: str) -> np.ndarray:
    """[P, 1, ...] of float32."""
    values, defined = tile(value, what).read()
    if value.size != data.shape[0] or value.shape[0] != data.shape[0] or value.dtype is not FLOAT32:
        refuse("operand-shape", f"{what} {value} must be float32 with one element of each partition of {data}")
    if not defined.all():
        refuse("uninitialised", f"{what} {value} has undefined elements")
    return values.reshape((-1,) + (1,) * (data.ndim - 1))


def range_select(
    *, on_true_tile: BetaTensor, comp_op0: Any, comp_op1: Any, bound0: BetaTensor, bound1: BetaTensor,
    reduce_cmd: ReduceCmd = ReduceCmd.idle, reduce_res: BetaTensor | None = None, reduce_op: Any = np.amax,
    range_start: int = 0, on_false_value: float = LOWEST, mask: Any = None, dtype: Any = None,
) -> BetaTensor:  # fmt: skip
    """on_true_tile where range_start + its free index fulfils both comparisons with bounds of its partition, else the
    lowest float32; the largest element of a partition goes to the registers of the Vector Engine. From gen3 on."""
    machine = begin("range_select")
    if machine.generation < 3:
        refuse("target", "range_select needs gen3")
    _maximum(machine, reduce_op)
    if np.float32(on_false_value) != np.float32(LOWEST):
        refuse("operand", f"on_false_value {on_false_value} must be the lowest float32")
    if not tile(on_true_tile, "on_true_tile").dtype.is_float:
        refuse("operand-dtype", f"on_true_tile {on_true_tile} must be of floats")
    comparisons = [operator_named(op, "comp_op") for op in (comp_op0, comp_op1)]
    for comparison in comparisons:
        if comparison.name not in COMPARISONS or comparison.name == "not_equal":
            refuse(
                "operator", f"comp_op {comparison.name} is none of equal, less, less_equal, greater and greater_equal"
            )
    values, defined = on_true_tile.read(mask)
    count = on_true_tile.size // on_true_tile.shape[0]
    if not 0 <= int(range_start) <= EXACT - count:
        refuse("operand", f"range_start {range_start}: indices leave the range of 2^24 that float32 compares exactly")
    places = (int(range_start) + np.arange(count, dtype=np.float32)).reshape((1, *on_true_tile.shape[1:]))
    chosen = np.ones(on_true_tile.shape, np.bool_)
    for comparison, bound, what in zip(comparisons, (bound0, bound1), ("bound0", "bound1"), strict=True):
        chosen &= comparison.function(places, _bound(bound, on_true_tile, what)) != 0
    result = np.where(chosen, as_float(values), np.float32(LOWEST))
    sound = defined | ~chosen
    _reduced_maximum(machine, reduce_cmd, reduce_res, result, sound)
    return new_tile(result, sound, data_type(dtype, on_true_tile.dtype), ran=executed(mask, on_true_tile.shape))


def _reduced_maximum(
    machine: Machine, command: ReduceCmd, result: BetaTensor | None, values: np.ndarray, sound: np.ndarray
) -> None:
    if command is not ReduceCmd.idle and not sound.all():
        refuse("uninitialised", f"{(~sound).sum()} undefined elements are reduced")
    largest = values.reshape(len(values), -1).max(axis=1)
    reduce_into(machine.vector_registers, command, result, largest, -np.inf, np.maximum)


def select_reduce(
    *, dst: BetaTensor, predicate: BetaTensor, on_true: BetaTensor, on_false: Any, reduce_res: BetaTensor | None = None,
    reduce_cmd: ReduceCmd = ReduceCmd.idle, reduce_op: Any = np.amax, reverse_pred: bool = False, mask: Any = None,
    dtype: Any = None,
) -> None:  # fmt: skip
    """dst = on_true where predicate is not 0, else on_false, a number or (P, 1); the largest element of a partition
    goes to the registers of the Vector Engine."""
    machine = begin("select_reduce")
    _maximum(machine, reduce_op)
    if not tile(predicate, "predicate").shape == tile(on_true, "on_true").shape == tile(dst, "dst").shape:
        refuse("shape", f"dst {dst}, predicate {predicate} and on_true {on_true} differ in shape")
    if predicate.dtype not in DTYPES_OF_PREDICATES:
        refuse("operand-dtype", f"predicate {predicate} must be of integers of 8 or 16 bits")
    (flags, flagged), (values, defined) = predicate.read(), number_or_values(on_true)
    other = _bound(on_false, on_true, "on_false") if isinstance(on_false, BetaTensor) else np.float32(on_false)
    chosen = (flags != 0) ^ bool(reverse_pred)
    result = np.where(chosen, values, other).astype(np.float32)
    complete = flagged & (defined | ~chosen)
    _reduced_maximum(machine, reduce_cmd, reduce_res, result, complete)
    dst.write(result, complete, executed(mask, dst.shape))


def tensor_scalar_cumulative(
    *, src: BetaTensor, dst: BetaTensor, op0: Any, op1: Any, imm0: Any, imm1: Any = None,
    reduce_cmd: ReduceCmd = ReduceCmd.reset_reduce,
) -> None:  # fmt: skip
    """dst[:, i] = dst[:, i - 1] <op1> (src[:, i] <op0> imm0) along the flattened free dimensions.

    It starts from the registers (reduce), from imm1 (load_reduce), or from what op1 leaves alone (reset_reduce), and
    leaves its last element in the registers.
    """
    machine = begin("tensor_scalar_cumulative")
    first, second = operator_named(op0, "op0"), operator_named(op1, "op1")
    if second.name not in arithmetic.IDENTITIES:
        refuse("operator", f"op1 {second.name} is none of {', '.join(arithmetic.IDENTITIES)}")
    values, defined = number_or_values(tile(src, "src"))
    if tile(dst, "dst").shape != src.shape:
        refuse("shape", f"src {src} and dst {dst} differ in shape")
    operand = _bound(imm0, src, "imm0") if isinstance(imm0, BetaTensor) else np.float32(imm0)
    terms = applied(first, values, operand, False).reshape(len(values), -1)
    if reduce_cmd is ReduceCmd.reset_reduce:
        start: Any = np.float32(arithmetic.IDENTITIES[second.name])
    elif reduce_cmd is ReduceCmd.reduce:
        start = machine.vector_registers.read(len(values))
    elif reduce_cmd is ReduceCmd.load_reduce and imm1 is not None:
        start = _bound(imm1, src, "imm1") if isinstance(imm1, BetaTensor) else np.float32(imm1)
    else:
        refuse("operand", f"reduce_cmd {reduce_cmd} of tensor_scalar_cumulative; load_reduce takes imm1")
    result = arithmetic.scan(partial(applied, second, reverse=False), start, terms)
    if defined.all():
        machine.vector_registers.write(result[:, -1])
    sound = np.logical_and.accumulate(defined.reshape(result.shape), axis=1)
    dst.write(result.reshape(dst.shape), sound.reshape(dst.shape))


def tensor_copy_dynamic_src(src: BetaTensor, *, mask: Any = None, dtype: Any = None, engine: Any = None) -> BetaTensor:
    """A new tile in SBUF with the elements of an access whose offsets are data."""
    return copied("tensor_copy_dynamic_src", src, dtype, mask)
