"""numba.cuda as this process has it, on a device or simulated: kernels import it from here, so that the choice is made
before any module imports numba.cuda itself."""

from __future__ import annotations

from importlib import import_module

import numpy as np

from conformance.implementations.bridges.numba_cuda import numba_cuda, simulated

if not hasattr(np, "row_stack"):  # NumPy 2.5 lacks it, and numba-cuda 0.30 needs it to compile
    np.row_stack = np.vstack
cuda = numba_cuda()
types = import_module("numba.cuda.types")
if not hasattr(types, "float32"):  # numba's own numba.cuda, where numba-cuda is not installed: good for simulating
    types = import_module("numba.types")
SIMULATED = simulated()

__all__ = ["SIMULATED", "cuda", "types"]
