"""Convolution, its fusion with batch normalisation, average pooling and matrix products in NKI: the same kernels on a
Neuron device, in the vendor's simulator and in an emulator that needs no toolchain. Each tier is an
implementation of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance import Implementation, neuron_device, nki_arrays

from .host import LAYOUTS, OF_MATRICES, OPERATORS, Host
from .tiers import Device, Emulator, Simulator

DTYPES = ("fp32", "bf16", "fp16")
PRODUCTS = 2**28
"""Products of the largest problem that runs on the CPU: all below the real sizes of networks, each in less than a
second."""

Predicate = Callable[[Any], bool] | None


def small(geometry: Any) -> bool:
    """Return whether a problem is small enough for the CPU."""
    window = geometry.filter.size // geometry.k if hasattr(geometry, "filter") else geometry.r * geometry.s
    return geometry.y.size * window <= PRODUCTS


def small_product(sizes: Any) -> bool:
    """Return whether a matrix product is small enough for the CPU."""
    return bool(sizes.batch * sizes.m * sizes.n * sizes.k <= PRODUCTS)


def _register(name: str, device: str, tier: Device | Simulator | Emulator, when: Predicate = small) -> Implementation:
    implementation, host = Implementation(name, device=device, arrays=nki_arrays(tier)), Host(tier.load)
    for operator in OPERATORS:
        implementation.implements(operator, dtypes=DTYPES, when=when)(getattr(host, operator))
    for operator in OF_MATRICES:
        implementation.implements(operator, dtypes=DTYPES, layouts=LAYOUTS, when=when and small_product)(
            getattr(host, operator)
        )
    return implementation


nki = _register("nki", neuron_device(), Device(), when=None)
nki_sim = _register("nki@sim", "simulator", Simulator("gen2"))
nki_sim_gen3 = _register("nki@sim-gen3", "simulator", Simulator("gen3"))
nki_emu = _register("nki@emu", "emulator", Emulator("gen2"))
nki_emu_gen3 = _register("nki@emu-gen3", "emulator", Emulator("gen3"))
