"""Instructions of the Tensor Engine. Page of each: "nki.isa.<name>", Neuron SDK 2.32."""

from __future__ import annotations

import numpy as np

from .dtypes import FLOAT32, rounded
from .engines import ISSUED, Engine, MatmulPerfMode, NkiInstruction, member, needs
from .errors import refuse
from .machine import Machine, begin
from .operands import (
    PSUM,
    SBUF,
    destination,
    flat,
    in_one_bank,
    no_overlap,
    read,
    start_partition,
    tile,
    write,
    written,
)
from .storage import Region
from .targets import BANK, BANKS, MOVING_FREE, PARTITIONS, STATIONARY_FREE
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
    member(perf_mode, MatmulPerfMode, "perf_mode")
    rows, columns = _tiling(machine, tuple(tile_position), tuple(tile_size))
    doubled = perf_mode is MatmulPerfMode.double_row
    if doubled:
        needs(machine, 3, "performance mode")
        if columns < STATIONARY_FREE:
            refuse("operand", "performance mode is not combined with tiling of columns")
    dst = tile(dst, "dst", PSUM)
    stationary, moving = tile(stationary, "stationary", SBUF), tile(moving, "moving", SBUF)
    _check_types(machine, stationary, moving, doubled)
    _check_product(machine, dst, stationary, moving, 1 + doubled, rows, columns)
    transposes = is_transpose and machine.generation > 2
    _check_result(machine, dst, stationary if transposes else None)
    destination(dst)
    if machine.generation < 4:
        in_one_bank(dst)
    machine.counters.matmuls += 1
    machine.counters.macs += stationary.size * (moving.free // (1 + doubled))
    if machine.trace is not None:
        machine.trace.flag(onezero=is_stationary_onezero or is_moving_onezero or is_transpose)
    if not machine.computes:
        return ISSUED
    adds = _accumulates(machine, dst, accumulate)
    operands = flat(read(stationary, "stationary")), flat(read(moving, "moving"))
    if doubled:
        pairs = [values.reshape(2 * len(values), -1) for values in operands]
        result = pairs[0].T @ pairs[1]
    elif transposes:
        result = _transposed(moving, *operands)
    else:
        result = operands[0].T @ operands[1]
    if dst.ndim != 2:
        result = result.reshape(dst.shape)
    if adds:
        result = dst.array + result
    dst.array[...] = result if dst.dtype is FLOAT32 else rounded(result, dst.dtype, machine.precise)
    if not adds:
        written(dst, by_matmul=True)
    return ISSUED


def _tiling(machine: Machine, position: tuple[int, ...], size: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of the part of the Tensor Engine that multiplies, all of it by default."""
    if bool(position) != bool(size):
        refuse("operand", f"tile_position {position} and tile_size {size} are set together")
    if not size:
        return PARTITIONS, STATIONARY_FREE
    sizes = (64, 128) if machine.generation == 2 else (32, 64, 128)
    for start, extent in zip(position, size, strict=False):
        if extent not in sizes:
            rule = "target" if extent == 32 else "operand"
            refuse(rule, f"tile_size {size}: {machine.target.name} has tiles of {sizes}")
        if start % extent or not 0 <= start <= PARTITIONS - extent:
            refuse("operand", f"tile_position {position} is no multiple of tile_size {size} inside of {PARTITIONS}")
    if len(size) != 2 or len(position) != 2:
        refuse("operand", f"tile_position {position} and tile_size {size} are (row, column)")
    return size[0], size[1]


def _transposed(moving: NkiTensor, data: np.ndarray, identity: np.ndarray) -> np.ndarray:
    """Bit by bit from gen3 on."""
    if not np.array_equal(identity, np.eye(*identity.shape, dtype=identity.dtype)):
        refuse("operand", f"is_transpose: moving {moving} must be an identity matrix")
    return data.T


def _check_types(machine: Machine, stationary: NkiTensor, moving: NkiTensor, doubled: bool) -> None:
    """What the Tensor Engine multiplies."""
    for access, what in ((stationary, "stationary"), (moving, "moving")):
        if not access.dtype.is_float:
            refuse("matmul-dtype", f"{what} {access} is no float, which the Tensor Engine multiplies")
        if access.dtype.name == "float8_e4m3fn" and machine.generation < 4:
            refuse("matmul-dtype", f"{what} {access} needs gen4")
        if doubled and access.dtype.itemsize != 1:
            refuse("matmul-dtype", f"{what} {access} must be a float of 8 bits in performance mode")
        if doubled and (access.ndim < 3 or access.shape[1] != 2):
            refuse("shape", f"{what} {access} must have 2 as its first free dimension in performance mode")
    if (stationary.dtype is FLOAT32) != (moving.dtype is FLOAT32):
        refuse("matmul-dtype", f"float32 pairs with float32 only: stationary {stationary}, moving {moving}")
    if {stationary.dtype.name, moving.dtype.name} == {"float8_e4m3", "float8_e4m3fn"}:
        refuse("matmul-dtype", f"float8_e4m3 and float8_e4m3fn are not mixed: stationary {stationary}, moving {moving}")


def _check_product(
    machine: Machine, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, pairs: int, rows: int, columns: int
) -> None:
    """Sizes that the Tensor Engine multiplies; `pairs` is 2 in performance mode."""
    k, m, n = stationary.shape[0], stationary.free // pairs, moving.free // pairs
    if k != moving.shape[0]:
        refuse("shape", f"stationary {stationary} and moving {moving} differ in partitions, the contraction")
    if start_partition(stationary) != start_partition(moving):
        refuse("matmul-partitions", f"stationary {stationary} and moving {moving} start at different partitions")
    if k > rows:
        refuse("shape", f"stationary {stationary} has {k} partitions, the tile has {rows} rows")
    if m > columns:
        refuse("matmul-stationary", f"stationary {stationary} has {m} free elements, at most {columns} fit")
    most = MOVING_FREE if machine.generation < 4 else BANK * BANKS // dst.dtype.itemsize
    if n > most:
        refuse("matmul-moving", f"moving {moving} has {n} free elements, at most {most} fit")
    if dst.shape[0] != m or dst.free != n:
        refuse("shape", f"dst {dst} must be {m} partitions of {n} elements")


def _check_result(machine: Machine, dst: NkiTensor, transposed: NkiTensor | None) -> None:
    """The type of dst: float32, on gen4 bfloat16 too, and that of what is transposed."""
    if dst.dtype is FLOAT32 or (machine.generation > 3 and dst.dtype.name == "bfloat16"):
        return
    if transposed is not None and dst.dtype is transposed.dtype and dst.dtype.itemsize == 2:
        return
    refuse("matmul-dtype", f"dst {dst} must be float32 on {machine.target.name}")


def _accumulates(machine: Machine, dst: NkiTensor, accumulate: bool | None) -> bool:
    """Whether the product is added to dst; None adds to what has been written and starts where nothing has."""
    if accumulate is not None and type(accumulate) is not bool:
        refuse("operand", f"accumulate must be True, False or None, not {accumulate!r}")
    if accumulate is False:
        return False
    storage = dst.storage
    count = storage.written.count(dst.shape, dst.strides, dst.offset)
    if accumulate is None and count == 0:
        return False
    if count < dst.size:
        refuse(
            "psum-uninitialised", f"accumulates onto dst {dst}, of which {dst.size - count} elements are not written"
        )
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
