"""The three tiers that run the kernels: a Neuron device, the vendor's simulator, or the emulator. Each is itself or
unavailable; none stands in for another."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import nki_emulator
from conformance.implementations.bridges.neuron import TRAINIUM, neuron_device, release
from conformance.implementations.bridges.neuron_stacks import NKI, SIMULATOR
from conformance.implementations.devices import Unavailable

from . import toolchain

HERE = Path(__file__).parent
CANARY = "canary"
TRAINIUM_OF = {toolchain.TARGETS[kind]: kind for kind in TRAINIUM}
"""Generation of the NeuronCore -> marker."""


class Tier:
    """The common base of the three tiers."""

    untimed = "it executes the kernel on another device"
    install = ""
    target: str

    @property
    def stands_for(self) -> tuple[str, ...]:
        """Names of the device whose kernels the tier executes."""
        return (TRAINIUM_OF[self.target],)

    def open(self, path: Path) -> ModuleType:
        """Load the kernels of any file."""
        raise NotImplementedError

    @cache  # noqa: B019 - tiers live as long as the process
    def load(self, name: str) -> ModuleType:
        """Load the kernels of a file in this folder."""
        return self.open(HERE / f"{name}.py" if name == CANARY else HERE / "kernels" / f"{name}.py")

    def metered(self) -> AbstractContextManager[dict[str, int]]:
        """Yield no counts: neither device nor simulator tells what a kernel moved."""
        return nullcontext({})

    def modelled(self) -> AbstractContextManager[nki_emulator.Modelled]:
        """Raise Unavailable: only the emulator models the time that a kernel would take."""
        raise Unavailable("only nki@emu and nki@emu-gen3 model the time of a kernel")

    def require(self) -> None:
        """Raise Unavailable, with the reason, where the tier cannot run kernels here."""
        if (absence := self._absence()) is not None:
            raise Unavailable(absence)

    @cache  # noqa: B019
    def _absence(self) -> str | None:
        """Return why the tier is not here, or None. It is found once: the canary kernel is compiled and run."""
        try:
            self.look()
        except Unavailable as absence:
            return str(absence)
        return None

    def look(self) -> None:
        """Raise Unavailable where a requirement is not here, or the tier computes wrong results."""
        self.require_right()

    def require_right(self) -> None:
        """Raise Unavailable where the canary kernel cannot be loaded, or its results are wrong."""
        try:
            canary = self.load(CANARY)
        except Exception as problem:  # a toolchain may refuse a file with anything
            reason = f"the canary kernel cannot be loaded ({type(problem).__name__}: {problem})"
            raise Unavailable(reason) from None
        toolchain.require_right(canary, self.target)


@dataclass(frozen=True)
class Device(Tier):
    """The device that is here. The toolchain compiles a kernel for each call and copies NumPy arrays there and back."""

    untimed = "the toolchain compiles the kernel in each call and copies arrays to the device and back"
    stands_for = ()

    @property
    def install(self) -> str:  # type: ignore[override]
        return NKI.way(neuron_device())

    @property
    def target(self) -> str:  # type: ignore[override]
        """Generation of the device's NeuronCore."""
        return toolchain.TARGETS[neuron_device()]

    def open(self, path: Path) -> ModuleType:
        return toolchain.loaded(path, lambda kernel: kernel)

    def look(self) -> None:
        target = toolchain.asked_target()
        if target not in ("", self.target):
            raise Unavailable(f"{toolchain.TARGET}={os.environ[toolchain.TARGET]}, but the device is {neuron_device()}")
        toolchain.require(NKI)
        self.require_right()

    def describe(self) -> dict[str, str]:
        return {"tier": "device", "device": neuron_device(), "target": self.target, "nki": release("nki")}


@dataclass(frozen=True)
class Simulator(Tier):
    """nki.simulate for one generation of the NeuronCore, on the CPU, which rounds to bfloat16 as the device does."""

    target: str

    @property
    def _settings(self) -> dict[str, str]:
        return {toolchain.TARGET: self.target, toolchain.PRECISE: "1"}

    def open(self, path: Path) -> ModuleType:
        with toolchain.environment(**self._settings):
            return toolchain.loaded(path, lambda kernel: partial(self._simulated, kernel))

    def _simulated(self, kernel: Any, *arguments: Any, **named: Any) -> Any:
        from nki import simulate

        with toolchain.environment(**self._settings):
            return simulate(kernel)(*arguments, **named)

    def look(self) -> None:
        if platform.system() != "Linux" or platform.machine() != "x86_64":
            raise Unavailable("the nki package is for Linux on x86_64 only")
        toolchain.require(SIMULATOR)
        self.require_right()

    def describe(self) -> dict[str, str]:
        facts = {"tier": "simulator", "device": f"nki.simulate, {self.target}", "nki": release("nki")}
        return facts | {"target": self.target, toolchain.PRECISE: self._settings[toolchain.PRECISE]}


@dataclass(frozen=True)
class Emulator(Tier):
    """The emulator of NKI for one generation of the NeuronCore. It needs NumPy alone."""

    target: str

    def open(self, path: Path) -> ModuleType:
        return nki_emulator.load(path, target=self.target)

    @contextmanager
    def metered(self) -> Iterator[dict[str, int]]:
        """Count bytes through the DMA, instructions in all and of the Tensor Engine, and peaks in bytes a partition."""
        counts: dict[str, int] = {}
        with nki_emulator.counting() as counters:
            yield counts
        counts |= {
            "dma_bytes": counters.dma_bytes_in + counters.dma_bytes_out,
            "instructions": counters.instructions.total(),
            "matmuls": counters.matmuls,
            "sbuf_peak": counters.sbuf_peak,
            "psum_peak": counters.psum_peak,
        }

    def modelled(self) -> AbstractContextManager[nki_emulator.Modelled]:
        """Model the time that kernels inside the block would take on the device; they issue instructions and compute no
        values."""
        # backward-weight looks for NaN and infinity on gen2, and repeats its work element by element if it finds any
        return nki_emulator.modelling(arithmetic=False, registers=0)

    def describe(self) -> dict[str, str]:
        """Return facts for records: there is no toolchain; the hash of its source names the emulator."""
        facts = {"tier": "emulator", "device": f"emulator, {self.target}", "nki": "none", "target": self.target}
        return facts | {"emulator": nki_emulator.source_hash()}
