"""A model of the time that a kernel takes on the device: counted by the emulator, never measured.

    with modelling(arithmetic=False) as modelled:
        module.kernel(x, w)
    print(modelled)

Three times, in microseconds, of one NeuronCore:

lower      every engine works without a pause and all of them at once: that of the busiest. DMA uses all 16 engines.
scheduled  each engine takes its instructions in program order, and each waits for the tensors that it reads, for those
           who read what it overwrites, and for memory that was given back. Tensors count whole: a part waits for all of
           it. A DMA uses the engines of its partitions; those that read HBM and those that write it are two queues.
           Never less than `lower`.
upper      nothing overlaps: all instructions one after another, each with its latency.

What is left out: launching the kernel, instruction fetch, collisions in SBUF and PSUM, what the compiler moves, merges
or spills, and descriptor generation on the device (about 600 ns for a DMA that asks for hwdge).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .cost_cycles import CLOCKS, COSTED, DEPENDENT, Issue, cost
from .cost_transfers import BANDWIDTH, ENGINES, LATENCY, transfer
from .errors import refuse
from .storage import Region, Storage
from .targets import BANKS, TARGETS, Target
from .tensor import NkiTensor

_WRITTEN = ("dst", "reduce_res")
"""Parameters of instructions that are outputs."""


@dataclass(slots=True)
class Load:
    """What one engine does: instructions, cycles (none for DMA) and busy microseconds."""

    instructions: int = 0
    cycles: float = 0.0
    us: float = 0.0


@dataclass(slots=True)
class Modelled:
    """The modelled time of the kernels of a block, one after another, and what it is made of.

    engines      tensor, vector, scalar, gpsimd and dma, those that were used
    runs         bytes of a contiguous run in HBM -> bytes moved in such runs; `sbuf_runs` the same in SBUF
    descriptors  pieces that are contiguous on both sides
    """

    target: str = ""
    engines: dict[str, Load] = field(default_factory=dict)
    transfers: int = 0
    descriptors: int = 0
    bytes: int = 0
    runs: Counter[int] = field(default_factory=Counter)
    sbuf_runs: Counter[int] = field(default_factory=Counter)
    lower_us: float = 0.0
    scheduled_us: float = 0.0
    upper_us: float = 0.0

    @property
    def limit(self) -> str:
        """The busiest engine."""
        return max(self.engines, key=lambda name: self.engines[name].us, default="none")

    @property
    def shortest_run(self) -> int:
        """Bytes of the shortest contiguous run in HBM; 0 if there was none."""
        return min(self.runs, default=0)

    def roofline_us(self, dtype: str, flops: int, moved: int) -> float:
        """The least time of so many operations (a multiply-add is two) in fp32, bf16 or fp16, and so many bytes of HBM.

        Peaks of the Tensor Engine: the pages of `cost_cycles`; of the DMA engines of a core: those of `cost_transfers`.
        """
        target = TARGETS[self.target].generation
        return max(flops / CLOCKS[target].tflops[dtype] / 1e6, moved / BANDWIDTH[target] / 1e3)

    def share_below(self, run: int) -> float:
        """Of all bytes, those in runs shorter than so many bytes."""
        total = self.runs.total()
        return sum(moved for length, moved in self.runs.items() if length < run) / total if total else 0.0

    def add(self, other: Modelled) -> None:
        """Another run after this one."""
        if self.target not in ("", other.target):
            refuse("target", f"one block models {self.target} and {other.target}; use one for each")
        self.target = other.target
        for name, load in other.engines.items():
            total = self.engines.setdefault(name, Load())
            total.instructions += load.instructions
            total.cycles += load.cycles
            total.us += load.us
        self.runs.update(other.runs)
        self.sbuf_runs.update(other.sbuf_runs)
        for name in ("transfers", "descriptors", "bytes", "lower_us", "scheduled_us", "upper_us"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __str__(self) -> str:
        times = f"{self.lower_us:,.1f} to {self.upper_us:,.1f} us, scheduled {self.scheduled_us:,.1f} us"
        loads = ", ".join(f"{name} {load.us:,.1f} us ({load.instructions:,})" for name, load in self.engines.items())
        moved = f"{self.bytes:,} bytes in {self.descriptors:,} pieces, shortest run {self.shortest_run} bytes"
        return f"modelled for {self.target}: {times}; limited by {self.limit}; {loads}; {moved}"


class Memory:
    """When memory that was given back is free again: a reservation takes what was given back first."""

    def __init__(self, size: int) -> None:
        self._free = [(0.0, size)]

    def reserve(self, size: int) -> float:
        """When so much is free."""
        since = 0.0
        while size > 0 and self._free:
            since, room = heapq.heappop(self._free)
            if room > size:
                heapq.heappush(self._free, (since, room - size))
            size -= room
        return since

    def release(self, size: int, when: float) -> None:
        heapq.heappush(self._free, (when, size))


class Trace:
    """What one run of a kernel issues, costed as it goes. Times are nanoseconds."""

    def __init__(self, target: Target) -> None:
        if target.generation not in CLOCKS:
            refuse("not-implemented", f"the time of a kernel on {target.name}")
        self.target, self.clocks = target, CLOCKS[target.generation]
        self.modelled = Modelled(target.name)
        self._issue: Issue | None = None
        self._idle: dict[str, float] = {}
        """When each queue of instructions takes its next one."""
        self._end = self._serial = self._moving = 0.0
        self._memory = {Region.sbuf: Memory(target.sbuf), Region.psum: Memory(BANKS)}

    def begin(self, name: str) -> None:
        self.close()
        self._issue = Issue(name) if name in COSTED else None

    def operand(self, what: str, tensor: NkiTensor) -> None:
        if self._issue is not None:
            self._issue.operands[what] = tensor

    def engine(self, name: str) -> None:
        if self._issue is not None:
            self._issue.engine = name

    def operator(self, name: str) -> None:
        if self._issue is not None:
            self._issue.operators.append(name)

    def flag(self, **flags: object) -> None:
        if self._issue is not None:
            self._issue.flags.update(flags)

    def reserve(self, storage: Storage, size: int) -> None:
        """Memory of a new tensor: it cannot be written before somebody else has given it back."""
        storage.ready = storage.used = self._memory[storage.region].reserve(size)

    def release(self, storage: Storage, size: int) -> None:
        self._memory[storage.region].release(size, max(storage.ready, storage.used))

    def close(self) -> None:
        """Cost the instruction that is open. Its tensors are let go: they may be the last to hold their memory."""
        issue, self._issue = self._issue, None
        if issue is None:
            return
        engine, busy, latency = self._moved(issue) if issue.name.startswith("dma_") else self._computed(issue)
        self._serial += busy + latency
        self._schedule(issue, engine, busy, latency)

    def _computed(self, issue: Issue) -> tuple[str, float, float]:
        estimate = cost(issue, self.target)
        assert estimate is not None, "begin() opens instructions that have a cost"
        engine, cycles = estimate
        clock = self.clocks.of(engine)
        self._count(engine, cycles, cycles / clock)
        return engine, cycles / clock, DEPENDENT / clock

    def _moved(self, issue: Issue) -> tuple[str, float, float]:
        dst, src = issue.operands["dst"], issue.operands["src"]
        traffic = transfer(dst, src, self.target, issue.name == "dma_transpose")
        report, busy = self.modelled, traffic.occupied / BANDWIDTH[self.target.generation]
        report.transfers += 1
        report.descriptors += traffic.descriptors
        report.bytes += traffic.moved
        if traffic.hbm_run:
            report.runs[traffic.hbm_run] += traffic.moved
        if traffic.sbuf_run:
            report.sbuf_runs[traffic.sbuf_run] += traffic.moved
        self._count("dma", 0.0, busy)
        return "dma", busy * ENGINES / traffic.engines, LATENCY

    def _count(self, engine: str, cycles: float, busy: float) -> None:
        load = self.modelled.engines.setdefault(engine, Load())
        load.instructions += 1
        load.cycles += cycles
        load.us += busy / 1e3

    def _schedule(self, issue: Issue, engine: str, busy: float, latency: float) -> None:
        """In order on its engine, after what it reads is there and what it overwrites has been read."""
        queue = engine
        if engine == "dma":
            queue = "in" if issue.operands["dst"].storage.region.on_chip else "out"
        start = self._idle.get(queue, 0.0)
        for what, tensor in issue.operands.items():
            storage = tensor.storage
            if what not in _WRITTEN or issue.name == "tensor_copy_predicated":
                start = max(start, storage.ready)
            elif storage.region.on_chip:
                start = max(start, storage.used)
        self._idle[queue] = end = start + busy
        for what, tensor in issue.operands.items():
            storage = tensor.storage
            if what in _WRITTEN:
                storage.ready = max(storage.ready, end + latency)
            else:
                storage.used = max(storage.used, end)
        self._end = max(self._end, end + latency)

    def finish(self) -> Modelled:
        """Everything that was issued."""
        self.close()
        report = self.modelled
        report.lower_us = max((load.us for load in report.engines.values()), default=0.0)
        report.scheduled_us, report.upper_us = max(self._end / 1e3, report.lower_us), self._serial / 1e3
        return report


@dataclass(slots=True)
class Model:
    """A block of `modelling`."""

    arithmetic: bool
    modelled: Modelled
    registers: int | None = None


_models: list[Model] = []


@contextmanager
def modelling(arithmetic: bool = True, registers: int | None = None) -> Iterator[Modelled]:
    """Model the time of the kernels that run inside the block, in whatever thread; blocks may nest.

    Without `arithmetic` nothing is computed: kernels issue the same instructions and return zeros. For kernels whose
    instructions do not depend on values in memory; others are refused, unless `registers` says what register_load is to
    find: 0 where a kernel looks for something rare, and does more if it is there. A kernel of the first generation of
    the API, or for gen4, ends with `EmulationError`, rule not-implemented.
    """
    model = Model(arithmetic, Modelled(), registers)
    _models.append(model)
    try:
        yield model.modelled
    finally:
        _models[:] = [other for other in _models if other is not model]


def trace_for(target: Target) -> tuple[Trace | None, bool]:
    """What follows a kernel that begins now, if anything does, and whether it computes."""
    if not _models:
        return None, True
    return Trace(target), all(model.arithmetic for model in _models)


def assumed_register() -> int | None:
    """What a register is to hold that is loaded from memory while nothing is computed."""
    return next((model.registers for model in reversed(_models) if not model.arithmetic), None)


def deliver(trace: Trace) -> None:
    run = trace.finish()
    for model in _models:
        model.modelled.add(run)
