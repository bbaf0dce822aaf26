"""An emulator of the Neuron Kernel Interface: executes unmodified NKI source (nki 0.6 and 0.7) on NumPy.

It is written from the public documentation of Neuron SDK 2.32 and refuses what the device forbids and what the
documentation leaves open, each with the kernel, its line and the name of a rule. It was not compared with a device.

    module = load(Path("conv_forward.py"), target="gen2")
    with counting() as counters:
        y = module.conv_forward(x, w)
"""

from .cost import Modelled, modelling
from .errors import EmulationError, NotImplementedInEmulator
from .loader import load, source_hash
from .machine import Counters, counting
from .modules import missing, operations
from .rules import BETA_RULES, RULES

__all__ = [
    "BETA_RULES",
    "RULES",
    "Counters",
    "EmulationError",
    "Modelled",
    "NotImplementedInEmulator",
    "counting",
    "load",
    "missing",
    "modelling",
    "operations",
    "source_hash",
]
