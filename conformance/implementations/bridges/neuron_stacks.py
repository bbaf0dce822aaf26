"""Packages of the Neuron SDK that install together. No environment holds all: jax-neuronx of SDK 2.32 needs
libneuronxla 3, the last torch-neuronx (SDK 2.31) libneuronxla 2.2, and the vendor's convolution is that of SDK 2.26.

`tox.ini` has an environment for each stack; `nki_emulator/tests/kernels/test_stacks.py` compares the two, and
resolves both against the metadata in `neuron_packages.toml` beside it, which names the page that each version and
requirement is from.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass

INSTALL = "pip install --extra-index-url https://pip.repos.neuron.amazonaws.com"


@dataclass(frozen=True, slots=True)
class Stack:
    """Packages of one release of the SDK, as pip takes them, and the versions of Python that they are built for.

    environment   name of tox's environment; `{}` stands for the device's marker
    """

    environment: str
    sdk: str
    pythons: tuple[str, ...]
    packages: tuple[str, ...]

    def way(self, device: str) -> str:
        """Return the commands that install the stack, for a device by its marker."""
        version = ".".join(map(str, sys.version_info[:2]))
        pythons = " or ".join(filter(None, (", ".join(self.pythons[:-1]), self.pythons[-1])))
        this = "" if version in self.pythons else f" (this is {version})"
        command = f"{INSTALL} {shlex.join(self.packages)}"
        return f"tox -e {self.environment.format(device)}; or with Python {pythons}{this}: {command} (SDK {self.sdk})"


_NUMPY = "numpy>=2.2,<2.4"
"""Versions of NumPy that SDK 2.32 supports."""
_COMPILER = ("neuronx-cc==2.27.5334.0", "islpy==2026.1", _NUMPY)
"""islpy 2026.2, which the compiler's `islpy~=2026.1` admits, ends compilations with NCC_ISMP902 (aws-neuron-sdk issue
1391)."""
_CURRENT = ("3.11", "3.12", "3.13")

NKI = Stack("{}-nki", "2.32.0", _CURRENT, ("nki==0.6.0", *_COMPILER))
JAX = Stack(
    "{}-jax",
    "2.32.0",
    _CURRENT,
    ("jax-neuronx[stable]==0.10.0.1.0.11459", "libneuronxla==3.0.5356.0", "nki==0.6.0", *_COMPILER),
)
TORCH = Stack(
    "{}-torch",
    "2.31.1",
    _CURRENT,
    ("torch-neuronx==2.9.0.2.15.32035", "libneuronxla==2.2.17544.0", "neuronx-cc==2.26.6360.0", "nki==0.5.0"),
)
VENDOR = Stack(
    "{}-vendor",
    "2.26.1",
    ("3.11",),  # the last Python of this SDK, and the first of this suite
    ("torch-neuronx==2.8.0.2.10.16998", "libneuronxla==2.2.12677.0", "neuronx-cc==2.21.33363.0"),
)
SIMULATOR = Stack("nki-sim", "2.32.0", _CURRENT, ("nki==0.6.0", _NUMPY))
STACKS = (NKI, TORCH, JAX, VENDOR, SIMULATOR)
