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
DmaEngine = Enum("DmaEngine", {"dma": 1, "gpsimd_dma": 2})
NcVersion = IntEnum("NcVersion", {"gen2": 2, "gen3": 3, "gen4": 4})


class NkiInstruction:
    """What an instruction returns: scheduling hints, which change no result here."""

    def depends_on(self, *_: NkiInstruction) -> NkiInstruction:
        return self


ISSUED = NkiInstruction()


def engine_of(machine: Machine, engine: Engine, allowed: tuple[Engine, ...], *tiles: NkiTensor) -> None:
    """Refuse an engine that has no such instruction, or GpSimd where a tile is in PSUM."""
    member(engine, Engine, "engine")
    if engine is Engine.unknown:
        return
    if machine.trace is not None:
        machine.trace.engine(engine.name)
    if engine not in allowed:
        names = ", ".join(engine.name for engine in allowed)
        refuse("engine", f"{machine.operation} does not run on {engine}; {machine.target.name} has it on: {names}")
    if engine is Engine.gpsimd:
        no_psum(machine, *tiles)


def no_psum(machine: Machine, *tiles: NkiTensor) -> None:
    for access in tiles:
        if access.storage.region is Region.psum:
            refuse("gpsimd-psum", f"{machine.operation} runs on GpSimd, which cannot access {access}")


def member(value: object, kind: type[Enum], what: str) -> None:
    """Refuse numbers and strings in place of a member of an enumeration."""
    if not isinstance(value, kind):
        refuse("enum", f"{what} {value!r} is no member of nki.isa's enumeration")


def needs(machine: Machine, generation: int, what: str = "") -> None:
    """Refuse what an earlier generation of the NeuronCore does not have."""
    if machine.generation < generation:
        refuse("target", f"{what or machine.operation} needs gen{generation}; the target is {machine.target.name}")


def dma_modes(
    machine: Machine, dge_mode: DgeMode, oob_mode: OobMode, priority: int | None, engine: Engine = Engine.unknown
) -> None:
    """Features of DMA that a target lacks, and modes that exclude each other."""
    member(dge_mode, DgeMode, "dge_mode")
    member(oob_mode, OobMode, "oob_mode")
    member(engine, Engine, "engine")
    if dge_mode is DgeMode.hwdge:
        needs(machine, 3, "hardware descriptor generation")
    if priority is not None:
        needs(machine, 4, "a priority of DMA")
        if type(priority) is not int or not 0 <= priority <= 3:
            refuse("operand", f"priority {priority!r} is not 0 to 3")
    if engine is not Engine.unknown:
        if dge_mode is not DgeMode.hwdge:
            refuse("dge-mode", f"engine {engine.name} triggers hardware descriptor generation alone: dge_mode is hwdge")
        if engine not in (Engine.sync, Engine.scalar):
            refuse("engine", f"engine {engine.name} cannot trigger it; engine.sync and engine.scalar can")
