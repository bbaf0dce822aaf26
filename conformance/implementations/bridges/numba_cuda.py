"""numba.cuda arrays, on a device or in numba's simulator of one.

numba.cuda is either of the two for a whole process. Which one is settled when it is first imported: by the environment
variable where that is set, else by whether there is a device.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from conformance.implementations.bridges.base import ArrayBridge, between_events, extent, meet, refuse
from conformance.implementations.devices import Unavailable, missing

VARIABLE = "NUMBA_ENABLE_CUDASIM"
BF16 = np.dtype("V2")
"""Type by which the CUDA array interface describes bf16, here as in torch and ml_dtypes: 16 bits without a name."""
STICKY = (214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721)
"""CUresult of errors after which a context answers every call with the same error: ECC, illegal addresses and
instructions, timeouts, failed launches (CUDA driver API, `cudaError_enum`)."""
SIMULATES = f"numba.cuda is its simulator in this process; for the device start it without {VARIABLE}"
DRIVES = f"numba.cuda is not its simulator in this process; for that start it with {VARIABLE}=1"
PACKAGES = ("numba", "numba-cuda")

_lost: list[str] = []
"""Reason why the CUDA context cannot be used any more; empty while it can."""


class ContextLostError(RuntimeError):
    """An error that the CUDA context does not survive; the message says which, and what to do."""


@cache
def numba_cuda() -> ModuleType:
    """Return the module numba.cuda. Raises ImportError.

    numba reads the variable when it is itself imported, which may have happened long ago: so its configuration is set,
    not the environment.
    """
    if "numba.cuda" not in sys.modules and VARIABLE not in os.environ and missing("cuda"):
        import_module("numba.core.config").ENABLE_CUDASIM = 1  # type: ignore[attr-defined]
    return import_module("numba.cuda")


@cache
def simulated() -> bool:
    """Return whether numba.cuda is the simulator in this process. Raises ImportError."""
    return bool(numba_cuda().config.ENABLE_CUDASIM)


def interface(array: Any) -> dict[str, Any]:
    """Return the CUDA array interface of an array of any framework, with strides. Raises TypeError for an object
    without one.

    Arrays of the simulator have NumPy's interface, with addresses on the host: the simulator computes with these. The
    interface of numba.cuda's own arrays gives no strides where an axis is broadcast (its `is_contiguous` leaves these
    axes out), as if they were contiguous: their strides are read from the array.
    """
    description, is_numba = getattr(array, "__cuda_array_interface__", None), getattr(array, "__cuda_ndarray__", False)
    if description is None and is_numba:
        description = array._ary.__array_interface__
    if description is None:
        raise refuse(array, "an array with __cuda_array_interface__")
    shape, dtype = tuple(description["shape"]), np.dtype(description["typestr"])
    contiguous = (int(np.prod(shape[axis + 1 :], dtype=int)) * dtype.itemsize for axis in range(len(shape)))
    strides = array.strides if is_numba else description.get("strides") or contiguous
    return {**description, "shape": shape, "strides": tuple(map(int, strides))}


@dataclass(frozen=True, slots=True)
class _Holder:
    """Object that NumPy makes an array of host memory from, and keeps alive with it."""

    __array_interface__: dict[str, Any]
    owner: Any


def attach(described: dict[str, Any], owner: Any) -> Any:
    """Return an array of numba.cuda on the memory that an interface describes, without a copy."""
    if not simulated():
        return numba_cuda().from_cuda_array_interface(described, owner=owner)
    keys = ("shape", "strides", "typestr", "data", "version")
    holder = _Holder({key: described[key] for key in keys}, owner)
    return numba_cuda().cudadrv.devicearray.FakeCUDAArray(np.asarray(holder))


def allocate(shape: Sequence[int], dtype: np.dtype) -> Any:
    """Allocate an array; its contents are whatever was in the memory."""
    return numba_cuda().device_array(tuple(shape), dtype)


@dataclass(frozen=True, slots=True)
class NumbaCudaArrays(ArrayBridge):
    """Arrays of numba.cuda on the current device, or simulated."""

    simulator: bool
    name: str = "numba-cuda"

    @property
    def stands_for(self) -> tuple[str, ...]:
        return ("cuda",) if self.simulator else ()

    def require(self) -> None:
        """Raise Unavailable where numba.cuda cannot be imported, is of the other kind in this process, or has lost its
        context."""
        try:
            kind = simulated()
        except (ImportError, OSError, AttributeError) as problem:
            raise Unavailable(f"numba.cuda cannot be imported: {problem}") from None
        if kind != self.simulator:
            raise Unavailable(SIMULATES if kind else DRIVES)
        if _lost:
            raise Unavailable(_lost[0])

    def from_host(self, array: np.ndarray) -> Any:
        """Return a copy; bf16 is stored as the type that the interface has for it."""
        stored = array.view(BF16) if array.dtype == ml_dtypes.bfloat16 else array
        return _guarded(numba_cuda().to_device, stored)

    def to_host(self, array: Any) -> np.ndarray:
        """Return plain memory. An array that is not numba.cuda's own is refused, since it may compute when it is
        read."""
        if not getattr(array, "__cuda_ndarray__", False):
            raise refuse(array, "an array of numba.cuda")
        host = np.ascontiguousarray(_guarded(array.copy_to_host))
        return host.view(ml_dtypes.bfloat16) if host.dtype == BF16 else host

    def synchronize(self, result: Any) -> None:
        """Wait for all streams of the context."""
        _guarded(numba_cuda().synchronize)

    def view(self, array: Any, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Any | None:
        itemsize, description = array.dtype.itemsize, interface(array)
        address, read_only = description["data"]
        steps = tuple(stride * itemsize for stride in strides)
        place = {"shape": tuple(shape), "strides": steps, "data": (address + offset * itemsize, read_only)}
        return attach(description | place, array)

    def overwrite(self, array: Any, host: np.ndarray) -> bool:
        stored = host.view(BF16) if host.dtype == ml_dtypes.bfloat16 else host
        _guarded(array.copy_to_device, np.ascontiguousarray(stored))
        return True

    def overlap(self, first: Any, second: Any) -> bool:
        return meet(_extent(first), _extent(second))

    def stopwatch(self, call: Callable[[], Any]) -> tuple[float, float] | None:
        if self.simulator:
            return None
        cuda = numba_cuda()
        return between_events(cuda.event(), cuda.event(), partial(_guarded, cuda.synchronize), call)

    def describe(self) -> dict[str, str]:
        """Return versions, and the device with its compute capability, driver and runtime."""
        versions = {package: _version(package) for package in PACKAGES}
        if self.simulator:
            return {**versions, "device": "simulator"}
        return {**versions, **_device()}


def _device() -> dict[str, str]:
    cuda = numba_cuda()
    device = cuda.get_current_device()
    name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
    versions = {
        "CUDA driver": cuda.cudadrv.driver.driver.get_version(),
        "CUDA runtime": cuda.cudadrv.runtime.runtime.get_version(),
    }
    dotted = {key: ".".join(map(str, value)) for key, value in versions.items()}
    return {"device": name, "compute capability": ".".join(map(str, device.compute_capability)), **dotted}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _extent(array: Any) -> range:
    description = interface(array)
    return extent(
        int(description["data"][0]),
        description["shape"],
        description["strides"],
        np.dtype(description["typestr"]).itemsize,
    )


def _guarded(call: Callable[..., Any], *arguments: Any) -> Any:
    """Make a call, unless the context is lost; if the call ends in a sticky error, the context is lost from here on."""
    if _lost:
        raise ContextLostError(_lost[0])
    try:
        return call(*arguments)
    except Exception as problem:
        code = getattr(problem, "code", None)
        if getattr(code, "value", code) not in STICKY:
            raise
        _lost.append(f"the CUDA context is lost since {problem}: run the kernels after this one in a new process")
        raise ContextLostError(
            f"{problem}. This kernel, or one launched before it, broke the CUDA context; nothing after it can run in "
            "this process"
        ) from problem


def numba_cuda_arrays(*, simulator: bool = False) -> NumbaCudaArrays:
    """Return the bridge for kernels of numba.cuda; `simulator` for an implementation on the device of that name."""
    return NumbaCudaArrays(simulator)
