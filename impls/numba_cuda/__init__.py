"""Convolution, its fusion with batch normalisation and average pooling in numba.cuda: three kernels, each on a device
and in numba's simulator of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance import Implementation, numba_cuda_arrays

from .conv import Convolution
from .conv_bn import Normalised
from .direct import Direct
from .engine import Engine
from .igemm import Igemm
from .pool import avg_pool_backward, avg_pool_forward
from .tiled import Tiled

PRODUCTS, ELEMENTS = 16_000, 1_500
"""Of the largest problem that is simulated, where each product takes 2 microseconds and each thread 20: a tenth of a
second a call, so that all of the simulator's cases take two minutes on two cores."""

Kernels = dict[str, Callable[..., Any]]


def small(geometry: Any) -> bool:
    """Whether a problem is small enough for the simulator."""
    sizes = geometry.x.size, geometry.y.size, getattr(geometry, "filter", geometry.x).size
    window = geometry.filter.size // geometry.k if hasattr(geometry, "filter") else geometry.r * geometry.s
    return geometry.y.size * window <= PRODUCTS and max(sizes) <= ELEMENTS


def _convolution(engine: Engine) -> Kernels:
    found = Convolution(engine)
    return {
        "conv_forward": found.forward,
        "conv_backward_data": found.backward_data,
        "conv_backward_weight": found.backward_weight,
    }


def _normalised(engine: Engine) -> Kernels:
    found = Normalised(engine)
    return {
        "conv_bn_forward": found.forward,
        "conv_bn_backward": found.backward,
        "conv_bn_inference": found.inference,
    }


def _register(name: str, kernels: Kernels, simulator: bool) -> Implementation:
    implementation = Implementation(
        f"{name}@sim" if simulator else name,
        device="simulator" if simulator else "cuda",
        arrays=numba_cuda_arrays(simulator=simulator),
    )
    when = small if simulator else None
    for operator, kernel in kernels.items():
        implementation.implements(
            operator, dtypes=("fp32", "bf16", "fp16", "fp64"), layouts=("nchw", "nhwc"), when=when
        )(kernel)
    return implementation


_DIRECT = _convolution(Direct()) | {"avg_pool_forward": avg_pool_forward, "avg_pool_backward": avg_pool_backward}
_TILED = _convolution(Tiled())
_IGEMM = _convolution(Igemm()) | _normalised(Igemm())

numba_cuda_direct, numba_cuda_direct_sim = (_register("numba-cuda-direct", _DIRECT, kind) for kind in (False, True))
numba_cuda_tiled, numba_cuda_tiled_sim = (_register("numba-cuda-tiled", _TILED, kind) for kind in (False, True))
numba_cuda_igemm, numba_cuda_igemm_sim = (_register("numba-cuda-igemm", _IGEMM, kind) for kind in (False, True))
