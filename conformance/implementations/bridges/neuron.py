"""Neuron (Trainium): NumPy arrays for kernels that a tier of the NKI toolchain runs, torch and jax on the device.

Whether the vendor's packages are here is decided by importing them. Packages of the same names on PyPI are decoys of a
few kB, which `importlib.metadata` reports like any other package.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, ClassVar, Protocol

from conformance.implementations.bridges.jax import JaxArrays
from conformance.implementations.bridges.neuron_stacks import JAX, TORCH, Stack
from conformance.implementations.bridges.numpy import NumpyArrays
from conformance.implementations.bridges.torch import TorchArrays
from conformance.implementations.devices import Unavailable, missing

TRAINIUM = ("trn1", "trn2", "trn3")
FLAGS = "NEURON_CC_FLAGS"
"""Variable with the compiler's options, some of which change arithmetic (`--auto-cast`)."""


def neuron_device() -> str:
    """Return the marker of the Trainium that is here; if none is, the first, under which its absence is reported."""
    return next((kind for kind in TRAINIUM if not missing(kind)), TRAINIUM[0])


def require_module(module: str, package: str, stack: Stack) -> None:
    """Raise Unavailable, with the command that installs its stack, where a module of the SDK cannot be imported."""
    try:
        import_module(module)
    except Exception as problem:  # a broken toolchain may raise anything while it is imported
        raised = f"{type(problem).__name__}: {problem}"
        reason = f"{module} cannot be imported ({raised}){_decoy(package)}; {stack.way(neuron_device())}"
        raise Unavailable(reason) from None


def _decoy(package: str) -> str:
    """Return a note on the package of this name that is installed, since it then is not the vendor's."""
    try:
        return f", although {package} {version(package)} is installed: PyPI has a decoy of that name"
    except PackageNotFoundError:
        return ""


def release(module: str) -> str:
    """Return the version that an imported module reports."""
    return str(getattr(import_module(module), "__version__", "unknown"))


class Tier(Protocol):
    """A way to run NKI kernels: a device, the vendor's simulator or an emulator. Construction imports no toolchain."""

    @property
    def stands_for(self) -> tuple[str, ...]:
        """Devices whose kernels the tier executes on another one; empty for a device."""
        ...

    @property
    def untimed(self) -> str:
        """Reason why the time of a call is not that of the kernel; empty if it is."""
        ...

    @property
    def install(self) -> str:
        """Commands that install what the tier needs; empty if nothing is missing."""
        ...

    def require(self) -> None:
        """Raise Unavailable with the reason where the tier cannot run kernels here."""
        ...

    def metered(self) -> AbstractContextManager[dict[str, int]]:
        """Count what kernels move and issue inside the block; the counts are empty where that cannot be done."""
        ...

    def modelled(self) -> AbstractContextManager[Any]:
        """Model the time that the kernels inside the block, which compute nothing, would take on the device. Raises
        Unavailable."""
        ...

    def describe(self) -> dict[str, str]:
        """Return tier, toolchain with its version, target and rounding, for the records."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NkiArrays(NumpyArrays):
    """NumPy arrays, which every tier takes and returns; on a device the toolchain copies them there and back."""

    tier: Tier
    name: str = "nki"
    compiles_per_shape: ClassVar[bool] = True

    @property
    def stands_for(self) -> tuple[str, ...]:
        return self.tier.stands_for

    @property
    def untimed(self) -> str:
        return self.tier.untimed

    @property
    def install(self) -> str:
        return self.tier.install

    def require(self) -> None:
        self.tier.require()

    def metered(self) -> AbstractContextManager[dict[str, int]]:
        """Count the work inside the block, see `conformance.execution.verify.metered`."""
        return self.tier.metered()

    def modelled(self) -> AbstractContextManager[Any]:
        """Model the time of what runs in the block. Raises Unavailable where this tier models nothing."""
        return self.tier.modelled()

    def describe(self) -> dict[str, str]:
        return NumpyArrays.describe(self) | self.tier.describe()


@dataclass(frozen=True, slots=True)
class TorchNeuronArrays(TorchArrays):
    """Tensors of torch-neuronx: on torch_xla's device `xla`, or on `neuron`, which later releases have instead."""

    stack: ClassVar[Stack] = TORCH
    compiles_per_shape: ClassVar[bool] = True

    @property
    def install(self) -> str:
        return self.stack.way(neuron_device())

    def require(self) -> None:
        require_module("torch", "torch", self.stack)
        require_module("torch_neuronx", "torch-neuronx", self.stack)
        if self.device != "xla":
            TorchArrays.require(self)
            return
        require_module("torch_xla.runtime", "torch-neuronx", self.stack)
        kind = str(import_module("torch_xla.runtime").device_type())
        if kind != "NEURON":
            raise Unavailable(f"torch_xla runs on {kind}, not on NEURON (see PJRT_DEVICE)")

    def synchronize(self, result: Any) -> None:
        """Wait for the device, with torch_xla after compiling and submitting what was recorded."""
        if self.device != "xla":
            TorchArrays.synchronize(self, result)
            return
        model = import_module("torch_xla.core.xla_model")
        model.mark_step()
        model.wait_device_ops()

    def view(self, array: Any, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Any | None:
        """Return torch's view; None with torch_xla, whose tensors are values without memory of their own."""
        return None if self.device == "xla" else TorchArrays.view(self, array, offset, shape, strides)

    @property
    def views(self) -> bool:
        return self.device != "xla"

    def overlap(self, first: Any, second: Any) -> bool:
        return self.device != "xla" and TorchArrays.overlap(self, first, second)

    def describe(self) -> dict[str, str]:
        modules = ["torch", "torch_neuronx", *(["torch_xla"] if self.device == "xla" else [])]
        return {module: release(module) for module in modules} | _machine()


@dataclass(frozen=True, slots=True)
class JaxNeuronArrays(JaxArrays):
    """jax arrays on the platform of the Neuron plugin."""

    @property
    def install(self) -> str:
        return JAX.way(neuron_device())

    def require(self) -> None:
        require_module("libneuronxla", "libneuronxla", JAX)
        JaxArrays.require(self)

    def describe(self) -> dict[str, str]:
        return JaxArrays.describe(self) | {"libneuronxla": release("libneuronxla")} | _machine()


def _machine() -> dict[str, str]:
    return {"device": neuron_device(), FLAGS: os.environ.get(FLAGS, "")}


def nki_arrays(tier: Tier) -> NkiArrays:
    """Return the bridge for kernels of NKI that take and return NumPy arrays."""
    return NkiArrays(tier=tier)


def torch_neuron_arrays() -> TorchNeuronArrays:
    """Return the bridge for kernels that take and return tensors of torch-neuronx."""
    return TorchNeuronArrays("xla" if find_spec("torch_xla") else "neuron")


def jax_neuron_arrays() -> JaxNeuronArrays:
    """Return the bridge for kernels that take and return jax arrays on Neuron."""
    return JaxNeuronArrays("neuron")
