"""Convolution, its fusion with batch normalisation and average pooling in NKI: the same kernels on a Neuron device, in
the vendor's simulator and in an emulator that needs no toolchain. Each tier is an implementation of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from conformance import Implementation, neuron_device, nki_arrays

from .host import OPERATORS, Host
from .tiers import Device, Emulator, Simulator

DTYPES = ("fp32", "bf16", "fp16")
WIDENED = ("bf16",)
"""What high-precision simulation keeps in fp32; on other dtypes it is the same as precise simulation."""
MIXED = ("conv_bn_forward", "conv_bn_backward", "conv_bn_inference")
"""Operators whose results are not all in the dtype of the tensors: it is not known which of them were widened."""
PRODUCTS = 2**28
"""Of the largest problem that runs on the CPU: all below the real sizes of networks, each in less than a second."""

Predicate = Callable[[Any], bool] | None


def small(geometry: Any) -> bool:
    """Whether a problem is small enough for the CPU."""
    window = geometry.filter.size // geometry.k if hasattr(geometry, "filter") else geometry.r * geometry.s
    return geometry.y.size * window <= PRODUCTS


def _stored(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its results in the dtype of its first input, rounded once where they come wider."""

    @functools.wraps(function)
    def rounded(*inputs: Any, **parameters: Any) -> Any:
        result = function(*inputs, **parameters)
        dtype = inputs[0].dtype
        return tuple(part.astype(dtype) for part in result) if isinstance(result, tuple) else result.astype(dtype)

    return rounded


def _register(name: str, device: str, tier: Device | Simulator | Emulator, when: Predicate = small) -> Implementation:
    implementation, host = Implementation(name, device=device, arrays=nki_arrays(tier)), Host(tier.load)
    for operator in OPERATORS:
        kernel, dtypes = getattr(host, operator), DTYPES
        if tier.wide and operator in MIXED:
            continue
        if tier.wide:
            kernel, dtypes = _stored(kernel), WIDENED
        implementation.implements(operator, dtypes=dtypes, when=when)(kernel)
    return implementation


nki = _register("nki", neuron_device(), Device(), when=None)
nki_sim = _register("nki@sim", "simulator", Simulator("gen2"))
nki_sim_gen3 = _register("nki@sim-gen3", "simulator", Simulator("gen3"))
nki_sim_wide = _register("nki@sim-wide", "simulator", Simulator("gen2", precise=False))
nki_sim_gen3_wide = _register("nki@sim-gen3-wide", "simulator", Simulator("gen3", precise=False))
nki_emu = _register("nki@emu", "emulator", Emulator("gen2"))
nki_emu_gen3 = _register("nki@emu-gen3", "emulator", Emulator("gen3"))
