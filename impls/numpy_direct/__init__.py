"""The definitions, written down: for each tap a sum of products in fp32, in a fixed order, no BLAS.

Slow and plain on purpose; the other implementations are compared with the exact reference, not with this one. 16-bit
inputs are widened, accumulated in fp32 and rounded once.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from .declared import numpy_direct

__all__ = ["numpy_direct"]
for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
