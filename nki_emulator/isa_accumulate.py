"""Instructions that reduce into the accumulator registers of an engine. Page: "nki.isa.<name>", Neuron SDK 2.32.

The registers of the Vector Engine are shared: what an instruction leaves there when its command is idle is not known.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import arithmetic
from .arithmetic import IDENTITIES
from .dtypes import INT32, UINT32
from .engines import ISSUED, NkiInstruction, ReduceCmd, member, needs
from .errors import refuse
from .machine import Machine, Registers, begin
from .operands import as_float, flat, matched, not_both_in_psum, operand, read, read_float, tile, write
from .operators import (
    COMPARISONS,
    OPERATORS,
    Operator,
    activated,
    activation_of,
    applied,
    arithmetic_operator,
    operator_of,
    stepped,
)  # fmt: skip
from .tensor import NkiTensor

FP32_MIN = float(np.finfo(np.float32).min)
_ORDERS = {
    ("multiply", "add"), ("multiply", "subtract"), ("multiply", "bypass"), ("add", "bypass"), ("subtract", "bypass"),
    ("bypass", "bypass"),
}  # fmt: skip


def reduction(machine: Machine, op: Any, names: tuple[str, ...]) -> Operator:
    """One of the reductions that the page of an instruction names."""
    found = operator_of(machine, op, "reduce_op")
    if found.name not in names or found.reduction is None:
        refuse("operator", f"reduce_op nl.{found.name}; {machine.operation} has {', '.join(names)}")
    return found


def accumulate(
    machine: Machine, registers: Registers, command: Any, found: Operator | None, values: np.ndarray, data: NkiTensor,
    allowed: tuple[ReduceCmd, ...], initial: Any = None, what: str = "reduce_init",
) -> None:  # fmt: skip
    """Fold values[P, ...] into the registers as the command says."""
    member(command, ReduceCmd, "reduce_cmd")
    if command not in allowed:
        names = ", ".join(cmd.name for cmd in allowed)
        refuse("accumulator", f"reduce_cmd {command.name} is none of {machine.operation}: {names}")
    loads = command is ReduceCmd.load_reduce
    if loads == (initial is None):
        refuse("accumulator", f"{what} goes with reduce_cmd load_reduce, and only with it")
    if command is ReduceCmd.idle or found is None:
        registers.forget()
        return
    total = found.reduction(flat(values), axis=-1)  # type: ignore[misc]
    if command is ReduceCmd.reduce:
        total = found.function(registers.read(data.shape[0]), total)
    elif loads:
        total = found.function(np.reshape(operand(initial, data, what), -1), total)
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
    found = reduction(machine, reduce_op, ("add", "multiply", "maximum", "minimum"))
    registers = machine.vector_registers
    accumulate(machine, registers, reduce_cmd, found, values, data, _CHAIN, reduce_init)
    write(machine, dst, values)
    if reduce_res is not None:
        read_out(machine, registers, reduce_res, data, reduce_res_negate)
    return ISSUED


_CUMULATIVE = IDENTITIES | {"subtract": 0.0}


def tensor_scalar_cumulative(
    dst: NkiTensor, src: NkiTensor, op0: Any, op1: Any, imm0: Any, imm1: Any = None,
    reduce_cmd: ReduceCmd = ReduceCmd.reset_reduce, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst[i] = (src[i] <op0> imm0) <op1> dst[i-1] along the free dimension, from the identity of op1, from imm1 or from
    where the instruction before stopped."""
    machine = begin("tensor_scalar_cumulative")
    dst, src = tile(dst, "dst"), tile(src, "src")
    matched(dst, src=src)
    for found, what in ((dst, "dst"), (src, "src")):
        if found.dtype in (INT32, UINT32):
            refuse("operand-dtype", f"{what} {found}: tensor_scalar_cumulative has no 32-bit integers")
    member(reduce_cmd, ReduceCmd, "reduce_cmd")
    if reduce_cmd not in _CHAIN or (reduce_cmd is ReduceCmd.load_reduce) == (imm1 is None):
        refuse("accumulator", "imm1 goes with reduce_cmd load_reduce, and only with it; the others are the two resets")
    first, second = arithmetic_operator(machine, op0, "op0"), arithmetic_operator(machine, op1, "op1")
    if second.name not in _CUMULATIVE:
        refuse("operator", f"op1 nl.{second.name}; add, subtract, multiply, maximum and minimum accumulate")
    if reduce_cmd is ReduceCmd.reduce:
        start: Any = machine.vector_registers.read(src.shape[0]).copy()
    else:
        start = operand(_CUMULATIVE[second.name] if imm1 is None else imm1, src, "imm1")
    values = flat(applied(first, read_float(src, "src"), operand(imm0, src, "imm0"), False))
    result = arithmetic.scan(lambda state, term: applied(second, term, state, False), start, values)
    machine.vector_registers.write(result[:, -1])
    write(machine, dst, result)
    return ISSUED


def exponential(
    dst: NkiTensor, src: NkiTensor, max_value: Any = 0.0, reduce_res: NkiTensor | None = None,
    reduce_cmd: ReduceCmd = ReduceCmd.idle, reduce_init: Any = 0.0, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst = exp(src - max_value) on the Vector Engine of gen4, and its sum."""
    machine = begin("exponential")
    needs(machine, 4)
    dst, src = tile(dst, "dst"), tile(src, "src")
    matched(dst, src=src)
    if dst.dtype is UINT32:
        refuse("operand-dtype", f"dst {dst}: exponential does not write uint32")
    shifted = read_float(src, "src") - operand(max_value, src, "max_value")
    values = np.exp(shifted.astype(np.float64)).astype(np.float32)
    loads = reduce_cmd is ReduceCmd.load_reduce
    if not loads and (isinstance(reduce_init, NkiTensor) or reduce_init != 0):
        refuse("accumulator", "reduce_init goes with reduce_cmd load_reduce, and only with it")
    allowed = (ReduceCmd.idle, *_CHAIN)
    found = OPERATORS["add"]
    initial = reduce_init if loads else None
    accumulate(machine, machine.vector_registers, reduce_cmd, found, values, src, allowed, initial)
    write(machine, dst, values)
    if reduce_res is not None:
        read_out(machine, machine.vector_registers, reduce_res, src)
    return ISSUED


def activate2(
    dst: NkiTensor, op: Any, data: NkiTensor, imm0: Any, imm1: Any, op0: Any, op1: Any, relu_param: Any = 0.0,
    reverse0: bool = False, reverse1: bool = False, reduce_op: Any = None, reduce_res: NkiTensor | None = None,
    reduce_cmd: ReduceCmd = ReduceCmd.idle, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst = op((data <op0> imm0) <op1> imm1) on the Scalar Engine of gen4, with a reduction of it."""
    machine = begin("activate2")
    needs(machine, 4)
    dst, data = tile(dst, "dst"), tile(data, "data")
    matched(dst, data=data)
    names = tuple(getattr(found, "__name__", repr(found)) for found in (op0, op1))
    if names not in _ORDERS:
        refuse("operator", f"op0 and op1 {names}: activate2 has multiply with add or subtract, one of the three, none")
    if (reverse0 and names[0] == "bypass") or (reverse1 and names[1] == "bypass"):
        refuse("operand", "a reversed operand needs an operator")
    if isinstance(imm0, NkiTensor) and isinstance(imm1, NkiTensor) and imm0.dtype is not imm1.dtype:
        refuse("operand-dtype", f"imm0 {imm0} and imm1 {imm1} must have one dtype")
    values = read_float(data, "data")
    for found, immediate, reverse, what in ((op0, imm0, reverse0, "imm0"), (op1, imm1, reverse1, "imm1")):
        if found.__name__ != "bypass":
            values = applied(
                operator_of(machine, found), values, operand(immediate, data, what, dtype=None), bool(reverse)
            )
    if getattr(op, "__name__", "") == "prelu":
        values = np.where(values > 0, values, values * operand(relu_param, data, "relu_param", dtype=None))
    else:
        values = activated(activation_of(machine, op), values)
    if reduce_cmd is ReduceCmd.reset:
        machine.scalar_registers.write(np.zeros(data.shape[0], np.float32))
    elif reduce_cmd is not ReduceCmd.idle:
        found = reduction(machine, reduce_op, ("add", "maximum", "minimum"))
        allowed = (ReduceCmd.reset_reduce, ReduceCmd.reduce)
        accumulate(machine, machine.scalar_registers, reduce_cmd, found, values, data, allowed)
    write(machine, dst, values)
    if reduce_res is not None:
        read_out(machine, machine.scalar_registers, reduce_res, data)
    return ISSUED


def select_reduce(
    dst: NkiTensor, predicate: NkiTensor, on_true: NkiTensor, on_false: Any, reduce_res: NkiTensor | None = None,
    reduce_cmd: ReduceCmd = ReduceCmd.idle, reduce_op: Any = None, reverse_pred: bool = False, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst = on_true where predicate is not 0, else on_false (a number or (P, 1)), and the maximum of it."""
    machine = begin("select_reduce")
    dst, predicate, on_true = tile(dst, "dst"), tile(predicate, "predicate"), tile(on_true, "on_true")
    matched(dst, predicate=predicate, on_true=on_true)
    not_both_in_psum(predicate, on_true, "predicate and on_true")
    if predicate.dtype.name not in ("int8", "uint8", "int16", "uint16", "bool_"):
        refuse("operand-dtype", f"predicate {predicate} must be an integer of 8 or 16 bits")
    if on_true.dtype in (INT32, UINT32):
        refuse("operand-dtype", f"on_true {on_true} must not be a 32-bit integer")
    chosen = (read(predicate, "predicate") != 0).reshape(dst.shape) ^ bool(reverse_pred)
    values = as_float(read(on_true, "on_true")).reshape(dst.shape)
    result = np.where(chosen, values, operand(on_false, dst, "on_false", dtype=None))
    _keep_maximum(machine, result, dst, reduce_cmd, reduce_op)
    write(machine, dst, result)
    if reduce_res is not None:
        _float_result(reduce_res)
        read_out(machine, machine.vector_registers, reduce_res, dst)
    return ISSUED


def _float_result(reduce_res: NkiTensor) -> None:
    if isinstance(reduce_res, NkiTensor) and not reduce_res.dtype.is_float:
        refuse("operand-dtype", f"reduce_res {reduce_res} must be of a float type")


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
    found = OPERATORS["maximum"] if reduce_op is None else operator_of(machine, reduce_op, "reduce_op")
    if found.name != "maximum":
        refuse("operator", f"reduce_op nl.{found.name}; {machine.operation} has nl.maximum")
    allowed = (ReduceCmd.idle, ReduceCmd.reset_reduce, ReduceCmd.reduce)
    accumulate(machine, machine.vector_registers, reduce_cmd, found, result, data, allowed)
