"""Tensors as kernels see them: flat memory, element strides, launches."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance import Unsupported
from conformance.implementations.bridges.numba_cuda import allocate, attach, interface
from conformance.implementations.windows import Extents, axes

from .storage import Format, format_of
from .target import SIMULATED, cuda
from .turns import taking_turns


@dataclass(frozen=True)
class Tensor:
    """An array of any framework with a CUDA array interface: `memory` starts at its first element.

    `strides` are in elements; any that are not negative are allowed.
    """

    memory: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    format: Format
    dtype: np.dtype
    array: Any
    layout: str

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def sizes(self) -> Extents:
        """Sizes in the order N, channels, rows, columns (K, C, R, S of weights), in three dimensions planes before
        rows. A tensor of one dimension has one row."""
        return with_rows(axes(self.shape, self.layout), 1)

    @property
    def steps(self) -> Extents:
        """Strides in that order."""
        return with_rows(axes(self.strides, self.layout), 0)

    @property
    def counts(self) -> Extents:
        """Number of pixels, and number of values of each digit, as `address` divides a pixel's number."""
        images, channels, *space = self.sizes
        return self.size // max(1, channels), images, *space

    @property
    def places(self) -> Extents:
        """Summand that each digit of a pixel gives its address in a channel."""
        by_image, _, *by_axis = self.steps
        return 0, by_image, *by_axis


def with_rows(extents: Extents, lone: int) -> Extents:
    """Return N, channels and at least two axes of space; `lone` is the extent of an added row axis."""
    return extents if len(extents) > 3 else (*extents[:2], lone, *extents[2:])


def tensor(array: Any, layout: str = "nchw") -> Tensor:
    """Return the tensor of an array; raises TypeError for integers and Unsupported for negative strides."""
    description = interface(array)
    dtype = np.dtype(description["typestr"])
    format_ = format_of(dtype)
    strides = tuple(stride // dtype.itemsize for stride in description["strides"])
    if min(strides, default=0) < 0:
        raise Unsupported("arrays with negative strides")
    extent = 1 + sum((size - 1) * stride for size, stride in zip(description["shape"], strides, strict=True))
    flat = {"shape": (extent,), "strides": (dtype.itemsize,), "typestr": format_.memory.str}
    return Tensor(
        attach(description | flat, array), tuple(description["shape"]), strides, format_, dtype, array, layout
    )


def empty(shape: tuple[int, ...], dtype: np.dtype, layout: str = "nchw") -> Tensor:
    return tensor(allocate(shape, dtype), layout)


def upload(host: np.ndarray) -> Tensor:
    return tensor(cuda.to_device(np.ascontiguousarray(host)))


def download(array: Any) -> np.ndarray:
    """Return a host copy in fp64 of a small array, once all earlier launches are done."""
    description = interface(array)
    return attach(description, array).copy_to_host().astype(np.float64)


def launch(kernel: Any, blocks: int | tuple[int, ...], threads: int, *arguments: Any, shared: int = 0) -> None:
    """Start a kernel on the default stream, with `shared` bytes of dynamic shared memory, tensors as their memory. A
    grid without blocks, as for a result without elements, is not started: devices refuse it."""
    if 0 in (blocks if isinstance(blocks, tuple) else (blocks,)):
        return
    values = [argument.memory if isinstance(argument, Tensor) else argument for argument in arguments]
    if not SIMULATED:
        kernel[blocks, threads, 0, shared](*values)
        return
    # Python warns where a device does not: of products that overflow, of differences of infinities
    with warnings.catch_warnings(), taking_turns():
        warnings.simplefilter("ignore", RuntimeWarning)
        kernel[blocks, threads, 0, shared](*values)
