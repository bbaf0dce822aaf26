"""What runs the kernels: a Neuron device, the vendor's simulator, or the emulator. Each is itself or unavailable; none
stands in for another."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import nki_emulator
from conformance.implementations.bridges.neuron import TRAINIUM, neuron_device, release
from conformance.implementations.registry import source_hash

from . import toolchain

HERE = Path(__file__).parent
CANARY = "canary"
TRAINIUM_OF = {toolchain.TARGETS[kind]: kind for kind in TRAINIUM}
"""Generation of the NeuronCore -> marker."""


def _path(name: str) -> Path:
    return HERE / f"{name}.py" if name == CANARY else HERE / "kernels" / f"{name}.py"


class Tier:
    """What the three have in common."""

    untimed = "it executes the kernel on another device"

    def open(self, path: Path) -> ModuleType:
        """The kernels of any file."""
        raise NotImplementedError

    @cache  # noqa: B019 - tiers live as long as the process
    def load(self, name: str) -> ModuleType:
        """The kernels of a file here."""
        return self.open(_path(name))


@dataclass(frozen=True)
class Device(Tier):
    """The device that is here. The toolchain compiles a kernel for each call and copies NumPy arrays there and back."""

    wide = False
    untimed = "the toolchain compiles the kernel in each call and copies arrays to the device and back"

    @property
    def stands_for(self) -> tuple[str, ...]:
        """It is itself."""
        return ()

    @property
    def target(self) -> str:
        """Generation of its NeuronCore."""
        return toolchain.TARGETS[neuron_device()]

    def open(self, path: Path) -> ModuleType:
        """The kernels of any file."""
        return toolchain.loaded(path, lambda kernel: kernel)

    @cache  # noqa: B019
    def unavailable(self) -> str:
        """No toolchain, one for another target, or one whose results are wrong."""
        asked = toolchain.asked_target()
        if asked not in ("", self.target):
            return f"{toolchain.TARGET}={os.environ[toolchain.TARGET]}, but the device is {neuron_device()}"
        return toolchain.missing() or _fault(self, generation=self.target)

    def metered(self) -> AbstractContextManager[dict[str, int]]:
        """Nothing: neither says what a kernel moved."""
        return nullcontext({})

    def describe(self) -> dict[str, str]:
        """The device's marker, and what compiled for it."""
        return {"tier": "device", "device": neuron_device(), "target": self.target, "nki": release("nki")}


@dataclass(frozen=True)
class Simulator(Tier):
    """nki.simulate for one generation of the NeuronCore, on the CPU.

    `precise` rounds to bfloat16 as the device does; without it bfloat16 tensors are kept in fp32 throughout, which
    tells a kernel's logic from its rounding.
    """

    target: str
    precise: bool = True

    @property
    def wide(self) -> bool:
        """Whether bfloat16 tensors are kept in fp32."""
        return not self.precise

    @property
    def stands_for(self) -> tuple[str, ...]:
        """The device of this generation."""
        return (TRAINIUM_OF[self.target],)

    def open(self, path: Path) -> ModuleType:
        """The kernels of any file."""
        with self._environment():
            return toolchain.loaded(path, self._launch)

    @cache  # noqa: B019
    def unavailable(self) -> str:
        """No toolchain with a simulator, or one that works for another target or with the other rounding."""
        if platform.system() != "Linux" or platform.machine() != "x86_64":
            return "the nki package is for Linux on x86_64 only"
        return toolchain.missing() or _fault(self, generation=self.target, precise=self.precise)

    def metered(self) -> AbstractContextManager[dict[str, int]]:
        """Nothing: neither says what a kernel moved."""
        return nullcontext({})

    def describe(self) -> dict[str, str]:
        """The simulator's version and its two settings."""
        settings = {"target": self.target, toolchain.PRECISE: str(int(self.precise))}
        return {"tier": "simulator", "device": f"nki.simulate, {self.target}", "nki": release("nki")} | settings

    def _environment(self) -> Any:
        settings = {toolchain.TARGET: self.target, toolchain.PRECISE: str(int(self.precise))}
        return toolchain.environment(**settings)

    def _launch(self, kernel: Any) -> Callable[..., Any]:
        return partial(self._simulated, kernel)

    def _simulated(self, kernel: Any, *arguments: Any, **named: Any) -> Any:
        from nki import simulate

        with self._environment():
            return simulate(kernel)(*arguments, **named)


@dataclass(frozen=True)
class Emulator(Tier):
    """The emulator of NKI for one generation of the NeuronCore."""

    target: str
    wide = False

    @property
    def stands_for(self) -> tuple[str, ...]:
        """The device of this generation."""
        return (TRAINIUM_OF[self.target],)

    def open(self, path: Path) -> ModuleType:
        """The kernels of any file."""
        return nki_emulator.load(path, target=self.target)

    @cache  # noqa: B019
    def unavailable(self) -> str:
        """It needs nothing but NumPy; its results are checked like the others'."""
        return _fault(self, generation=self.target)

    @contextmanager
    def metered(self) -> Iterator[dict[str, int]]:
        """Bytes through the DMA, instructions in all and of the Tensor Engine, and peaks in bytes a partition."""
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

    def describe(self) -> dict[str, str]:
        """No toolchain; the hash of its source says which emulator it was."""
        facts = {"tier": "emulator", "device": f"emulator, {self.target}", "nki": "none", "target": self.target}
        return facts | {"emulator": _emulator_source()}


@cache
def _emulator_source() -> str:
    """SHA-256 of the emulator's source: it lies outside the folder that an implementation's own hash covers."""
    return source_hash(Path(nki_emulator.__file__).parent)


def _fault(tier: Device | Simulator | Emulator, **expected: Any) -> str:
    """What the canary says, or that it cannot be loaded."""
    try:
        canary = tier.load(CANARY)
    except Exception as problem:  # a toolchain may refuse a file with anything
        return f"the canary kernel cannot be loaded ({type(problem).__name__}: {problem})"
    return toolchain.fault(canary, **expected)
