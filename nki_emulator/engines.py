"""Which engine runs an instruction, and what it cannot do. Page: "nki.isa", Neuron SDK 2.32."""

from __future__ import annotations

from enum import Enum, IntEnum

from .errors import refuse
from .machine import Machine
from .storage import Region
from .tensor import NkiTensor

Engine = Enum("Engine", ["unknown", "tensor", "scalar", "gpsimd", "dma", "vector", "sync"], start=0)
DgeMode = Enum("DgeMode", ["unknown", "swdge", "hwdge", "none"], start=0)
OobMode = Enum("OobMode", ["error", "skip"], start=0)
ReduceCmd = Enum("ReduceCmd", ["idle", "reset", "reduce", "reset_reduce", "load_reduce"], start=0)
MatmulPerfMode = Enum("MatmulPerfMode", {"none": "none", "double_row": "double_row"})
NcVersion = IntEnum("NcVersion", {"gen2": 2, "gen3": 3, "gen4": 4})


class NkiInstruction:
    """What an instruction returns: scheduling hints, which change no result here."""

    def depends_on(self, *_: NkiInstruction) -> NkiInstruction:
        return self


ISSUED = NkiInstruction()


def engine_of(machine: Machine, asked: Engine, allowed: tuple[Engine, ...], *tiles: NkiTensor) -> None:
    """Refuse an engine that has no such instruction, or GpSimd where a tile is in PSUM."""
    if asked is Engine.unknown:
        return
    if asked not in allowed:
        names = ", ".join(engine.name for engine in allowed)
        refuse("engine", f"{machine.operation} does not run on {asked}; {machine.target.name} has it on: {names}")
    if asked is Engine.gpsimd:
        no_psum(machine, *tiles)


def no_psum(machine: Machine, *tiles: NkiTensor) -> None:
    for found in tiles:
        if found.storage.region is Region.psum:
            refuse("gpsimd-psum", f"{machine.operation} runs on GpSimd, which cannot access {found}")


def dma_modes(machine: Machine, dge_mode: DgeMode, oob_mode: OobMode, priority: int | None) -> None:
    """Features of DMA that a target lacks, or that nothing here depends on."""
    if dge_mode is DgeMode.hwdge and machine.generation < 3:
        refuse("target", "hardware descriptor generation needs gen3")
    if priority is not None and machine.generation < 4:
        refuse("target", "DMA priorities need gen4")
    if oob_mode is not OobMode.error:
        refuse("not-implemented", "oob_mode.skip")
