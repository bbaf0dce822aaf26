"""Public kernels of the first generation of NKI (`neuronxcc.nki`), what they are called with and what they must give.

Bounds of kernels that compute in bfloat16 between float32 results are in terms of the largest result: each rounding to
a format of unit roundoff u moves a value by at most u of its magnitude, and the number of them in a row is stated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nki_emulator.tests import definitions
from nki_emulator.tests.calls import SPACINGS, Array, Call
from nki_emulator.tests.definitions import Definition, gamma

NEURON_TEAM = "contributed/neuron-team-kernels/"
REFERENCE = "src/nki_samples/reference/"
XLA = ("torch", "torch.nn", "torch_xla", "torch_xla.core", "torch_xla.core.xla_model")
LLAMA = "transformers.models.llama.modeling_llama"
LOADED = ("torch.profiler", "torch_neuronx", "loguru", *(LLAMA.rsplit(".", depth)[0] for depth in range(4)))
WRAPPED = "import neuronxcc.nki as nki\nimport neuronxcc.nki.language as nl\n"
NONE = Definition(np.positive)
"""Of kernels that are refused."""

OPERANDS_IN_SBUF = "nki.isa.nc_matmul, SDK 2.26: operands are in SBUF; nki.isa.nc_transpose: its result is in PSUM"
ELEMENTS_AGREE = "NKI errors, SDK 2.26: err_store_dst_shape_smaller_than_other_shape (no pooling is written)"
TOO_MANY = "NKI errors, SDK 2.26: err_num_partition_exceed_arch_limit (a state of the exercise that shows it)"
INSIDE = "NKI errors, SDK 2.26: err_tensor_access_out_of_bound (no pooling is written)"


def _within(expected: Callable[..., np.ndarray], roundings: int, dtype: str = "fp32") -> Definition:
    """So many roundings in a row to a format, of values up to the largest result."""
    unit = SPACINGS[dtype]
    return Definition(expected, lambda *given: roundings * unit * np.abs(expected(*given)).max())


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _scaled_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """q [B, D, S], k [B, S, D] or [B, D, S], v [B, S, D] -> [B, S, D], with a scale of 1/8."""
    k = k if k.shape == q.shape else k.transpose(0, 2, 1)
    return np.asarray(_softmax(np.einsum("bds,bdt->bst", q, k) / 8) @ v)


def _causal(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """q, k [B, H, D, S], v [B, H, S, D] -> [B, H, S, D], with a scale of 1 / sqrt(D)."""
    scores = np.einsum("bhds,bhdt->bhst", q, k) / np.sqrt(q.shape[2])
    scores = np.where(np.tri(scores.shape[2], dtype=bool), scores, -np.inf)
    return np.asarray(_softmax(scores) @ v)


def convolved(x: np.ndarray, w: np.ndarray, padding: int = 0, stride: int = 1) -> np.ndarray:
    """x [N, C, H, W], w [K, C / G, R, S] -> [N, K, P, Q]; G is 1, or C."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    if w.shape[1] == 1 < x.shape[1]:
        return np.asarray(np.einsum("ncpqrs,crs->ncpq", windows, w[:, 0]))
    return np.asarray(np.einsum("ncpqrs,kcrs->nkpq", windows, w))


def _pooled(y: np.ndarray, side: int) -> np.ndarray:
    n, k, p, q = y.shape
    return np.asarray(y.reshape(n, k, p // side, side, q // side, side).max(axis=(3, 5)))


def _course_convolution(x: np.ndarray, w: np.ndarray, bias: np.ndarray, side: int) -> np.ndarray:
    return _pooled(convolved(x, w) + bias[:, None, None], side)


def _course_bound(x: np.ndarray, w: np.ndarray, bias: np.ndarray, side: int) -> np.ndarray:
    return np.asarray(gamma(w[0].size + 1) * _course_convolution(np.abs(x), np.abs(w), np.abs(bias), side))


COURSE = Definition(_course_convolution, _course_bound)
CONV = "part2/conv2d.py"
POOLING = ("xaviergonzalez", "chenhzhu", "nriedman", "robertpare17")
"""Whose convolution has the pooling as well; that of others is an earlier state of the assignment."""
WITHOUT_POOLING = {
    "EtashGuha": ("out-of-bounds", INSIDE),
    "chengli2003": ("shape", ELEMENTS_AGREE),
    "akjadhav": (
        "shape",
        "nki.language.maximum, SDK 2.26: operands broadcast (its pooling takes halves of other sizes)",
    ),
}


def _course() -> Iterator[Call]:
    """Assignment 4 of Stanford's CS149: convolution with maximum pooling, and additions of vectors."""
    for side, shape in ((1, (2, 128, 8, 10)), (2, (2, 128, 8, 10)), (1, (1, 256, 6, 18)), (2, (1, 256, 6, 18))):
        filters = (256 if shape[1] == 256 else 128, shape[1], 3, 3)
        arguments = (Array(shape), Array(filters), Array(filters[:1]), side)
        names = POOLING if side == 2 else (*POOLING, *WITHOUT_POOLING)
        yield Call(CONV, "fused_conv2d_maxpool", arguments, COURSE, sources=names, target="gen3", frameworks=("tqdm",))
        for name, (rule, page) in WITHOUT_POOLING.items() if side == 2 and shape[1] == 128 else ():
            yield Call(
                CONV, "fused_conv2d_maxpool", arguments, NONE, sources=(name,), target="gen3", frameworks=("tqdm",),
                refused=(rule,), page=page,
            )  # fmt: skip
    for name, size in (("naive", 128), ("stream", 256_000)):
        pair = (Array((size,)), Array((size,)))
        yield Call("part1/kernels.py", f"vector_add_{name}", pair, definitions.SUM, sources=("asst4",))
    # some states of it add one number at a time
    pair = (Array((2560,)), Array((2560,)))
    tiles = ("nriedman", "chengli2003", "akjadhav")
    yield Call("part1/kernels.py", "vector_add_tiled", pair, definitions.SUM, sources=tiles)
    options: Any = {
        "sources": ("xavier", "chenhzhu", "EtashGuha", "robertpare"),
        "refused": ("partition-limit",),
        "page": TOO_MANY,
    }
    yield Call("part1/kernels.py", "vector_add_tiled", pair, NONE, **options)
    big = (Array((1_024_000,)), Array((1_024_000,)))
    whole = Definition(lambda x, y: (x + y)[:, None], lambda x, y: gamma(1) * np.abs(x + y)[:, None])
    yield Call("part1/kernels.py", "vector_add_direct_allocation", big, whole)
    transposed = (Array((256, 384)),)
    yield Call("part1/kernels.py", "matrix_transpose", transposed, definitions.TRANSPOSE, sources=("asst4-trainium2",))


PLAIN = "in_perm=[0, 1, 2, 3], kern_perm=[0, 1, 2, 3], out_perm=[0, 1, 2, 3]"
CONVOLUTION = f"""{WRAPPED}from conv import conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh as inner

@nki.jit
def convolve(image, weights, shape):
    result = nl.ndarray(shape=shape, dtype=image.dtype, buffer=nl.hbm)
    inner(image, weights, result, {PLAIN}, stride=(1, 1), padding=((1, 1), (1, 1)))
    return result
"""
CONVOLUTION_BATCH_LAST = f"""{WRAPPED}from conv import conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh as inner

@nki.jit
def convolve(image, weights, shape):
    result = nl.ndarray(shape=shape, dtype=image.dtype, buffer=nl.hbm)
    perms = {{"in_perm": [1, 0, 2, 3], "kern_perm": [1, 0, 2, 3], "out_perm": [2, 3, 0, 1]}}
    inner(image, weights, result, stride=(1, 1), padding=((1, 1), (1, 1)), **perms)
    return result
"""
DEPTHWISE_1D = f"""{WRAPPED}from conv import conv1d_depthwise_bf01_oi01_bf01 as inner

@nki.jit
def convolve(image, weights, shape, pad):
    result = nl.ndarray(shape=shape, dtype=image.dtype, buffer=nl.hbm)
    inner(image, weights, result, padding=((0, 0), (pad, pad)))
    return result
"""


def _vendor_bound(x: np.ndarray, w: np.ndarray, *_: Any) -> np.ndarray:
    """Products of a tile in float32, tiles added up in the format of the tensors, which is float32."""
    return np.asarray(gamma(w[0].size + 8) * convolved(np.abs(x), np.abs(w), 1))


def _batch_last(x: np.ndarray, w: np.ndarray, *_: Any) -> np.ndarray:
    """x [C, N, H, W], w [C, K, R, S] -> [P, Q, N, K]."""
    return np.asarray(convolved(x.transpose(1, 0, 2, 3), w.transpose(1, 0, 2, 3), 1).transpose(2, 3, 0, 1))


def _vendor() -> Iterator[Call]:
    """The vendor's own convolution, which torch-neuronx of SDK 2.26 ships as a private kernel, and its neighbours."""
    file = f"{NEURON_TEAM}conv.py"
    vendor = Definition(lambda x, w, _: convolved(x, w, 1), _vendor_bound)
    for n, c, k, h, w in ((2, 3, 5, 6, 7), (1, 1, 1, 3, 3), (2, 40, 130, 5, 8), (1, 128, 200, 4, 4), (2, 2, 2, 30, 30)):
        arguments = (Array((n, c, h, w)), Array((k, c, 3, 3)), (n, k, h, w))
        yield Call(file, "convolve", arguments, vendor, wrapper=CONVOLUTION)
    last = Definition(_batch_last, lambda x, w, _: gamma(w[:, 0].size + 8) * _batch_last(np.abs(x), np.abs(w)))
    arguments = (Array((5, 3, 6, 7)), Array((5, 9, 3, 3)), (6, 7, 3, 9))
    yield Call(file, "convolve", arguments, last, wrapper=CONVOLUTION_BATCH_LAST)
    flat = Definition(
        lambda x, w, *_: convolved(x, w), lambda x, w, *_: gamma(w[0].size) * convolved(np.abs(x), np.abs(w))
    )
    for width in (40, 700):
        depthwise = (Array((2, 256, 1, width)), Array((256, 1, 1, 5)), (2, 256, 1, width - 4), 0)
        yield Call(file, "convolve", depthwise, flat, wrapper=DEPTHWISE_1D)
    file = f"{NEURON_TEAM}transpose.py"
    swapped = Definition(lambda x: x.transpose(0, 3, 2, 1))
    yield Call(file, "tiled_dve_transpose_210", (Array((3, 4, 5, 6)),), swapped, package="transpose")
    inner = Definition(lambda x, _: x.transpose(0, 1, 3, 2))
    yield Call(file, "tiled_dve_transpose_10", (Array((3, 4, 5, 6)), [0, 1, 3, 2]), inner, package="transpose")
    running = Definition(lambda x: np.cumsum(x, axis=1), lambda x: gamma(x.shape[1]) * np.abs(x).cumsum(axis=1))
    yield Call(f"{NEURON_TEAM}cumsum.py", "running", (Array((200, 3000)),), running, wrapper=CUMSUM)
    rotated = (Array((64, 1024)), Array((32, 1024)), Array((32, 1024)))
    yield Call(f"{NEURON_TEAM}RoPE.py", "rotate", rotated, ROTATION, wrapper=ROPE)


CUMSUM = f"""{WRAPPED}from cumsum import cumsum

@nki.jit
def running(x):
    y = nl.ndarray(shape=x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    cumsum(x, y)
    return y
"""
ROPE = f"""{WRAPPED}from RoPE import RoPE

@nki.jit
def rotate(x, cos, sin):
    y = nl.ndarray(shape=x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    RoPE(x, cos, sin, y)
    return y
"""


def _rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin])


def _rotated_bound(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    first, second = np.split(np.abs(x), 2)
    cos, sin = np.abs(cos), np.abs(sin)
    return np.asarray(gamma(3) * np.concatenate([first * cos + second * sin, second * cos + first * sin]))


ROTATION = Definition(_rotated, _rotated_bound)


def _reference() -> Iterator[Call]:
    file = f"{REFERENCE}attention.py"
    heads = (Array((1, 2, 64, 1024)), Array((1, 2, 64, 1024)), Array((1, 2, 1024, 64)))
    yield Call(file, "attend", heads, _within(_causal, 16, "bf16"), wrapper=FLASH, grid=(1, 2))
    # its transposes stay in PSUM, from where a product does not read
    backward = (Array((1, 1, 64, 1024)),) * 5 + (Array((1, 1, 128, 8)), None)
    yield Call(file, "flash_attn_bwd", backward, NONE, grid=(1, 1), refused=("buffer",), page=OPERANDS_IN_SBUF)
    small = (Array((1, 64, 1024)), Array((1, 1024, 64)), Array((1, 1024, 64)))
    name = "fused_self_attn_for_SD_small_head_size"
    yield Call(file, name, small, _within(_scaled_attention, 16, "bf16"), (1,))
    rows = (Array((1024, 64)),) * 3
    single = _within(lambda q, k, v: _softmax(q @ k.T / 8) @ v, 16, "bf16")
    yield Call("sd_attention/sd_attention_nki_kernels.py", name, rows, single)
    placed = (Array((1, 128, 2048)), Array((1, 128, 2048)), Array((1, 2048, 128)))
    turned = _within(lambda q, k, v: _scaled_attention(q, k, v).transpose(0, 2, 1), 16, "bf16")
    name = "allocated_fused_self_attn_for_SD_small_head_size"
    yield Call(f"{REFERENCE}allocated_attention.py", name, placed, turned, (1,), target="gen3")
    normed = _within(lambda x, w: definitions._rms_norm(x[0], np.ones(x.shape[2]))[None] @ w, 8, "fp16")
    fused = (Array((1, 256, 512), "fp16"), Array((512, 512), "fp16"))
    yield Call(f"{REFERENCE}allocated_fused_linear.py", "allocated_fused_rms_norm_qkv", fused, normed)
    eight = (Array((2, 8, 128, 512)), Array((2, 8, 128, 512)), 2 * 8 * 128 * 512)
    added = Definition(lambda x, y, _: x + y, lambda x, y, _: gamma(1) * np.abs(x + y))
    yield Call(f"{REFERENCE}tutorial.py", "add_kernel_nx8x128x512", eight, added, (2,))
    file = f"{REFERENCE}vision.py"
    scattered = Definition(_scattered, lambda x, y: gamma(9) * _scattered(x, np.abs(y)))
    yield Call(file, "select_and_scatter_kernel", (Array((2, 64, 8, 8)), Array((2, 64, 4, 4))), scattered)
    yield Call(file, "resize_nearest_fixed_dma_kernel", (Array((1, 30, 20, 4)), (1, 59, 38, 4)), Definition(_nearest))
    pooled = _within(_adaptive, 40)
    yield Call(file, "adaptive_avg_pool2d_kernel", (Array((2, 5, 7, 9)), (3, 4)), pooled)


FLASH = """import neuronxcc.nki as nki
from attention import flash_fwd, FlashConfig


@nki.jit
def attend(q, k, v):
    config = FlashConfig(seq_tile_size=512, training=False, should_transpose_v=False)
    return flash_fwd(q, k, v, None, use_causal_mask=True, config=config)
"""


def _turned(q: np.ndarray, k: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """q and k rotated by halves of their last dimension, one after the other."""
    half = q.shape[-1] // 2
    swapped = [np.concatenate([-x[..., half:], x[..., :half]], axis=-1) for x in (q, k)]
    return np.stack([x * cos + y * sin for x, y in zip((q, k), swapped, strict=True)])


def _double_row(a: np.ndarray, b: np.ndarray, scale: np.ndarray, *_: Any) -> np.ndarray:
    """a [M, K], b [K / 2, 2 N] with pairs of tiles of 128 rows side by side, scale [128, N] -> [M, N]."""
    k, n = a.shape[1], b.shape[1] // 2
    tiles = b.reshape(k // 256, 128, n // 512, 2, 512).transpose(0, 3, 1, 2, 4).reshape(k, n)
    return np.asarray(a @ tiles * scale[0])


DOUBLE = Definition(_double_row, lambda a, b, *rest: 4 * SPACINGS["f8"] * _double_row(np.abs(a), np.abs(b), *rest))
"""The left operand is rounded to 8 bits after a scaling by its rows; the right one is in 8 bits already."""
QUANTISED = """import neuronxcc.nki
from nki_samples.reference.rmsnorm_quant.rmsnorm_quant import RmsNormQuantKernelArgs, rmsnorm_quant_kernel


def quantised(hidden, weights):
    return rmsnorm_quant_kernel(hidden, weights, RmsNormQuantKernelArgs(lower_bound=0.0))
"""
PRIVATE = (
    ("hw_ubench.py", "row_tiled_matmul_isa_kernel"),
    ("hw_ubench.py", "column_tiled_matmul_isa_kernel"),
    ("blockwise_mm.py", "blockwise_mm_baseline_allocated"),
    ("blockwise_mm.py", "blockwise_mm_baseline_while"),
    ("attention_token_gen.py", "llama3_attention_block_token_gen_kernel"),
    ("attention.py", "ring_attention_fwd"),
    ("attention.py", "ring_attention_bwd"),
)
"""Files of the vendor's team whose imports are not all public, or that communicate between cores."""


def _others() -> Iterator[Call]:
    file = "tutorials/rotary/rotary_nki_kernels.py"
    rotary = (Array((1, 2, 256, 64)), Array((1, 2, 256, 64)), Array((1, 256, 64)), Array((1, 256, 64)))
    turned = Definition(_turned, lambda q, k, c, s: gamma(3) * 2 * np.ones((2, *q.shape)))
    yield Call(file, "nki_apply_rotary_embedding", rotary, turned, (1, 2), frameworks=(*XLA, *LOADED))
    for name, kernel in PRIVATE:
        yield Call(f"{NEURON_TEAM}{name}", kernel, (), NONE, refused=("not-implemented",))
    varlen = f"{NEURON_TEAM}flash_paged_attn_varlen/varlen_attention_kernel.py"
    yield Call(varlen, "flash_paged_attention_varlen", (), NONE, refused=("not-implemented",))
    rows = (Array((1, 200, 1024), low=0.5), Array((1024,), low=0.5), 0.0, "RMSNormQuant")
    yield Call(f"{NEURON_TEAM}rmsnorm_quant.py", "compatible_rmsnorm_quant", rows, NONE, refused=("not-implemented",))
    package = "nki_samples.reference.rmsnorm_quant.rmsnorm_quant"
    file = f"{REFERENCE}rmsnorm_quant/rmsnorm_quant.py"
    quantised: Any = {"refused": ("not-implemented",), "package": package, "wrapper": QUANTISED}
    yield Call(file, "quantised", rows[:2], NONE, **quantised)
    double = (Array((256, 512), "bf16"), Array((256, 2048), "f8"), Array((128, 1024), "bf16", 1, 1), 1, 1, 2)
    yield Call(f"{REFERENCE}double_row_matmul.py", "quantized_double_row_matmul", double, DOUBLE, target="gen3")


def _scattered(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """y added at the first largest element of each window of 3 by 3 of x, in steps of 2."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    place = windows.reshape(*y.shape, 9).argmax(axis=-1)
    n, c, i, j = np.indices(y.shape)
    result = np.zeros(padded.shape)
    np.add.at(result, (n, c, 2 * i + place // 3, 2 * j + place % 3), y)
    return result[:, :, 1:-1, 1:-1]


def _nearest(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    rows, columns = (np.floor(np.arange(shape[d]) * (x.shape[d] / shape[d])).astype(int) for d in (1, 2))
    return np.asarray(x[:, rows][:, :, columns])


def _adaptive(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    bounds = [[(i * n // m, -(-(i + 1) * n // m)) for i in range(m)] for n, m in zip(x.shape[2:], size, strict=True)]
    rows = [[x[:, :, a:b, c:d].mean(axis=(2, 3)) for c, d in bounds[1]] for a, b in bounds[0]]
    return np.moveaxis(np.array(rows), (0, 1), (2, 3))


def _upsampled(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    """Twice as many elements along some dimensions, 3/4 and 1/4 of neighbours, edges repeated."""
    for dim in dims:
        n = x.shape[dim]
        lower, upper = (np.take(x, (np.arange(n) + d).clip(0, n - 1), axis=dim) for d in (-1, 1))
        pair = np.stack([0.75 * x + 0.25 * lower, 0.75 * x + 0.25 * upper], axis=dim + 1)
        x = pair.reshape(*x.shape[:dim], 2 * n, *x.shape[dim + 1 :])
    return x


def _contributed() -> Iterator[Call]:
    bilinear = _within(lambda x, _: _upsampled(x, (2, 3)), 16)
    name = "interpolate_bilinear_2x_fwd"
    yield Call("contributed/interpolate_bilinear_fwd.py", name, (Array((2, 3, 12, 5)), 10), bilinear, frameworks=XLA)
    trilinear = _within(lambda x, *_: _upsampled(x, (2, 3, 4)), 16)
    name = "interpolate_trilinear_2x_fwd"
    yield Call("contributed/interpolate_trilinear_fwd.py", name, (Array((1, 3, 4, 6, 5)),), trilinear, frameworks=XLA)
    product = Definition(lambda a, b: a.T @ b, lambda a, b: gamma(len(a)) * (np.abs(a).T @ np.abs(b)))
    arguments = (Array((1024, 512)), Array((1024, 2048)))
    yield Call("contributed/matmul.py", "multiply", arguments, product, wrapper=MATMUL)
    yield Call("contributed/pipelined_attention.py", "flash_fwd", (), NONE, refused=("not-implemented",), target="gen3")


MATMUL = "import neuronxcc.nki as nki\nfrom matmul import matmul\n\nmultiply = nki.jit(matmul)\n"
SAMPLES_BETA = (*_course(), *_vendor(), *_reference(), *_contributed(), *_others())
