"""Compiling kernels and spreading them over threads.

A kernel is a plain function (worker, workers, ...) that takes a fixed share of the work.  It is compiled once per
element type to a function pointer and called from a parallel loop through that pointer: were it called directly, the
parallel loop would optimise and emit all of its code again, several times over.

`launch` passes arrays and tuples of any types.  `run` passes addresses only: the problem is described by one array of
integers, made once per problem and kept, so that a call takes microseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numba import cfunc, njit, prange, typeof, types

from .vectors import INT, INTS, i64, intrinsic, ir

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
    """Give a function its own place in the compiler's cache for these sources and this module name.

    The cache itself only watches the file of the function, not those it calls; and compiled code on disk imports its
    module by name, so it is of no use to a copy that is loaded under another one.
    """
    digest = hashlib.sha256(function.__module__.encode() + _sources()).hexdigest()[:8]
    function.__qualname__ = f"{function.__qualname__}_{digest}"
    return function


@cache
def _launcher(count: int) -> Kernel:
    """Return the parallel loop over workers for kernels of `count` arguments.

    The loop is written out as text, because a parallel loop takes tuples, but no tuple of tuples such as `*arguments`.
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
    """Run `kernel` on every worker; the types of the arguments may depend on `dtype` only."""
    pointer = _COMPILED.get((kernel, dtype))
    if pointer is None:
        signature = types.void(types.int64, types.int64, *(typeof(argument) for argument in arguments))
        pointer = _COMPILED[kernel, dtype] = cfunc(signature, cache=True)(kernel)
    _launcher(len(arguments))(pointer, workers, *arguments)


POINTERS = 6


@intrinsic
def _call(typingctx: Any, address: Any, worker: Any, workers: Any, arguments: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        addresses = [builder.extract_value(values[3], i) for i in range(arguments.count)]
        kind = ir.FunctionType(ir.VoidType(), [i64] * (2 + arguments.count))
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), [*values[1:3], *addresses])
        return i64(0)

    return INT(INT, INT, INT, arguments), codegen


@cache
def _runner() -> Any:
    """Return a function that calls a kernel at an address on every worker; a single worker needs no parallel loop."""

    def run_all(address, workers, plan, work, a, b, c, d, e, f):  # type: ignore[no-untyped-def]
        if workers == 1:
            _call(address, 0, 1, (plan, work, a, b, c, d, e, f))
        else:
            for worker in prange(workers):
                _call(address, np.int64(worker), workers, (plan, work, a, b, c, d, e, f))

    signature = types.void(*[INT] * (4 + POINTERS))
    return njit(signature, parallel=True, nogil=True, cache=True, no_cfunc_wrapper=True)(cached_kernel(run_all))


def run(
    kernel: Kernel, dtype: np.dtype, workers: int, plan: np.ndarray, work: np.ndarray, *tensors: np.ndarray
) -> None:
    """Run `kernel` on every worker: (worker, workers, plan, work, POINTERS pointers to elements)."""
    address = _COMPILED.get((kernel, dtype))
    if address is None:
        pointer = types.CPointer(types.float32 if dtype == np.float32 else types.float64)
        compiled = cfunc(types.void(INT, INT, INTS, INTS, *[pointer] * POINTERS), cache=True, nogil=True)(kernel)
        _COMPILED[kernel, compiled] = compiled  # keeps the code alive
        address = _COMPILED[kernel, dtype] = compiled.address
    spare = [0] * (POINTERS - len(tensors))
    _runner()(address, workers, plan.ctypes.data, work.ctypes.data, *[t.ctypes.data for t in tensors], *spare)
