"""Array bridges, one file per framework; importing them imports no framework."""

from __future__ import annotations

from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.bridges.jax import jax_arrays
from conformance.implementations.bridges.neuron import jax_neuron_arrays, neuron_device, nki_arrays, torch_neuron_arrays
from conformance.implementations.bridges.numba_cuda import numba_cuda_arrays
from conformance.implementations.bridges.numpy import numpy_arrays
from conformance.implementations.bridges.torch import torch_arrays

__all__ = [
    "ArrayBridge",
    "jax_arrays",
    "jax_neuron_arrays",
    "neuron_device",
    "nki_arrays",
    "numba_cuda_arrays",
    "numpy_arrays",
    "torch_arrays",
    "torch_neuron_arrays",
]
