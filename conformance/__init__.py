"""Conformance suite for convolution and pooling kernels: the names a vendor imports."""

from __future__ import annotations

from conformance.implementations.bridges import (
    jax_arrays,
    jax_neuron_arrays,
    neuron_device,
    nki_arrays,
    numba_cuda_arrays,
    numpy_arrays,
    torch_arrays,
    torch_neuron_arrays,
)
from conformance.implementations.devices import Unavailable
from conformance.implementations.implementation import Implementation, Unsupported
from conformance.judge import Contract

__version__ = "0.1.0"

__all__ = [
    "Contract",
    "Implementation",
    "Unavailable",
    "Unsupported",
    "jax_arrays",
    "jax_neuron_arrays",
    "neuron_device",
    "nki_arrays",
    "numba_cuda_arrays",
    "numpy_arrays",
    "torch_arrays",
    "torch_neuron_arrays",
]
