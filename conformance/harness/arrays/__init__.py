"""Array bridges, one file per framework; importing them imports no framework."""

from __future__ import annotations

from conformance.harness.arrays.base import ArrayBridge
from conformance.harness.arrays.jax import jax_arrays
from conformance.harness.arrays.neuron import jax_neuron_arrays, neuron_device, nki_arrays, torch_neuron_arrays
from conformance.harness.arrays.numba_cuda import numba_cuda_arrays
from conformance.harness.arrays.numpy import numpy_arrays
from conformance.harness.arrays.torch import torch_arrays

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
