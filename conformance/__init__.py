"""Conformance suite for convolution and pooling kernels: the names a vendor imports.

Implementation, Contract      connect a kernel, and declare its arithmetic, with the Accumulator of a matrix unit,
                              or the Slices of its inputs
Unsupported, Unavailable      raised by a kernel that does not do this, and where its device is missing
read_contract                 the arithmetic of a kernel, and the contract that fits it
check, CheckResult, export    one case: verify it, look at its arrays, write it to a folder
torch_arrays(), ...           bridges: the arrays that a kernel takes
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.accumulator import Accumulator
    from conformance.contract import Contract
    from conformance.engine.check import CheckResult, check
    from conformance.engine.export import export
    from conformance.engine.reading import read_contract
    from conformance.implementations.bridges.jax import jax_arrays
    from conformance.implementations.bridges.neuron import (
        jax_neuron_arrays,
        neuron_device,
        nki_arrays,
        torch_neuron_arrays,
    )
    from conformance.implementations.bridges.numba_cuda import numba_cuda_arrays
    from conformance.implementations.bridges.numpy import numpy_arrays
    from conformance.implementations.bridges.torch import torch_arrays
    from conformance.implementations.devices import Unavailable
    from conformance.implementations.implementation import Implementation, Unsupported
    from conformance.slices import Slices

__version__ = "0.1.0"

__all__ = [
    "Accumulator",
    "CheckResult",
    "Contract",
    "Implementation",
    "Slices",
    "Unavailable",
    "Unsupported",
    "check",
    "export",
    "jax_arrays",
    "jax_neuron_arrays",
    "neuron_device",
    "nki_arrays",
    "numba_cuda_arrays",
    "numpy_arrays",
    "read_contract",
    "torch_arrays",
    "torch_neuron_arrays",
]

# Loaded when they are used: pytest imports this package at the start of every run of an environment in which it is
# installed, also of runs that have nothing to do with it.
_MODULES = {
    "Accumulator": "accumulator",
    "CheckResult": "engine.check",
    "Contract": "contract",
    "Implementation": "implementations.implementation",
    "Slices": "slices",
    "Unavailable": "implementations.devices",
    "Unsupported": "implementations.implementation",
    "check": "engine.check",
    "export": "engine.export",
    "jax_arrays": "implementations.bridges.jax",
    "jax_neuron_arrays": "implementations.bridges.neuron",
    "neuron_device": "implementations.bridges.neuron",
    "nki_arrays": "implementations.bridges.neuron",
    "numba_cuda_arrays": "implementations.bridges.numba_cuda",
    "numpy_arrays": "implementations.bridges.numpy",
    "read_contract": "engine.reading",
    "torch_arrays": "implementations.bridges.torch",
    "torch_neuron_arrays": "implementations.bridges.neuron",
}
"""Name -> its module."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
