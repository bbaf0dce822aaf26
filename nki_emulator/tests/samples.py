"""Kernels of the public NKI tutorials and documentation, which are not part of this repository: what they must give.

Files are named by the end of their path. The same file exists in several releases, in the first generation of the API
(`neuronxcc.nki`) and the present one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nki_emulator.tests import definitions
from nki_emulator.tests.calls import Array, Call
from nki_emulator.tests.definitions import Definition

Pair = tuple[int, int]

MATMUL = "matrix_multiplication/matrix_multiplication_nki_kernels.py"
MAMBA = "fused_mamba/mamba_nki_kernels.py"
ATTENTION = "attention_kernels.py"
ADDITION = "tensor_addition/tensor_addition_nki_kernels.py"
SPMD_ADDITION = "tensor_addition/spmd_tensor_addition_nki_kernels.py"
LAYER_NORM = "layernorm/layernorm_nki_kernel.py"
XLA = ("torch_xla", "torch_xla.core", "torch_xla.core.xla_model")

SQUARES = (Array((256, 256)), Array((256, 1024)))
NORMALISED = (Array((200, 700)), 1e-5, Array((700,)), Array((700,)))
SCANNED = (
    Array((1, 256, 512), low=0),
    Array((1, 256, 512)),
    Array((256, 4), low=-1, high=0),
    Array((1, 4, 512)),
    Array((1, 4, 512)),
)
HEADS = (Array((128, 512)), Array((128, 512)), Array((128, 512)))
PAIR = (Array((256, 1024)), Array((256, 1024)))
NONE = Definition(np.positive)
"""Of kernels that are refused."""


def _sliding_maximum(x: np.ndarray, side: int) -> np.ndarray:
    return np.asarray(np.lib.stride_tricks.sliding_window_view(x, (side, side)).max(axis=(2, 3)))


def _matmuls() -> Iterator[Call]:
    yield Call(MATMUL, "nki_matmul_basic_", (Array((128, 64)), Array((128, 512))), definitions.PRODUCT)
    for name in ("tiled", "hoist_load", "block_free_dimension"):
        yield Call(MATMUL, f"nki_matmul_{name}_", SQUARES, definitions.PRODUCT)
    yield Call(MATMUL, "nki_matmul_fully_optimized_", (*SQUARES, 2, 2, 2), definitions.PRODUCT, shown=2)
    yield Call(MATMUL, "nki_matmul_tiled_", tuple(Array(a.shape, "bf16") for a in SQUARES), definitions.PRODUCT)
    launched = (Array((128, 512)), Array((128, 1024)))
    yield Call("mm-nisa-spmd.py", "matmul_128x128x512_spmd", launched, definitions.PRODUCT, (4, 2))
    launched = (Array((512, 128)), Array((128, 1024)))
    yield Call("mm-nl-spmd.py", "matmul_128x128x512_spmd", launched, definitions.PRODUCT_OF_ROWS, (4, 2))


def _pooling() -> Iterator[Call]:
    own = Array((2, 6, 6), "fp16", 0, 8, whole=True)
    file = "average_pool2d/average_pool2d_nki_kernels.py"
    yield Call(file, "tensor_avgpool_kernel", (own, 2), definitions.AVERAGE_POOL)
    yield Call(file, "tensor_avgpool_kernel", (Array((128, 9, 12)), 3), definitions.AVERAGE_POOL)
    yield Call("index-case-3.py", "tensor_maxpool_kernel_", (Array((2, 6, 6)), 2), definitions.MAX_POOL)
    sliding = Definition(_sliding_maximum)
    torch = ("torch", "torch.nn", "torch.nn.functional")
    plane = (Array((140, 20)), 3)
    yield Call("contributed/maxpooling.py", "max_pooling_2d_stride_1", plane, sliding, frameworks=torch)


def _rows() -> Iterator[Call]:
    for version in ("v1", "v2"):
        yield Call(LAYER_NORM, f"nki_layernorm_kernel_{version}", NORMALISED, definitions.LAYER_NORM)
    rows = (Array((200, 512)), Array((512,)))
    yield Call("rmsnorm/rmsnorm_nki_kernels.py", "nki_rmsnorm_kernel", rows, definitions.RMS_NORM)
    softmax = (Array((200, 700), low=-8, high=8),)
    yield Call("softmax/softmax_nki_kernels.py", "nki_softmax_kernel", softmax, definitions.SOFTMAX, frameworks=XLA)
    for version in ("v1", "v2", "v3"):
        yield Call(MAMBA, f"mamba_{version}", SCANNED, definitions.STATE_SPACE)


def _attention() -> Iterator[Call]:
    small = (Array((128, 128)),) * 3
    for version in (1, 2):
        yield Call(ATTENTION, f"attn_fwd_v{version}", small, definitions.ATTENTION, target="gen3")
    for version in (3, 4, 5, 6):
        yield Call(ATTENTION, f"attn_fwd_v{version}", HEADS, definitions.ATTENTION, target="gen3")
    # scores and probabilities are rounded to bfloat16 on their way to the products
    exact = definitions.ATTENTION.expected
    rounded = Definition(exact, lambda *given: 16 * 2.0**-8 * np.abs(exact(*given)).max())
    for name in ("v7", "v8", "v8a", "v9", "v10", "v11"):
        yield Call(ATTENTION, f"attn_fwd_{name}", HEADS, rounded, target="gen3")


def _convolved(x: np.ndarray, w: np.ndarray, bias: np.ndarray, stride: int, padding: Pair, dilation: int) -> np.ndarray:
    """x [N, C, L], w [S, C, K] -> [N, K, Q]."""
    padded = np.pad(x, ((0, 0), (0, 0), padding))
    windows = np.lib.stride_tricks.sliding_window_view(padded, dilation * (len(w) - 1) + 1, axis=2)
    return np.asarray(np.einsum("ncqs,sck->nkq", windows[:, :, ::stride, ::dilation], w) + bias[:, None])


def _convolved_bound(x: np.ndarray, w: np.ndarray, bias: np.ndarray, *geometry: Any) -> np.ndarray:
    magnitude = _convolved(np.abs(x), np.abs(w), np.abs(bias), *geometry)
    return np.asarray(definitions.gamma(w.shape[0] * w.shape[1] + 1) * magnitude)


CONVOLUTION = Definition(_convolved, _convolved_bound)


def _rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """x [D, N, H, S] with its halves turned by angles [D / 2, N, S]."""
    (a, b), c, s = np.split(x, 2), cos[:, :, None], sin[:, :, None]
    return np.concatenate([a * c - b * s, b * c + a * s])


def _library() -> Iterator[Call]:
    """The vendor's library for nki 0.3, whose kernels place their tensors themselves."""
    file, package = "nkilib/experimental/conv/conv1d.py", "nkilib.experimental.conv.conv1d"
    for (c, k, s), geometry in (
        ((8, 16, 3), (1, (0, 0), 1)),
        ((8, 16, 3), (2, (1, 2), 2)),
        ((130, 140, 7), (1, (3, 3), 1)),
        ((40, 20, 5), (3, (2, 2), 1)),
    ):
        arrays = (Array((2, c, 600 if c == 40 else 40)), Array((s, c, k)), Array((k,)))
        yield Call(file, "conv1d", (*arrays, *geometry), CONVOLUTION, target="gen3", package=package)
    # the Scalar Engine copies no tensors on gen2
    page = "nki.isa.tensor_copy, SDK 2.32: the Scalar Engine copies from NeuronCore-v3 on"
    yield Call(file, "conv1d", (*arrays, *geometry), NONE, refused=("engine",), package=package, page=page)
    file, package = "nkilib/experimental/conv/depthwise_conv1d.py", "nkilib.experimental.conv.depthwise_conv1d"
    depthwise = (Array((2, 8, 1, 40)), Array((8, 1, 1, 3)), ((0, 0), (0, 0)), (1, 1), (1, 1), (1, 1), 8)
    # it fills PSUM with zeros and adds to them, which the page of nc_matmul leaves undefined
    refused = ("psum-not-started",)
    page = "nki.isa.nc_matmul, SDK 2.32: accumulating onto what nc_matmul did not write is undefined"
    options: Any = {"target": "gen3", "refused": refused, "package": package, "page": page}
    yield Call(file, "depthwise_conv1d_implicit_gemm", depthwise, NONE, **options)
    file, package = "nkilib/core/cumsum/cumsum.py", "nkilib.core.cumsum.cumsum"
    turned = Definition(_rope, lambda x, c, s: 2 * definitions.gamma(3) * np.ones(x.shape))
    angles = (Array((64, 2, 3, 128)), Array((32, 2, 128)), Array((32, 2, 128)))
    where = ("nkilib/core/embeddings/rope.py", "nkilib.core.embeddings.rope")
    yield Call(where[0], "RoPE", angles, turned, target="gen3", package=where[1])
    where = ("nkilib/core/max/cascaded_max.py", "nkilib.core.max.cascaded_max")
    largest = (Definition(lambda x: x.max(1, keepdims=True)), Definition(lambda x: x.argmax(1)[:, None].astype(float)))
    yield Call(where[0], "cascaded_max", (Array((8, 3000)),), largest, target="gen3", package=where[1])
    running = Definition(lambda x: np.cumsum(x, axis=1), lambda x: definitions.gamma(x.shape[1]) * np.abs(x).cumsum(1))
    yield Call(file, "cumsum", (Array((200, 3000)),), running, package=package)


def _elementwise() -> Iterator[Call]:
    yield Call(ADDITION, "nki_tensor_add", PAIR, definitions.SUM)
    yield Call(SPMD_ADDITION, "nki_tensor_add", PAIR, definitions.SUM)
    yield Call(SPMD_ADDITION, "nki_tensor_add_kernel_", PAIR, definitions.SUM, (2, 2))
    three = (Array((4, 3), "fp16"), Array((4, 3), "fp16"))
    yield Call("getting_started_baremetal.py", "nki_tensor_add_kernel", three, definitions.SUM)
    yield Call("nki_simulate_example.py", "add_kernel", three, definitions.SUM)
    yield Call("layout-pass.py", "tensor_exp_kernel_", (Array((128, 512)),), definitions.EXPONENTIAL)
    yield Call("index-case-1.py", "tensor_split_kernel_", (Array((4, 5)),), definitions.EVEN_AND_ODD)
    bytes_ = Array((5, 12), "i8", -8, 8, whole=True)
    transposed = ("transpose2d/transpose2d_nki_kernels.py", "tensor_transpose2D_kernel_")
    yield Call(*transposed, (bytes_, (3, 4)), definitions.TRANSPOSE_FREE)


def _broken() -> Iterator[Call]:
    """Examples that cannot work: 256 partitions on purpose; a return inside the loop, and a missing parenthesis."""
    exponential = "tensor_exp_kernel_"
    page = "NKI Programming Model: a tile has at most 128 partitions (the page shows this file as what fails)"
    yield Call("layout-violation.py", exponential, (Array((256, 512)),), NONE, refused=("partition-limit",), page=page)
    rules = ("output-unwritten", "kernel-error")
    page = "NKI errors, SDK 2.26: err_tensor_output_not_written_to; in SDK 2.32 the file is no Python"
    yield Call("layout-dynamic-loop.py", exponential, (Array((200, 512)),), NONE, refused=rules, page=page)


SAMPLES = (*_matmuls(), *_pooling(), *_rows(), *_attention(), *_elementwise(), *_broken(), *_library())
