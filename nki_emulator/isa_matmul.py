"""Instructions of the Tensor Engine. Page of each: "nki.isa.<name>", Neuron SDK 2.32."""

from __future__ import annotations

import numpy as np

from .dtypes import FLOAT32
from .engines import ISSUED, Engine, MatmulPerfMode, NkiInstruction
from .errors import refuse
from .machine import Machine, begin
from .operands import PSUM, SBUF, destination, flat, in_one_bank, no_overlap, read, tile, write, written
from .storage import Region
from .targets import MOVING_FREE, STATIONARY_FREE
from .tensor import NkiTensor


def nc_matmul(
    dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False, is_transpose: bool = False, accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (), tile_size: tuple[int, ...] = (),
    perf_mode: MatmulPerfMode = MatmulPerfMode.none, name: str | None = None,
) -> NkiInstruction:  # fmt: skip
    """dst[M, N] in PSUM = (or +=) stationary[K, M].T @ moving[K, N], both in SBUF, in float32.

    Products of operands of up to 24 bits are summed over K in float32, and the sum is added to dst in float32.
    """
    machine = begin("nc_matmul")
    if tuple(tile_position) not in ((), (0, 0)) or tuple(tile_size) not in ((), (128, 128)):
        refuse("not-implemented", "tiling of the Tensor Engine")
    if perf_mode is not MatmulPerfMode.none:
        if machine.generation == 2:
            refuse("target", "performance mode needs gen3")
        refuse("not-implemented", "performance mode")
    if is_transpose and machine.generation > 2:
        refuse("not-implemented", "is_transpose; use nc_transpose")
    dst = tile(dst, "dst", PSUM)
    stationary, moving = tile(stationary, "stationary", SBUF), tile(moving, "moving", SBUF)
    _check_product(machine, dst, stationary, moving)
    in_one_bank(destination(dst))
    machine.counters.matmuls += 1
    machine.counters.macs += stationary.size * moving.free
    if machine.trace is not None:
        machine.trace.flag(onezero=is_stationary_onezero or is_moving_onezero or is_transpose)
    if not machine.computes:
        return ISSUED
    adds = _accumulates(machine, dst, accumulate)
    result = flat(read(stationary, "stationary")).T @ flat(read(moving, "moving"))
    if dst.ndim != 2:
        result = result.reshape(dst.shape)
    if adds:
        dst.array[...] += result
    else:
        dst.array[...] = result
        written(dst, by_matmul=True)
    return ISSUED


def _check_product(machine: Machine, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor) -> None:
    """Sizes and types that the Tensor Engine multiplies."""
    k, m, n = stationary.shape[0], stationary.free, moving.free
    if k != moving.shape[0]:
        refuse("shape", f"stationary {stationary} and moving {moving} differ in partitions, the contraction")
    if stationary.offset // stationary.storage.free != moving.offset // moving.storage.free:
        refuse("matmul-partitions", f"stationary {stationary} and moving {moving} start at different partitions")
    if m > STATIONARY_FREE:
        refuse("matmul-stationary", f"stationary {stationary} has {m} free elements, at most {STATIONARY_FREE} fit")
    if n > MOVING_FREE:
        refuse("matmul-moving", f"moving {moving} has {n} free elements, at most {MOVING_FREE} fit")
    if dst.shape[0] != m or dst.free != n:
        refuse("shape", f"dst {dst} must be {m} partitions of {n} elements")
    if dst.dtype is not FLOAT32:
        rule = "matmul-dtype" if machine.generation < 4 else "not-implemented"
        refuse(rule, f"dst {dst} must be float32 on {machine.target.name}")
    for found, what in ((stationary, "stationary"), (moving, "moving")):
        if not found.dtype.is_float:
            refuse("matmul-dtype", f"{what} {found} is no float, which the Tensor Engine multiplies")
        if found.dtype.name == "float8_e4m3fn" and machine.generation < 4:
            refuse("matmul-dtype", f"{what} {found} needs gen4")
    if (stationary.dtype is FLOAT32) != (moving.dtype is FLOAT32):
        refuse("matmul-dtype", f"float32 pairs with float32 only: stationary {stationary}, moving {moving}")


def _accumulates(machine: Machine, dst: NkiTensor, accumulate: bool | None) -> bool:
    """Whether the product is added to dst; None adds to what has been written and starts where nothing has."""
    if accumulate is not None and type(accumulate) is not bool:
        refuse("operand", f"accumulate must be True, False or None, not {accumulate!r}")
    if accumulate is False:
        return False
    storage = dst.storage
    held = storage.written.count(dst.shape, dst.strides, dst.offset)
    if accumulate is None and held == 0:
        return False
    if held < dst.size:
        refuse("psum-uninitialised", f"accumulates onto dst {dst}, of which {dst.size - held} elements are not written")
    if (
        machine.generation < 4
        and storage.started.count(  # type: ignore[union-attr] # a tensor in PSUM
            dst.shape, dst.strides, dst.offset
        )
        < dst.size
    ):
        refuse("psum-not-started", f"accumulates onto dst {dst}, which another instruction than nc_matmul wrote last")
    return True


def nc_transpose(
    dst: NkiTensor, data: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None
) -> NkiInstruction:
    """dst[F, P] = data[P, F].T, all free dimensions as one, on the Tensor Engine (to PSUM) or Vector Engine (32 x 32).

    The Tensor Engine of gen2 multiplies with an identity: a NaN or an infinity makes its row of dst NaN.
    """
    machine = begin("nc_transpose")
    dst, data = tile(dst, "dst"), tile(data, "data")
    if dst.dtype is not data.dtype:
        refuse("operand-dtype", f"dst {dst} must be {data.dtype} as data is")
    if dst.shape[0] != data.free or dst.free != data.shape[0]:
        refuse("shape", f"dst {dst} must be {data.free} partitions of {data.shape[0]} elements")
    no_overlap(dst, data, "data", in_place=False)
    on_tensor_engine = _transposer(engine, dst, data)
    if machine.trace is not None:
        machine.trace.engine("tensor" if on_tensor_engine else "vector")
    values = flat(read(data, "data"))
    if on_tensor_engine and machine.generation == 2 and not np.isfinite(values).all():
        values = (values.T @ np.eye(values.shape[0], dtype=np.float32)).T
    write(machine, dst, values.T)
    return ISSUED


def _transposer(engine: Engine, dst: NkiTensor, data: NkiTensor) -> bool:
    """Whether it is the Tensor Engine; the pages leave the choice between both engines to the shape."""
    small = max(data.shape[0], data.free) <= 32
    if engine not in (Engine.unknown, Engine.tensor, Engine.vector):
        refuse("engine", f"nc_transpose runs on the Tensor or Vector Engine, not on {engine}")
    if engine is Engine.vector or (engine is Engine.unknown and small and dst.storage.region is Region.sbuf):
        if not small:
            refuse("transpose-shape", f"the Vector Engine transposes at most 32 x 32, not {data}")
        return False
    tile(data, "data", SBUF)
    tile(dst, "dst", PSUM)
    in_one_bank(dst)
    return True
