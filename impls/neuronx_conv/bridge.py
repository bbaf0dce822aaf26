"""Tensors of torch-neuronx, where the vendor's kernel can be imported and computes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import ClassVar

from conformance.implementations.bridges.neuron import (
    TorchNeuronArrays,
    release,
    require_module,
    torch_neuron_arrays,
)
from conformance.implementations.bridges.neuron_stacks import VENDOR, Stack
from conformance.implementations.devices import Unavailable

COMPILER = "2.21"
"""Compiler of SDK 2.26, whose sample these calls follow. 2.24 has the kernel in `neuronxcc.private_nkl.conv`, with
other arguments; 2.22 and 2.23 are undocumented; from SDK 2.30 on, kernels of `neuronxcc.nki` do not compile."""
KERNELS = "neuronxcc.nki._private_kernels.conv"
NAME = "conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh"
TAPS = [[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]
"""Number of taps of a window of 3 inside an image of 3 by 3, padded by 1, for each output."""


@dataclass(frozen=True, slots=True)
class PrivateKernelArrays(TorchNeuronArrays):
    """The bridge of torch-neuronx for this kernel."""

    stack: ClassVar[Stack] = VENDOR

    def require(self) -> None:
        """Raise Unavailable unless torch-neuronx and the kernel are here, and the toolchain's results are right."""
        require_module("neuronxcc", "neuronx-cc", VENDOR)
        if ".".join(release("neuronxcc").split(".")[:2]) != COMPILER:
            raise Unavailable(
                f"neuronx-cc {release('neuronxcc')} is here, and this calls the kernel of {COMPILER}: later releases "
                f"moved it and changed its arguments; {self.install}"
            )
        TorchNeuronArrays.require(self)
        require_module(KERNELS, "neuronx-cc", VENDOR)
        if not hasattr(import_module(KERNELS), NAME):
            raise Unavailable(f"neuronx-cc {release('neuronxcc')} has no {KERNELS}.{NAME}; {self.install}")
        if fault := _fault(self.device):
            raise Unavailable(fault)

    def describe(self) -> dict[str, str]:
        """Return the facts of torch-neuronx and the version of the compiler, which the kernel is a part of."""
        return TorchNeuronArrays.describe(self) | {"neuronx-cc": release("neuronxcc")}


@cache
def _fault(device: str) -> str | None:
    """Return the fault that a small convolution of ones shows in the toolchain, or None. It is computed once."""
    torch = import_module("torch")
    try:
        image, weights = (torch.ones((1, 1, 3, 3)).to(device) for _ in range(2))
        result = import_module(".kernel", __package__).convolved(image, weights, (1, 1, 3, 3)).cpu()
    except Exception as problem:  # whatever a toolchain raises is its answer
        return f"the canary convolution failed ({type(problem).__name__}: {str(problem).partition(chr(10))[0]})"
    if not result.any():
        return "the canary convolution returned zeros: this toolchain does not compute"
    return None if result.tolist() == [[TAPS]] else "the canary convolution returned wrong values"


def private_kernel_arrays() -> PrivateKernelArrays:
    """Return the bridge, for the device of the torch-neuronx that is here."""
    return PrivateKernelArrays(torch_neuron_arrays().device)
