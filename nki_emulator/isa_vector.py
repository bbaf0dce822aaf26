"""Instructions of the Vector and Scalar Engines. Page of each: "nki.isa.<name>", Neuron SDK 2.32.

All arithmetic is in float32, each operator rounded once, and the result once more to dst.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from . import arithmetic
from .dtypes import INT32, UINT32
from .engines import ISSUED, Engine, NkiInstruction, ReduceCmd, engine_of, member, no_psum
from .errors import refuse
from .isa_accumulate import read_out
from .machine import Machine, begin
from .operands import flat, matched, no_overlap, not_both_in_psum, operand, read, read_float, same_sizes, tile, write
from .operators import FOLDED, Operator, activated, activation_of, applied, arithmetic_operator, operator_of, stepped
from .storage import Region
from .targets import BN_STATS_FREE
from .tensor import NkiTensor

_ELEMENTWISE = (Engine.vector, Engine.gpsimd)


def tensor_tensor(
    dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Any, engine: Engine = Engine.unknown,
    name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst = data1 <op> data2, element by element, without broadcasting and not both in PSUM."""
    machine = begin("tensor_tensor")
    dst, data1, data2 = tile(dst, "dst"), tile(data1, "data1"), tile(data2, "data2")
    engine_of(machine, engine, _ELEMENTWISE, dst, data1, data2)
    operator = operator_of(machine, op)
    if operator.arity != 2:
        refuse("operator", f"nl.{operator.name} takes one operand; tensor_tensor has two")
    if operator.on_gpsimd:
        engine_of(machine, engine, (Engine.gpsimd,), dst, data1, data2)
        no_psum(machine, dst, data1, data2)
    if operator.bits:
        engine_of(machine, engine, (Engine.vector,), dst, data1, data2)
    same_sizes(dst, data1, "data1")
    same_sizes(dst, data2, "data2")
    not_both_in_psum(data1, data2, "data1 and data2")
    no_overlap(dst, data1, "data1")
    no_overlap(dst, data2, "data2")
    # GpSimd computes in 32-bit integers if all tiles are of one such type and none is in PSUM
    native = dst.dtype in (INT32, UINT32) and engine is not Engine.vector
    native = native and all(t.dtype is dst.dtype and t.storage.region is Region.sbuf for t in (dst, data1, data2))
    reader = read if operator.bits or native else read_float
    a, b = reader(data1, "data1"), reader(data2, "data2")
    if operator.bits:
        _check_bits(machine, dst, data1, data2)
    if a.shape != b.shape:
        b = b.reshape(a.shape)
    write(machine, dst, operator.function(a, b))
    return ISSUED


def _check_bits(machine: Machine, *tiles: NkiTensor) -> None:
    if any(access.dtype.is_float or access.dtype is not tiles[0].dtype for access in tiles):
        refuse("operand-dtype", f"bit operators of {machine.operation} take integers of one type, not {list(tiles)}")


def tensor_scalar(
    dst: NkiTensor, data: NkiTensor, op0: Any, operand0: Any, reverse0: bool = False, op1: Any = None,
    operand1: Any = None, reverse1: bool = False, engine: Engine = Engine.unknown, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst = (data <op0> operand0) <op1> operand1; operands are numbers or (P, 1) tiles of float32."""
    machine = begin("tensor_scalar")
    dst, data = tile(dst, "dst"), tile(data, "data")
    first = operator_of(machine, op0, "op0")
    second = None if op1 is None else operator_of(machine, op1, "op1")
    # the Scalar Engine has multiply-add, multiply and add from gen3 on; GpSimd has rsqrt, which runs nowhere else
    names = (first.name, None if second is None else second.name)
    allowed: tuple[Engine, ...] = (Engine.gpsimd,) if "rsqrt" in names else (Engine.vector,)
    if "rsqrt" in names:
        no_psum(machine, dst, data)
    if machine.generation > 2 and names in (("multiply", "add"), ("multiply", None), ("add", None)):
        allowed += (Engine.scalar,)
    engine_of(machine, engine, allowed, dst, data)
    matched(dst, data=data)
    if first.bits or (second is not None and second.bits):
        engine_of(machine, engine, (Engine.vector,), dst, data)
        values = _bits(machine, dst, data, (first, operand0, reverse0), (second, operand1, reverse1))
    else:
        values = stepped(read_float(data, "data"), first, operand0, reverse0, data, "operand0")
        if second is not None:
            values = stepped(values, second, operand1, reverse1, data, "operand1")
        elif operand1 is not None:
            refuse("operand", "operand1 needs op1")
    write(machine, dst, values)
    return ISSUED


def _bits(machine: Machine, dst: NkiTensor, data: NkiTensor, *steps: tuple[Operator | None, Any, bool]) -> np.ndarray:
    """Both operators on bit patterns, with integers of the kernel as operands."""
    _check_bits(machine, dst, data)
    values = read(data, "data")
    for operator, value, reverse in steps:
        if operator is None:
            continue
        if not operator.bits:
            refuse("operator", "op0 and op1 must both be bit operators or both arithmetic")
        if operator.arity == 2 and isinstance(value, NkiTensor):
            column = tile(value, "an operand")
            _check_bits(machine, dst, column)
            if column.shape[0] != data.shape[0] or column.free != 1:
                refuse("operand-shape", f"{column} must be ({data.shape[0]}, 1) for {data}")
            number: Any = read(column, "an operand").reshape((-1,) + (1,) * (data.ndim - 1))
        elif operator.arity == 2 and type(value) is not int:
            refuse("operand", f"nl.{operator.name} takes integers, not {value!r}")
        else:
            number = np.array(value or 0).astype(values.dtype)
        values = applied(operator, values, number, reverse)
    return values


def scalar_tensor_tensor(
    dst: NkiTensor, data: NkiTensor, op0: Any, operand0: Any, op1: Any, operand1: NkiTensor, reverse0: bool = False,
    reverse1: bool = False, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst = (data <op0> operand0) <op1> operand1 with a number or (P, 1) first and a tile second."""
    machine = begin("scalar_tensor_tensor")
    dst, data, other = tile(dst, "dst"), tile(data, "data"), tile(operand1, "operand1")
    matched(dst, data=data, operand1=other)
    not_both_in_psum(data, other, "data and operand1")
    values = stepped(
        read_float(data, "data"), arithmetic_operator(machine, op0, "op0"), operand0, reverse0, data, "operand0"
    )
    second = read_float(other, "operand1").reshape(values.shape)
    write(machine, dst, applied(arithmetic_operator(machine, op1, "op1"), values, second, reverse1))
    return ISSUED


def reduced_axes(data: NkiTensor, axis: Any) -> int:
    """How many trailing dimensions `axis` names; it must be the last ones, without the partition."""
    named = sorted(a + data.ndim if a < 0 else a for a in ([axis] if type(axis) is int else axis))
    if not named or named[0] < 1 or named != list(range(data.ndim - len(named), data.ndim)):
        refuse("reduce-axis", f"axis {axis} of {data}: only the last free dimensions are reduced")
    return len(named)


def tensor_reduce(
    dst: NkiTensor, op: Any, data: NkiTensor, axis: Any, negate: bool = False, keepdims: bool = False,
    name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst = data reduced over its last dimensions, in float32."""
    machine = begin("tensor_reduce")
    dst, data = tile(dst, "dst"), tile(data, "data")
    operator = _reduction(machine, op)
    if negate and operator.bits:
        refuse("operator", f"negate is for arithmetic operators, not nl.{operator.name}")
    kept = data.shape[: data.ndim - reduced_axes(data, axis)]
    if dst.shape[0] != data.shape[0] or dst.size != int(np.prod(kept)):
        refuse("shape", f"dst {dst} must have the elements of {kept}")
    no_overlap(dst, data, "data", in_place=False)
    if operator.bits:
        _check_bits(machine, dst, data)
    values = read(data, "data") if operator.bits else read_float(data, "data")
    result = operator.reduction(values.reshape((*kept, -1)), axis=-1)  # type: ignore[misc]
    write(machine, dst, -result if negate else result)
    return ISSUED


def _reduction(machine: Machine, op: Any) -> Operator:
    operator = operator_of(machine, op)
    if operator.name in FOLDED:
        return replace(operator, reduction=FOLDED[operator.name])
    if operator.reduction is None or operator.name == "average":
        refuse("operator", f"nl.{operator.name} does not reduce in {machine.operation} here")
    return operator


def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    machine = begin("reciprocal")
    matched(tile(dst, "dst"), data=tile(data, "data"))
    write(machine, dst, np.float32(1) / read_float(data, "data"))
    return ISSUED


def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst[P, 6] = count, mean and variance * count of the even elements a partition, then of the odd ones."""
    machine = begin("bn_stats")
    dst, data = tile(dst, "dst"), tile(data, "data")
    if data.free > BN_STATS_FREE:
        refuse("bn-stats-size", f"data {data} has {data.free} elements a partition, at most {BN_STATS_FREE} are taken")
    if dst.shape[0] != data.shape[0] or dst.free != 6:
        refuse("shape", f"dst {dst} must be ({data.shape[0]}, 6)")
    no_overlap(dst, data, "data", in_place=False)
    write(machine, dst, arithmetic.bn_stats(flat(read_float(data, "data"))))
    return ISSUED


def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst[P, 2] = mean and variance of the elements behind any number of (count, mean, variance * count)."""
    machine = begin("bn_aggr")
    dst, data = tile(dst, "dst"), tile(data, "data")
    if data.free % 3:
        refuse("shape", f"data {data} has {data.free} elements a partition, which is no multiple of 3")
    if dst.shape[0] != data.shape[0] or dst.free != 2:
        refuse("shape", f"dst {dst} must be ({data.shape[0]}, 2)")
    no_overlap(dst, data, "data", in_place=False)
    write(machine, dst, arithmetic.bn_aggr(flat(read_float(data, "data"))))
    return ISSUED


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
    function = activation_of(machine, op)
    matched(dst, data=data)
    values = read_float(data, "data")
    if type(scale) is not float or scale != 1.0:
        values = values * operand(scale, data, "scale")
    if bias is not None:
        if machine.generation == 2 and not isinstance(bias, NkiTensor):
            refuse("activation-bias", f"bias {bias!r} must be a (P, 1) tile on {machine.target.name}")
        if machine.generation == 2 and function.name == "reciprocal":
            refuse("activation-bias", f"nl.reciprocal takes no bias on {machine.target.name}")
        values = values + operand(bias, data, "bias", dtype=None)
    result = activated(function, values) if machine.computes else values
    registers = machine.scalar_registers
    member(command, ReduceCmd, "reduce_cmd")
    if command is ReduceCmd.load_reduce:
        refuse("operand", f"reduce_cmd load_reduce is none of {name}")
    if command is ReduceCmd.reset:
        registers.write(np.zeros(data.shape[0], np.float32))
    elif command is not ReduceCmd.idle:
        if operator_of(machine, reduce_op, "reduce_op").name != "add":
            refuse("operator", "reduce_op must be nl.add")
        sums = flat(result).sum(axis=1, dtype=np.float32)
        registers.write(sums if command is ReduceCmd.reset_reduce else registers.read(data.shape[0]) + sums)
    write(machine, dst, result)
    if reduce_res is not None:
        read_out(machine, machine.scalar_registers, reduce_res, data)
    return ISSUED


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
    write(machine, dst, arithmetic.scan(step, operand(initial, data0, "initial"), *terms))
    return ISSUED
