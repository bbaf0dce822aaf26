"""The core a kernel runs on: what it holds at the moment, what it has done, and how much it may do."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .errors import outside, refuse
from .targets import BANK, BANKS, PARTITIONS, Target

if TYPE_CHECKING:
    from .cost import Trace

MEMORY = 4 * 2**30
"""Bytes that a kernel may allocate in HBM, or make Python allocate."""


@dataclass(slots=True)
class Counters:
    """What kernels did: bytes moved between HBM and the chip, matrix products, and peaks in bytes a partition."""

    dma_bytes_in: int = 0
    """Read from HBM."""
    dma_bytes_out: int = 0
    """Written to HBM."""
    matmuls: int = 0
    macs: int = 0
    instructions: Counter[str] = field(default_factory=Counter)
    sbuf_peak: int = 0
    psum_peak: int = 0
    """In whole banks."""

    def add(self, other: Counters) -> None:
        """What another run did on top of this one; peaks are the larger of the two."""
        for name in ("dma_bytes_in", "dma_bytes_out", "matmuls", "macs"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.instructions.update(other.instructions)
        self.sbuf_peak = max(self.sbuf_peak, other.sbuf_peak)
        self.psum_peak = max(self.psum_peak, other.psum_peak)


_counting: list[Counters] = []


@contextmanager
def counting() -> Iterator[Counters]:
    """Count what the kernels do that run inside the block, in whatever thread; blocks may nest."""
    counters = Counters()
    _counting.append(counters)
    try:
        yield counters
    finally:
        _counting[:] = [other for other in _counting if other is not counters]


class Registers:
    """The accumulator registers of one engine: one float32 a partition, undefined until they are reset."""

    def __init__(self) -> None:
        self.values = np.zeros(PARTITIONS, np.float32)
        self.defined = np.zeros(PARTITIONS, np.bool_)

    def write(self, values: np.ndarray) -> None:
        """Values [P] of the first P lanes."""
        self.values[: values.size], self.defined[: values.size] = values, True

    def forget(self) -> None:
        """They hold what no page says."""
        self.defined[:] = False

    def read(self, partitions: int) -> np.ndarray:
        """[P]; refused where nothing has been stored since the kernel began."""
        if not self.defined[:partitions].all():
            refuse("register-uninitialised", "the accumulator registers are used before a reset; reset them first")
        return self.values[:partitions]


class Machine:
    """One run of one kernel."""

    def __init__(self, kernel: str, target: Target, precise: bool, instructions: int) -> None:
        self.kernel, self.target, self.precise = kernel, target, precise
        self.generation = target.generation
        self.budget = instructions
        self.counters = Counters()
        self.executed = self.counters.instructions
        self.sbuf = self.banks = self.hbm = 0
        self.unordered = True
        """False inside nl.no_reorder()."""
        self.scalar_registers, self.vector_registers = Registers(), Registers()
        self.operation = ""
        self.trace: Trace | None = None
        """What follows the instructions to model their time, where somebody asked for it."""
        self.computes = True
        """Whether instructions do their arithmetic, or are only issued."""
        self.assumed: int | None = None
        """What a register holds that is loaded from memory then."""

    def begin(self, name: str) -> None:
        self.operation = name
        self.executed[name] += 1
        self.budget -= 1
        if self.trace is not None:
            self.trace.begin(name)
        if self.budget < 0:
            refuse("instruction-limit", "the kernel issued more instructions than its limit; it may not end")

    def reserve_sbuf(self, size: int) -> None:
        self.sbuf += size
        self.counters.sbuf_peak = max(self.counters.sbuf_peak, self.sbuf)
        if self.sbuf > self.target.sbuf:
            limit = f"{self.target.name} has {self.target.sbuf}"
            refuse("sbuf-capacity", f"live tensors need {self.sbuf} bytes of SBUF a partition; {limit}")

    def reserve_banks(self, banks: int) -> None:
        """Take whole banks of PSUM: whether two tensors may share one is not documented."""
        self.banks += banks
        self.counters.psum_peak = max(self.counters.psum_peak, self.banks * BANK)
        if self.banks > BANKS:
            refuse("psum-capacity", f"live tensors need {self.banks} banks of PSUM; there are {BANKS} of {BANK} bytes")

    def reserve_hbm(self, size: int) -> None:
        """Memory of this machine that stands for HBM, so that a kernel that allocates without end is stopped."""
        self.hbm += size
        if self.hbm > MEMORY:
            refuse("memory-limit", f"live tensors in HBM need {self.hbm} bytes here; the emulator holds {MEMORY}")

    def finish(self) -> None:
        for counters in _counting:
            counters.add(self.counters)


_current = threading.local()


def running() -> Machine | None:
    return getattr(_current, "machine", None)


def current() -> Machine:
    machine = running()
    if machine is None:
        outside("outside-kernel", "operations and tensors of nki exist in a kernel called through nki.jit only")
    return machine


def begin(name: str) -> Machine:
    machine = current()
    machine.begin(name)
    return machine


@contextmanager
def executing(machine: Machine) -> Iterator[None]:
    """Make a machine this thread's, which has none, and deliver its counts in the end."""
    _current.machine = machine
    try:
        yield
    finally:
        _current.machine = None
        machine.finish()
