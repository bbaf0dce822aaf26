"""Convolution, its fusion with batch normalisation, average pooling and matrix products in numba.cuda: three kernels,
each on a device and in numba's simulator of one."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from conformance import Implementation, numba_cuda_arrays
from conformance.layouts import IMAGES, layouts_of

from . import direct, igemm, tiled
from .conv import Convolution
from .conv_bn import Normalised
from .matmul import LAYOUTS, Products
from .pool import avg_pool_backward, avg_pool_forward

PRODUCTS, ELEMENTS = 16_000, 1_500
"""Products and elements of the largest problem that is simulated, where each product takes 2 microseconds and each
thread 20: a tenth of a second a call, so that all of the simulator's cases take two minutes on two cores."""


def small(geometry: Any) -> bool:
    """Return whether a problem is small enough for the simulator."""
    sizes = geometry.x.size, geometry.y.size, getattr(geometry, "filter", geometry.x).size
    window = geometry.filter.size // geometry.k if hasattr(geometry, "filter") else prod(geometry.window)
    return geometry.y.size * window <= PRODUCTS and max(sizes) <= ELEMENTS


def small_product(sizes: Any) -> bool:
    """Return whether a matrix product is small enough for the simulator."""
    elements = sizes.batch * max(sizes.m * sizes.n, sizes.m * sizes.k, sizes.n * sizes.k)
    return sizes.batch * sizes.m * sizes.n * sizes.k <= PRODUCTS // 4 and elements <= ELEMENTS // 2


DTYPES = ("fp32", "bf16", "fp16", "fp64")


def _register(name: str, simulator: bool, *kernels: Callable[..., Any]) -> Implementation:
    implementation = Implementation(
        f"{name}@sim" if simulator else name,
        device="simulator" if simulator else "cuda",
        arrays=numba_cuda_arrays(simulator=simulator),
        unsafe=("threads", "fork") if simulator else (),
    )
    for kernel in Products(igemm.engine).kernels if name == "numba-cuda-igemm" else ():
        implementation.implements(
            kernel.__name__, dtypes=DTYPES, when=small_product if simulator else None, layouts=LAYOUTS
        )(kernel)
    for kernel in kernels:
        implementation.implements(
            kernel.__name__, dtypes=DTYPES, when=small if simulator else None,
            layouts=IMAGES if name == "numba-cuda-igemm" else layouts_of(2) + layouts_of(1),
        )(kernel)  # fmt: skip
    return implementation


KERNELS = {
    "numba-cuda-direct": (*Convolution(direct.engine).kernels, avg_pool_forward, avg_pool_backward),
    "numba-cuda-tiled": Convolution(tiled.engine).kernels,
    "numba-cuda-igemm": (*Convolution(igemm.engine).kernels, *Normalised(igemm.engine).kernels),
}
numba_cuda_direct, numba_cuda_tiled, numba_cuda_igemm = (
    _register(name, False, *kernels) for name, kernels in KERNELS.items()
)
numba_cuda_direct_sim, numba_cuda_tiled_sim, numba_cuda_igemm_sim = (
    _register(name, True, *kernels) for name, kernels in KERNELS.items()
)
