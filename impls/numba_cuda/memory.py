"""Tensors as kernels see them: flat memory, element strides, launches."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance import Unsupported
from conformance.implementations.bridges.numba_cuda import allocate, attach, interface

from .storage import Format, format_of
from .target import SIMULATED, cuda
from .turns import taking_turns


@dataclass(frozen=True)
class Tensor:
    """An array of any framework with a CUDA array interface: `memory` starts at its first element.

    `strides` are in elements; any that are not negative will do.
    """

    memory: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    format: Format
    dtype: np.dtype
    array: Any

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


def tensor(array: Any) -> Tensor:
    """The tensor of an array; raises TypeError for integers and Unsupported for negative strides."""
    found = interface(array)
    dtype = np.dtype(found["typestr"])
    layout = format_of(dtype)
    strides = tuple(stride // dtype.itemsize for stride in found["strides"])
    if min(strides, default=0) < 0:
        raise Unsupported("arrays with negative strides")
    extent = 1 + sum((size - 1) * stride for size, stride in zip(found["shape"], strides, strict=True))
    flat = {"shape": (extent,), "strides": (dtype.itemsize,), "typestr": layout.memory.str}
    return Tensor(attach(found | flat, array), tuple(found["shape"]), strides, layout, dtype, array)


def empty(shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
    """New contiguous memory."""
    return tensor(allocate(shape, dtype))


def upload(host: np.ndarray) -> Tensor:
    """A host array's copy."""
    return tensor(cuda.to_device(np.ascontiguousarray(host)))


def download(array: Any) -> np.ndarray:
    """A host copy in fp64 of a small array, once all that was launched before is done."""
    found = interface(array)
    return attach(found, array).copy_to_host().astype(np.float64)


def launch(kernel: Any, blocks: int | tuple[int, ...], threads: int, *arguments: Any, shared: int = 0) -> None:
    """Start a kernel on the default stream, with `shared` bytes of dynamic shared memory, tensors as their memory."""
    given = [argument.memory if isinstance(argument, Tensor) else argument for argument in arguments]
    with _simulation():
        kernel[blocks, threads, 0, shared](*given)


@contextmanager
def _simulation() -> Iterator[None]:
    """Python warns where a device computes on: products that overflow, differences of infinities."""
    if not SIMULATED:
        yield
        return
    with warnings.catch_warnings(), taking_turns():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
