"""How kernels are compiled and spread over threads.

A kernel is a plain function (worker, workers, ...) that takes a fixed share of the work.  It is compiled once
per element type to a function pointer and called from a parallel loop through that pointer: were it called
directly, the parallel loop would optimise and emit all of its code again, several times over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numba import cfunc, njit, typeof, types

# Functions called from kernels only need no Python entry points.
njit_inner = partial(njit, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)

# Inner loops index with unsigned numbers: a signed index is tested for being negative, which keeps the loop
# scalar, and a slice counts references on a counter that all threads share.
index = np.uint64

_COMPILED: dict[tuple[Callable[..., None], np.dtype], Any] = {}


@cache
def _sources() -> bytes:
    """All sources of this package."""
    return b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))


def cached_kernel(function: Callable[..., None]) -> Callable[..., None]:
    """Gives a function its own place in the compiler's cache for these sources and this module name.

    The cache itself only watches the file of the function, not those it calls; and compiled code on disk
    imports its module by name, so it is of no use to a copy that is loaded under another one.
    """
    digest = hashlib.sha256(function.__module__.encode() + _sources()).hexdigest()[:8]
    function.__qualname__ = f"{function.__qualname__}_{digest}"
    return function


def njit_launcher(function: Callable[..., None]) -> Callable[..., None]:
    """Compiles the parallel loop that calls a kernel on every worker."""
    options = {"parallel": True, "nogil": True, "cache": True, "no_cfunc_wrapper": True}
    return cast(Callable[..., None], njit(**options)(cached_kernel(function)))


def launch(
    launcher: Callable[..., None], kernel: Callable[..., None], dtype: np.dtype, workers: int, *arguments: Any
) -> None:
    """Runs `kernel` on every worker; the types of the arguments may depend on `dtype` only."""
    pointer = _COMPILED.get((kernel, dtype))
    if pointer is None:
        signature = types.void(types.int64, types.int64, *(typeof(argument) for argument in arguments))
        pointer = _COMPILED[kernel, dtype] = cfunc(signature, cache=True)(kernel)
    launcher(pointer, workers, *arguments)
