"""nki.isa of the Beta 1 API: instructions return new tiles. Page of each: "nki.isa.<name>", Neuron SDK 2.26."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from . import arithmetic
from .beta_index import Index, broadcast, executed
from .beta_language import store
from .beta_math import (
    accumulated,
    activation_named,
    copied,
    data_type,
    double_row,
    elementwise,
    flat,
    free_axes,
    masked,
    new_tile,
    number_or_values,
    operator_named,
    product,
    reduced,
    tile,
    transposed,
)
from .beta_tensor import BetaTensor
from .dtypes import FLOAT32
from .engines import DgeMode, Engine, OobMode, ReduceCmd, dma_modes
from .errors import refuse
from .machine import begin, current
from .operands import HBM, as_float
from .operators import Operator, applied
from .storage import Region
from .targets import BN_STATS_FREE


def nc_matmul(
    stationary: BetaTensor, moving: BetaTensor, *, is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False, is_transpose: bool = False, tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (), mask: Any = None, perf_mode: Any = None,
) -> BetaTensor:  # fmt: skip
    """A new tile in PSUM: stationary[K, M].T @ moving[K, N] in float32; `+=` on a PSUM tile accumulates.

    What the operands are said to hold, and where they sit in the array of the Tensor Engine, changes no result.
    """
    if perf_mode in (None, "none"):
        return product(stationary, moving, mask)
    if perf_mode != "double_row_gen3":
        refuse("not-implemented", f"nc_matmul in performance mode {perf_mode!r}")
    return double_row(stationary, moving, mask)


def nc_transpose(
    data: BetaTensor, *, mask: Any = None, dtype: Any = None, engine: Engine = Engine.unknown
) -> BetaTensor:
    """A new tile [F, P] in PSUM of data[P, F]."""
    return transposed(data, mask=mask, dtype=data_type(dtype, data.dtype))


def _operand(value: Any, data: BetaTensor, what: str) -> Any:
    """A number, or a (P, 1) tile with as many partitions as data."""
    if not isinstance(value, BetaTensor):
        return np.float32(value)
    if value.shape[0] != data.shape[0] or value.size != data.shape[0]:
        refuse("operand-shape", f"{what} {value} must be ({data.shape[0]}, 1) for {data}")
    shape = (data.shape[0],) + (1,) * (data.ndim - 1)
    values, defined = tile(value, what).read()
    return BetaTensor(value.memory, values.reshape(shape), defined.reshape(shape))


def activation(
    op: Any, data: BetaTensor, *, bias: Any = None, scale: Any = 1.0, reduce_op: Any = None,
    reduce_res: BetaTensor | None = None, reduce_cmd: ReduceCmd = ReduceCmd.idle, mask: Any = None, dtype: Any = None,
) -> BetaTensor:  # fmt: skip
    """op(data * scale + bias): scale a number or (P, 1), bias (P, 1)."""
    if reduce_cmd is ReduceCmd.reset_reduce and reduce_res is not None:
        options = {"bias": bias, "scale": scale, "mask": mask, "dtype": dtype}
        return activation_reduce(op, data, reduce_op=reduce_op, reduce_res=reduce_res, **options)
    if reduce_res is not None or reduce_cmd is not ReduceCmd.idle:
        refuse("not-implemented", "reduction registers that outlive an instruction; use reset_reduce and reduce_res")
    if bias is not None and not isinstance(bias, BetaTensor):
        refuse("activation-bias", f"bias {bias!r} must be a (P, 1) tile")
    function = activation_named(op)
    added = 0.0 if bias is None else _operand(bias, data, "bias")
    operands = (tile(data, "data"), _operand(scale, data, "scale"), added)
    return elementwise("activation", lambda x, s, b: function(x * s + b), operands, dtype, mask, data.dtype)


def activation_reduce(
    op: Any, data: BetaTensor, *, reduce_op: Any, reduce_res: BetaTensor, dtype: Any = None, **options: Any
) -> BetaTensor:
    """`activation` that also writes the sum of its float32 results of a partition to reduce_res(P, 1)."""
    operator = operator_named(reduce_op, "reduce_op")
    if operator.name != "add":
        refuse("operator", "reduce_op must be add")
    return _also_reduced(activation(op, data, dtype=FLOAT32, **options), operator, reduce_res, data, dtype)


def tensor_scalar_reduce(
    *, data: BetaTensor, op0: Any, operand0: Any, reduce_op: Any, reduce_res: BetaTensor, dtype: Any = None,
    mask: Any = None,
) -> BetaTensor:  # fmt: skip
    """data <op0> operand0; the float32 results of a partition are also reduced into reduce_res(P, 1)."""
    exact = tensor_scalar(data, op0, operand0, dtype=FLOAT32, mask=mask)
    return _also_reduced(exact, operator_named(reduce_op, "reduce_op"), reduce_res, data, dtype)


def _also_reduced(
    exact: BetaTensor, operator: Operator, reduce_res: BetaTensor, data: BetaTensor, dtype: Any
) -> BetaTensor:
    """Each partition of a float32 tile reduced into reduce_res(P, 1), and the tile rounded to dtype (that of data)."""
    if tile(reduce_res, "reduce_res").shape[0] != exact.shape[0] or reduce_res.size != exact.shape[0]:
        refuse("operand-shape", f"reduce_res {reduce_res} must be ({exact.shape[0]}, 1)")
    values, defined = exact.read()
    result = reduced(operator, values, defined, tuple(range(1, exact.ndim)), False)
    reduce_res.write(*(part.reshape(reduce_res.shape) for part in result))
    return new_tile(values, defined, data_type(dtype, data.dtype), ran=exact.executed)


def tensor_reduce(
    op: Any, data: BetaTensor, axis: Any, *, mask: Any = None, dtype: Any = None, negate: bool = False,
    keepdims: bool = False,
) -> BetaTensor:  # fmt: skip
    """data reduced over free axes in float32, rounded once to dtype (that of data)."""
    begin("tensor_reduce")
    values, defined = tile(data, "data").read()
    axes, operator = free_axes(data.shape, axis), operator_named(op)
    terms = masked(operator, as_float(values), defined, executed(mask, data.shape))
    result, sound = reduced(operator, *terms, axes, keepdims)
    return new_tile(-result if negate else result, sound, data_type(dtype, data.dtype))


def tensor_tensor(
    data1: BetaTensor, data2: BetaTensor, op: Any, *, dtype: Any = None, mask: Any = None, engine: Any = None
) -> BetaTensor:
    """data1 <op> data2, element by element; free dimensions of size 1 are repeated.

    The page asks for as many elements a partition, and says which instruction to use for a broadcast "in general";
    public kernels that were measured on devices do broadcast here. The partitions must be as many.
    """
    operands = [tile(value, what) for value, what in ((data1, "data1"), (data2, "data2"))]
    if operands[0].shape[0] != operands[1].shape[0]:
        refuse("shape", f"data1 {data1} and data2 {data2} differ in partitions")
    if all(operand.buffer is Region.psum for operand in operands):
        refuse("both-in-psum", f"data1 {data1} and data2 {data2} are both in PSUM")
    dims = max(operand.ndim for operand in operands)
    padded = [_padded(operand, dims) for operand in operands]
    broadcast(padded[0].shape, padded[1].shape)
    return elementwise("tensor_tensor", operator_named(op).function, padded, dtype, mask)


def _padded(access: BetaTensor, dims: int) -> BetaTensor:
    """A tile with free dimensions of size 1 before its own, to have so many."""
    if access.ndim == dims:
        return access
    shape = (access.shape[0],) + (1,) * (dims - access.ndim) + access.shape[1:]
    values, defined = access.read()
    return BetaTensor(access.memory, values.reshape(shape), defined.reshape(shape))


def tensor_scalar(
    data: BetaTensor, op0: Any, operand0: Any, reverse0: bool = False, op1: Any = None, operand1: Any = None,
    reverse1: bool = False, *, dtype: Any = None, mask: Any = None, engine: Any = None,
) -> BetaTensor:  # fmt: skip
    """(data <op0> operand0) <op1> operand1 in float32; operands are numbers or (P, 1) tiles."""
    function = first = partial(applied, operator_named(op0, "op0"), reverse=reverse0)
    operands = [tile(data, "data"), _operand(operand0, data, "operand0")]
    if op1 is not None:
        second = partial(applied, operator_named(op1, "op1"), reverse=reverse1)
        operands.append(_operand(operand1, data, "operand1"))
        function = lambda x, a, b: second(first(x, a), b)  # type: ignore[assignment] # noqa: E731
    return elementwise("tensor_scalar", function, operands, dtype, mask, data.dtype)


def scalar_tensor_tensor(
    *, data: BetaTensor, op0: Any, operand0: Any, op1: Any, operand1: BetaTensor, reverse0: bool = False,
    reverse1: bool = False, dtype: Any = None, mask: Any = None,
) -> BetaTensor:  # fmt: skip
    """(data <op0> operand0) <op1> operand1 with a number or (P, 1) first and a tile second."""
    first, second = operator_named(op0), operator_named(op1)
    operands = (tile(data, "data"), _operand(operand0, data, "operand0"), tile(operand1, "operand1"))
    return elementwise(
        "scalar_tensor_tensor",
        lambda x, a, y: applied(second, applied(first, x, a, reverse0), y, reverse1),
        operands, dtype, mask, data.dtype,
    )  # fmt: skip


def tensor_copy(src: BetaTensor, *, mask: Any = None, dtype: Any = None, engine: Any = None) -> BetaTensor:
    """A new tile in SBUF with the elements of another; from HBM it takes a load."""
    return copied("tensor_copy", src, dtype, mask)


def reciprocal(data: BetaTensor, *, dtype: Any = None, mask: Any = None) -> BetaTensor:
    return elementwise("reciprocal", np.reciprocal, (tile(data, "data"),), dtype, mask)


def memset(shape: Any, value: float, dtype: Any, *, mask: Any = None, engine: Any = None) -> BetaTensor:
    """A new tile in SBUF filled with a number."""
    begin("memset")
    return new_tile(np.full(tuple(int(size) for size in shape), value, np.float32), True, data_type(dtype))


def iota(expr: Index, dtype: Any, *, mask: Any = None) -> BetaTensor:
    """A new tile in SBUF with the values of an index expression."""
    begin("iota")
    values = np.broadcast_to(expr.values, expr.shape)
    return new_tile(values, True, data_type(dtype), ran=executed(mask, expr.shape))


def affine_select(
    pred: Any, on_true_tile: BetaTensor, on_false_value: float, *, mask: Any = None, dtype: Any = None
) -> BetaTensor:
    """on_true_tile where a comparison of indices holds, else a number."""
    chosen = executed(pred, tile(on_true_tile, "on_true_tile").shape)
    if chosen is None:
        return tensor_copy(on_true_tile, dtype=dtype, mask=mask)
    values, defined = on_true_tile.read()
    begin("affine_select")
    selected, result = (
        np.where(chosen, as_float(values), np.float32(on_false_value)),
        data_type(dtype, on_true_tile.dtype),
    )
    return new_tile(selected, defined | ~chosen, result, ran=executed(mask, on_true_tile.shape))


def dma_copy(
    *, dst: BetaTensor, src: BetaTensor, mask: Any = None, dst_rmw_op: Any = None, oob_mode: OobMode = OobMode.error,
    dge_mode: DgeMode = DgeMode.unknown,
) -> None:  # fmt: skip
    """dst = src between HBM and SBUF, or within either; how the DMA is described changes no result.

    With oob_mode.skip nothing is moved where the offsets of either side, which are data, lie outside.
    """
    dma_modes(current(), dge_mode, OobMode.error, None)
    if src.size != dst.size:
        refuse("shape", f"dst {dst} has {dst.size} elements, src {src} has {src.size}")
    ran = executed(mask, dst.shape)
    if oob_mode is OobMode.skip:
        reached = dst.inside() & src.inside().reshape(dst.shape)
        ran = reached if ran is None else ran & reached
    if dst_rmw_op is not None:
        if operator_named(dst_rmw_op, "dst_rmw_op").name != "add" or oob_mode is not OobMode.error:
            refuse("operator", "dst_rmw_op must be add, with oob_mode.error")
        begin("dma_copy")
        accumulated(dst, src, mask)
        return
    if dst.buffer in HBM and src.buffer not in HBM and oob_mode is OobMode.error:
        store(dst, src, mask=mask)
        return
    machine = begin("dma_copy")
    for operand, what in ((src, "src"), (dst, "dst")):
        if operand.buffer is Region.psum:
            refuse("dma-psum", f"{what} {operand} is in PSUM, which DMA does not reach")
    values, defined = src.read(None if ran is None else ran.reshape(src.shape))
    values = values if src.dtype is dst.dtype else as_float(values)
    dst.write(values.reshape(dst.shape), defined.reshape(dst.shape), ran)
    if src.buffer in HBM:
        machine.counters.dma_bytes_in += src.size * src.itemsize
    if dst.buffer in HBM:
        machine.counters.dma_bytes_out += dst.size * dst.itemsize


_TRANSPOSES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
"""Dimensions of src -> their order in the result."""


def dma_transpose(
    src: BetaTensor, *, axes: Any = None, mask: Any = None, dtype: Any = None, dge_mode: DgeMode = DgeMode.unknown
) -> BetaTensor:
    """A new tile in SBUF with the first and the last dimension of src exchanged."""
    machine = begin("dma_transpose")
    dma_modes(machine, dge_mode, OobMode.error, None)
    order = _TRANSPOSES.get(src.ndim)
    if order is None or tuple(axes or order) != order:
        refuse("transpose-shape", f"axes {axes} of src {src}; they are (1, 0), (2, 1, 0) or (3, 1, 2, 0)")
    ran = executed(mask, src.shape)
    values, defined = src.read(mask)
    turned = None if ran is None else ran.transpose(order)
    return new_tile(
        as_float(values).transpose(order), defined.transpose(order), data_type(dtype, src.dtype), ran=turned
    )


def tensor_copy_predicated(
    *, src: Any, dst: BetaTensor, predicate: BetaTensor, reverse_pred: bool = False, mask: Any = None
) -> None:
    """dst = src where predicate is not 0; the rest keeps what it holds."""
    begin("tensor_copy_predicated")
    (flags, sound), (values, defined) = tile(predicate, "predicate").read(), number_or_values(src)
    chosen = (flags != 0) ^ bool(reverse_pred)
    ran = executed(mask, dst.shape)
    where = chosen if ran is None else chosen & ran
    if predicate.shape != dst.shape:
        refuse("shape", f"predicate {predicate} and dst {dst} differ in shape")
    dst.write(np.broadcast_to(values, dst.shape), np.broadcast_to(defined, dst.shape) & sound, where)


def tensor_partition_reduce(op: Any, data: BetaTensor, *, mask: Any = None, dtype: Any = None) -> BetaTensor:
    """A new tile (1, ...) with data reduced over its partitions, in float32."""
    begin("tensor_partition_reduce")
    values, defined = flat(tile(data, "data"))
    operator, ran = operator_named(op), executed(mask, data.shape)
    terms = (values[None], defined[None])
    if ran is not None:
        terms = masked(operator, *terms, ran.reshape(1, *values.shape))
    result, sound = reduced(operator, *terms, (1,), False)
    shape = (1, *data.shape[1:])
    return new_tile(result.reshape(shape), sound.reshape(shape), data_type(dtype, data.dtype))


def bn_stats(data: BetaTensor, *, mask: Any = None, dtype: Any = None) -> BetaTensor:
    """[P, 6]. A mask may shorten the row; each row keeps the same elements, from the first on."""
    begin("bn_stats")
    shape = tile(data, "data").shape
    values, defined = data.read(mask)
    terms, sound = as_float(values).reshape(shape[0], -1), defined.reshape(shape[0], -1)
    ran = executed(mask, shape)
    if ran is not None:
        ran = ran.reshape(shape[0], -1)
        count = int(ran[0].sum())
        if not count or (ran != (np.arange(ran.shape[1]) < count)).any():
            refuse("mask", "a mask of bn_stats keeps the first elements of every partition")
        terms, sound = terms[:, :count], sound[:, :count]
    if terms.shape[1] > BN_STATS_FREE:
        refuse("bn-stats-size", f"data {data} has {terms.shape[1]} elements a partition, at most {BN_STATS_FREE}")
    statistics = arithmetic.bn_stats(np.where(sound, terms, np.float32(0)))
    return new_tile(statistics, sound.all(axis=1, keepdims=True), data_type(dtype, data.dtype))


def bn_aggr(data: BetaTensor, *, mask: Any = None, dtype: Any = None) -> BetaTensor:
    """[P, 2]: mean and variance of the elements behind any number of (count, mean, variance * count)."""
    begin("bn_aggr")
    values, defined = flat(tile(data, "data"))
    if mask is not None or values.shape[1] % 3:
        refuse("shape", f"data {data} must have a multiple of 3 elements a partition, without a mask")
    return new_tile(arithmetic.bn_aggr(values), defined.all(axis=1, keepdims=True), data_type(dtype, data.dtype))


def tensor_tensor_scan(
    data0: BetaTensor, data1: BetaTensor, initial: Any, op0: Any, op1: Any, reverse0: bool = False,
    reverse1: bool = False, *, dtype: Any = None, mask: Any = None,
) -> BetaTensor:  # fmt: skip
    """out[i] = (data0[i] <op0> out[i-1]) <op1> data1[i] along the free dimension, from `initial`, in float32."""
    begin("tensor_tensor_scan")
    if tile(data0, "data0").shape != tile(data1, "data1").shape or data0.ndim != 2:
        refuse("shape", f"data0 {data0} and data1 {data1} must be of one shape (P, F)")
    first, second = operator_named(op0, "op0"), operator_named(op1, "op1")
    (a, sound_a), (b, sound_b) = (number_or_values(operand, mask) for operand in (data0, data1))
    start, started = number_or_values(_operand(initial, data0, "initial"))
    defined = np.logical_and.accumulate(sound_a & sound_b & started, axis=1)
    result = arithmetic.scan(
        lambda state, x, y: applied(second, applied(first, x, state, reverse0), y, reverse1),
        start, np.where(defined, a, 0), np.where(defined, b, 0),
    )  # fmt: skip
    return new_tile(result, defined, data_type(dtype, data0.dtype), ran=executed(mask, data0.shape))
