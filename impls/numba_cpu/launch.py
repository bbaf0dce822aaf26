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
from typing import Any

import numpy as np
from numba import cfunc, njit, prange, typeof, types

# Functions called from kernels only need no Python entry points.
njit_inner = partial(njit, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)

# Inner loops index with unsigned numbers: a signed index is tested for being negative, which keeps the loop
# scalar, and a slice counts references on a counter that all threads share.
index = np.uint64

Kernel = Callable[..., None]
_COMPILED: dict[tuple[Kernel, np.dtype], Any] = {}


@cache
def _sources() -> bytes:
    return b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))


def cached_kernel(function: Kernel) -> Kernel:
    """Gives a function its own place in the compiler's cache for these sources and this module name.

    The cache itself only watches the file of the function, not those it calls; and compiled code on disk
    imports its module by name, so it is of no use to a copy that is loaded under another one.
    """
    digest = hashlib.sha256(function.__module__.encode() + _sources()).hexdigest()[:8]
    function.__qualname__ = f"{function.__qualname__}_{digest}"
    return function


@cache
def _launcher(count: int) -> Kernel:
    """The parallel loop over workers for kernels of so many arguments.

    Written out as text, because a parallel loop takes tuples, but no tuple of tuples such as `*arguments`.
    """
    names = ", ".join(f"argument{i}" for i in range(count))
    loop = f"""
def launch{count}(kernel, workers, {names}):
    for worker in prange(workers):
        kernel(np.int64(worker), np.int64(workers), {names})
"""
    scope: dict[str, Any] = {"np": np, "prange": prange, "__name__": __name__}
    exec(compile(loop, __file__, "exec"), scope)  # of this file, so that the compiler has a place for its cache
    options = {"parallel": True, "nogil": True, "cache": True, "no_cfunc_wrapper": True}
    return njit(**options)(cached_kernel(scope[f"launch{count}"]))


def launch(kernel: Kernel, dtype: np.dtype, workers: int, *arguments: Any) -> None:
    """Runs `kernel` on every worker; the types of the arguments may depend on `dtype` only."""
    pointer = _COMPILED.get((kernel, dtype))
    if pointer is None:
        signature = types.void(types.int64, types.int64, *(typeof(argument) for argument in arguments))
        pointer = _COMPILED[kernel, dtype] = cfunc(signature, cache=True)(kernel)
    _launcher(len(arguments))(pointer, workers, *arguments)
