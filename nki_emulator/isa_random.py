"""Random numbers. Page of each: "nki.isa.<name>", Neuron SDK 2.32.

The pages give distributions and say that a seed repeats a sequence, but not the sequence: this one is NumPy's Philox.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .engines import ISSUED, Engine, NkiInstruction, engine_of, needs
from .errors import refuse
from .machine import begin
from .operands import SBUF, matched, operand, read, tile, write
from .tensor import NkiTensor


def rng(dst: NkiTensor, engine: Engine = Engine.vector, name: str | None = None) -> NkiInstruction:
    """Random bits in each element of a tile of integers."""
    machine = begin("rng")
    dst = tile(dst, "dst")
    if dst.dtype.is_float:
        refuse("operand-dtype", f"dst {dst} must be of integers")
    if engine is Engine.gpsimd:
        needs(machine, 3, "rng on GpSimd")
    engine_of(machine, engine, (Engine.vector, Engine.gpsimd), dst)
    bits = machine.random.integers(0, 2**32, dst.shape, np.uint32)
    write(machine, dst, bits.astype(f"u{dst.dtype.itemsize}").view(dst.dtype.stored))
    return ISSUED


def rand2(dst: NkiTensor, min: Any, max: Any, name: str | None = None) -> NkiInstruction:
    """Uniform numbers from min to max, numbers or (P, 1), on gen4."""
    machine = begin("rand2")
    needs(machine, 4)
    dst = tile(dst, "dst")
    low, high = operand(min, dst, "min"), operand(max, dst, "max")
    if not (np.asarray(low) < np.asarray(high)).all():
        refuse("operand", "min must be below max")
    write(machine, dst, low + machine.random.random(dst.shape, np.float32) * (high - low))
    return ISSUED


def dropout(dst: NkiTensor, data: NkiTensor, prob: Any, name: str | None = None) -> NkiInstruction:
    """dst = data with each element replaced by 0 with a probability, a number or (P, 1)."""
    machine = begin("dropout")
    dst, data = tile(dst, "dst"), tile(data, "data")
    matched(dst, data=data)
    if dst.dtype is not data.dtype:
        refuse("operand-dtype", f"dst {dst} must be {data.dtype} as data is")
    if isinstance(prob, NkiTensor) and not (
        prob.dtype.name == "float32" if not data.dtype.is_float else prob.dtype.is_float
    ):
        refuse("operand-dtype", f"prob {prob} must be a float, float32 for integers")
    dropped = machine.random.random(dst.shape, np.float32) < operand(prob, data, "prob", dtype=None)
    write(machine, dst, np.where(dropped, 0, read(data, "data").reshape(dst.shape)).astype(dst.dtype.held))
    return ISSUED


def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Begin the sequence that a (1, 1) tile of 32 bits stands for."""
    machine = begin("set_rng_seed")
    seeds = tile(src_seeds, "src_seeds")
    if seeds.size != 1 or seeds.dtype.itemsize != 4:
        refuse("shape", f"src_seeds {seeds} must be one element of 32 bits")
    machine.random = np.random.Generator(np.random.Philox(int(read(seeds, "src_seeds").view(np.uint32).reshape(-1)[0])))
    return ISSUED


def rand_set_state(src_seeds: NkiTensor, engine: Engine = Engine.gpsimd, name: str | None = None) -> NkiInstruction:
    """Seed the generator of each partition with 6 elements (GpSimd) or 24 (Vector Engine, gen4)."""
    machine = begin("rand_set_state")
    needs(machine, 4 if engine is Engine.vector else 3)
    seeds = tile(src_seeds, "src_seeds", SBUF)
    engine_of(machine, engine, (Engine.gpsimd, Engine.vector), seeds)
    if seeds.dtype.name != "uint32" or seeds.ndim != 2:
        refuse("operand-dtype", f"src_seeds {seeds} must be uint32 in two dimensions")
    if seeds.free != (24 if engine is Engine.vector else 6):
        refuse("shape", f"src_seeds {seeds} must be 6 elements a partition for GpSimd, 24 for the Vector Engine")
    state = [int(value) for value in read(seeds, "src_seeds").reshape(-1)]
    machine.random = np.random.Generator(np.random.Philox(np.random.SeedSequence(state)))
    return ISSUED
