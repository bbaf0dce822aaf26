"""Instructions of the Scalar Engine and scans. Page of each: "nki.isa.<name>", Neuron SDK 2.32."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arithmetic import IDENTITIES, scan
from .engines import ISSUED, NkiInstruction, ReduceCmd
from .errors import refuse
from .isa_vector import write_registers
from .machine import Machine, begin
from .operands import flat, matched, not_both_in_psum, operand, read_float, tile, write
from .operators import activated, activation_of, applied, arithmetic_operator, operator_of
from .tensor import NkiTensor


def activation(
    dst: NkiTensor, op: Any, data: NkiTensor, bias: Any = None, scale: Any = 1.0, reduce_op: Any = None,
    reduce_res: NkiTensor | None = None, reduce_cmd: ReduceCmd = ReduceCmd.idle, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst = op(data * scale + bias); scale a number or (P, 1) float32, bias (P, 1), from gen3 on also a number."""
    return _activate("activation", dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd)


def activation_reduce(
    dst: NkiTensor, op: Any, data: NkiTensor, reduce_op: Any, reduce_res: NkiTensor, bias: Any = None,
    scale: Any = 1.0, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """`activation` that also stores the sum of its results of a partition in reduce_res(P, 1)."""
    command = ReduceCmd.reset_reduce
    return _activate("activation_reduce", dst, op, data, bias, scale, reduce_op, reduce_res, command)


def _activate(
    name: str, dst: NkiTensor, op: Any, data: NkiTensor, bias: Any, scale: Any, reduce_op: Any,
    reduce_res: NkiTensor | None, command: ReduceCmd,
) -> NkiInstruction:  # fmt: skip
    machine = begin(name)
    dst, data = tile(dst, "dst"), tile(data, "data")
    found = activation_of(machine, op)
    matched(dst, data=data)
    values = read_float(data, "data")
    if type(scale) is not float or scale != 1.0:
        values = values * operand(scale, data, "scale")
    if bias is not None:
        if machine.generation == 2 and not isinstance(bias, NkiTensor):
            refuse("activation-bias", f"bias {bias!r} must be a (P, 1) tile on {machine.target.name}")
        if machine.generation == 2 and found.name == "reciprocal":
            refuse("activation-bias", f"nl.reciprocal takes no bias on {machine.target.name}")
        values = values + operand(bias, data, "bias", dtype=None)
    result = activated(found, values)
    _accumulate(machine, result, reduce_op, command)
    write(machine, dst, result)
    if reduce_res is not None:
        write_registers(machine, reduce_res, machine.scalar_registers.read(data.shape[0]), data)
    return ISSUED


def _accumulate(machine: Machine, values: np.ndarray, reduce_op: Any, command: ReduceCmd) -> None:
    """What reduce_cmd does to the registers of the engine; only sums are documented."""
    if command is ReduceCmd.idle:
        return
    partitions, registers = values.shape[0], machine.scalar_registers
    if command is ReduceCmd.load_reduce:
        refuse("operand", f"reduce_cmd load_reduce is none of {machine.operation}")
    if command is ReduceCmd.reset:
        registers.write(np.zeros(partitions, np.float32))
        return
    if operator_of(machine, reduce_op, "reduce_op").name != "add":
        refuse("operator", "reduce_op must be nl.add")
    sums = flat(values).sum(axis=1, dtype=np.float32)
    registers.write(sums if command is ReduceCmd.reset_reduce else registers.read(partitions) + sums)


def tensor_tensor_scan(
    dst: NkiTensor, data0: NkiTensor, data1: NkiTensor, initial: Any, op0: Any, op1: Any, reverse0: bool = False,
    reverse1: bool = False, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst[i] = (data0[i] <op0> dst[i-1]) <op1> data1[i] along the free dimension, from `initial`, in float32."""
    machine = begin("tensor_tensor_scan")
    dst, data0, data1 = tile(dst, "dst"), tile(data0, "data0"), tile(data1, "data1")
    matched(dst, data0=data0, data1=data1)
    not_both_in_psum(data0, data1, "data0 and data1")
    first, second = arithmetic_operator(machine, op0, "op0"), arithmetic_operator(machine, op1, "op1")
    terms = flat(read_float(data0, "data0")), flat(read_float(data1, "data1"))
    step = lambda state, a, b: applied(second, applied(first, a, state, reverse0), b, reverse1)  # noqa: E731
    write(machine, dst, scan(step, operand(initial, data0, "initial"), *terms))
    return ISSUED


_CUMULATIVE = IDENTITIES | {"subtract": 0.0}


def tensor_scalar_cumulative(
    dst: NkiTensor, src: NkiTensor, op0: Any, op1: Any, imm0: Any, imm1: Any = None,
    reduce_cmd: ReduceCmd = ReduceCmd.reset_reduce, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst[i] = (src[i] <op0> imm0) <op1> dst[i-1] along the free dimension, from the identity of op1 or imm1."""
    machine = begin("tensor_scalar_cumulative")
    dst, src = tile(dst, "dst"), tile(src, "src")
    matched(dst, src=src)
    first, second = arithmetic_operator(machine, op0, "op0"), arithmetic_operator(machine, op1, "op1")
    if second.name not in _CUMULATIVE or reduce_cmd not in (ReduceCmd.reset_reduce, ReduceCmd.load_reduce):
        refuse("not-implemented", f"tensor_scalar_cumulative with op1 nl.{second.name} and {reduce_cmd}")
    start = _CUMULATIVE[second.name] if reduce_cmd is ReduceCmd.reset_reduce else imm1
    values = flat(applied(first, read_float(src, "src"), operand(imm0, src, "imm0"), False))
    initial = operand(float(start) if imm1 is None else start, src, "imm1")
    write(machine, dst, scan(lambda state, term: applied(second, term, state, False), initial, values))
    return ISSUED
