"""Instructions that reduce into the accumulator registers of an engine. Page: "nki.isa.<name>", Neuron SDK 2.32.

The registers of the Vector Engine are shared: what an instruction leaves there when its command is idle is not known.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .engines import ISSUED, NkiInstruction, ReduceCmd, member, needs
from .errors import refuse
from .machine import Machine, Registers, begin
from .operands import flat, matched, operand, read_float, tile, write
from .operators import (
    COMPARISONS,
    OPERATORS,
    Operator,
    arithmetic_operator,
    operator_of,
    stepped,
)  # fmt: skip
from .tensor import NkiTensor

FP32_MIN = float(np.finfo(np.float32).min)


def reduction(machine: Machine, op: Any, names: tuple[str, ...]) -> Operator:
    """One of the reductions that the page of an instruction names."""
    operator = operator_of(machine, op, "reduce_op")
    if operator.name not in names or operator.reduction is None:
        refuse("operator", f"reduce_op nl.{operator.name}; {machine.operation} has {', '.join(names)}")
    return operator


def accumulate(
    machine: Machine, registers: Registers, command: Any, operator: Operator | None, values: np.ndarray,
    data: NkiTensor, allowed: tuple[ReduceCmd, ...], initial: Any = None, what: str = "reduce_init",
) -> None:  # fmt: skip
    """Fold values[P, ...] into the registers as the command says."""
    member(command, ReduceCmd, "reduce_cmd")
    if command not in allowed:
        names = ", ".join(cmd.name for cmd in allowed)
        refuse("accumulator", f"reduce_cmd {command.name} is none of {machine.operation}: {names}")
    loads = command is ReduceCmd.load_reduce
    if loads == (initial is None):
        refuse("accumulator", f"{what} goes with reduce_cmd load_reduce, and only with it")
    if command is ReduceCmd.idle or operator is None:
        registers.forget()
        return
    total = operator.reduction(flat(values), axis=-1)  # type: ignore[misc]
    if command is ReduceCmd.reduce:
        total = operator.function(registers.read(data.shape[0]), total)
    elif loads:
        total = operator.function(np.reshape(operand(initial, data, what), -1), total)
    registers.write(np.broadcast_to(total, (data.shape[0],)))


def read_out(
    machine: Machine, registers: Registers, reduce_res: NkiTensor, data: NkiTensor, negate: bool = False
) -> None:
    """The accumulators into a (P, 1) tile."""
    values = registers.read(data.shape[0])
    if tile(reduce_res, "reduce_res").shape[0] != data.shape[0] or reduce_res.free != 1:
        refuse("operand-shape", f"reduce_res {reduce_res} must be ({data.shape[0]}, 1)")
    write(machine, reduce_res, -values if negate else values)


_CHAIN = (ReduceCmd.reset_reduce, ReduceCmd.reduce, ReduceCmd.load_reduce)


def tensor_scalar_reduce(
    dst: NkiTensor, data: NkiTensor, op0: Any, operand0: Any, reduce_op: Any, reduce_res: NkiTensor | None = None,
    reverse0: bool = False, reduce_cmd: ReduceCmd = ReduceCmd.reset_reduce, reduce_init: Any = None,
    reduce_res_negate: bool = False, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst = data <op0> operand0 and reduce_res(P, 1) = the reduction of it."""
    machine = begin("tensor_scalar_reduce")
    if reverse0:
        refuse("unsupported-operation", "tensor_scalar_reduce does not support reverse0 yet")
    dst, data = tile(dst, "dst"), tile(data, "data")
    matched(dst, data=data)
    values = stepped(
        read_float(data, "data"), arithmetic_operator(machine, op0, "op0"), operand0, False, data, "operand0"
    )
    operator = reduction(machine, reduce_op, ("add", "multiply", "maximum", "minimum"))
    registers = machine.vector_registers
    accumulate(machine, registers, reduce_cmd, operator, values, data, _CHAIN, reduce_init)
    write(machine, dst, values)
    if reduce_res is not None:
        read_out(machine, registers, reduce_res, data, reduce_res_negate)
    return ISSUED


def range_select(
    dst: NkiTensor, on_true_tile: NkiTensor, comp_op0: Any, comp_op1: Any, bound0: NkiTensor, bound1: NkiTensor,
    reduce_cmd: ReduceCmd = ReduceCmd.reset_reduce, reduce_res: NkiTensor | None = None, reduce_op: Any = None,
    range_start: int = 0, on_false_value: float = FP32_MIN, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst = on_true_tile where the index of a free element compares with both bounds(P, 1), else FP32_MIN."""
    machine = begin("range_select")
    needs(machine, 3)
    dst, data = tile(dst, "dst"), tile(on_true_tile, "on_true_tile")
    matched(dst, on_true_tile=data)
    if not data.dtype.is_float:
        refuse("operand-dtype", f"on_true_tile {data} must be of a float type")
    if type(range_start) is not int or range_start + data.free > 2**24:
        refuse("operand", f"range_start {range_start!r} must be an int, and every index below 2^24")
    if type(on_false_value) not in (int, float) or np.float32(on_false_value) != np.float32(FP32_MIN):
        refuse("operand", f"on_false_value {on_false_value!r} must be the least float32, {FP32_MIN}")
    index = (range_start + np.arange(data.free, dtype=np.float32))[None]
    chosen = np.ones((data.shape[0], data.free), np.bool_)
    for op, bound, what in ((comp_op0, bound0, "bound0"), (comp_op1, bound1, "bound1")):
        compare = operator_of(machine, op, "a comparison")
        if compare.name not in COMPARISONS or compare.name == "not_equal":
            refuse("operator", f"nl.{compare.name}; range_select compares with equal, less, greater and their like")
        if not isinstance(bound, NkiTensor):
            refuse("operand", f"{what} {bound!r} must be a tile of one element a partition")
        chosen &= compare.function(index, np.reshape(operand(bound, data, what), (-1, 1))) != 0
    values = flat(read_float(data, "on_true_tile"))
    result = np.where(chosen, values, np.float32(FP32_MIN)).reshape(dst.shape)
    _keep_maximum(machine, result, data, reduce_cmd, reduce_op)
    write(machine, dst, result)
    if reduce_res is not None:
        read_out(machine, machine.vector_registers, reduce_res, data)
    return ISSUED


def _keep_maximum(machine: Machine, result: np.ndarray, data: NkiTensor, reduce_cmd: Any, reduce_op: Any) -> None:
    """Into the Vector Engine's registers; selections know no other reduction."""
    operator = OPERATORS["maximum"] if reduce_op is None else operator_of(machine, reduce_op, "reduce_op")
    if operator.name != "maximum":
        refuse("operator", f"reduce_op nl.{operator.name}; {machine.operation} has nl.maximum")
    allowed = (ReduceCmd.idle, ReduceCmd.reset_reduce, ReduceCmd.reduce)
    accumulate(machine, machine.vector_registers, reduce_cmd, operator, result, data, allowed)
