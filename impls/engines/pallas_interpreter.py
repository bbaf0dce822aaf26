"""Pallas kernels with interpret=True, as somebody writes them for a GPU (Pallas over Triton) who has none yet.

Convolution is an implicit GEMM: a program computes BLOCK_M pixels times BLOCK_N filters of one group, and its dot
products run over channels and taps, which are found from the index of the product. Matrices have blocks of rows and
columns, average pooling of outputs. References are whole arrays, read and written at computed indices under a mask.
fp64 is left out: JAX has it only where jax_enable_x64 is set; and empty arrays: no programs have nothing to index.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from conformance import Contract, Implementation, jax_arrays
from conformance.implementations.windows import windows

FLUSHED = Contract(subnormals="flushed")  # XLA:CPU, which runs the interpreted kernel, is under ScopedFlushDenormal
sim = Implementation("pallas-interpreter", "simulator", jax_arrays("cpu"), FLUSHED, version=jax.__version__)
TAKES = {"dtypes": ("fp32", "fp16", "bf16"), "layouts": ("nchw", "nhwc"), "when": lambda p: p.n > 0}
MATRICES = TAKES | {"layouts": ("nn", "nt", "tn", "tt"), "when": lambda p: p.m * p.k > 0}
BLOCK_M, BLOCK_N, BLOCK_K, BLOCK = 64, 32, 64, 256


def at(layout, n, c, h, w):
    return (n, c, h, w) if layout == "nchw" else (n, h, w, c)


def sizes(layout, shape):
    return shape if layout == "nchw" else tuple(shape[i] for i in (0, 3, 1, 2))


def conv_kernel(*refs, stride, padding, dilation, groups, layout):
    x, w, *bias, y = refs
    (_, _, height, width), (_, c_group, r_size, s_size) = sizes(layout, x.shape), sizes(layout, w.shape)
    n_size, k_all, p_size, q_size = sizes(layout, y.shape)
    group, k_group = pl.program_id(2), k_all // groups
    m = pl.program_id(0) * BLOCK_M + jnp.arange(BLOCK_M)
    j = pl.program_id(1) * BLOCK_N + jnp.arange(BLOCK_N)
    in_m, in_k, k = m < n_size * p_size * q_size, j < k_group, group * k_group + j
    n, p, q = m // (p_size * q_size), m // q_size % p_size, m % q_size

    def step(i, acc):
        e = i * BLOCK_K + jnp.arange(BLOCK_K)
        c, r, s, in_e = e // (r_size * s_size), e // s_size % r_size, e % s_size, e < c_group * r_size * s_size
        h = (p * stride[0] - padding[0][0])[:, None] + (r * dilation[0])[None, :]
        v = (q * stride[1] - padding[1][0])[:, None] + (s * dilation[1])[None, :]
        inside = (h >= 0) & (h < height) & (v >= 0) & (v < width) & in_m[:, None] & in_e[None, :]
        a = plgpu.load(x.at[at(layout, n[:, None], (group * c_group + c)[None, :], h, v)], mask=inside, other=0.0)
        tap = at(layout, k[None, :], c[:, None], r[:, None], s[:, None])
        b = plgpu.load(w.at[tap], mask=in_e[:, None] & in_k[None, :], other=0.0)
        return acc + jnp.dot(a, b, precision="highest", preferred_element_type=jnp.float32)

    steps = pl.cdiv(c_group * r_size * s_size, BLOCK_K)
    acc = jax.lax.fori_loop(0, steps, step, jnp.zeros((BLOCK_M, BLOCK_N), jnp.float32))
    if bias:
        acc += plgpu.load(bias[0].at[k], mask=in_k, other=0.0).astype(jnp.float32)[None, :]
    out = y.at[at(layout, n[:, None], k[None, :], p[:, None], q[:, None])]
    plgpu.store(out, acc.astype(y.dtype), mask=in_m[:, None] & in_k[None, :])


def avg_pool_kernel(x, y, *, kernel_size, stride, padding, count_include_pad, divisor_override, layout):
    n_size, c_size, p_size, q_size = sizes(layout, y.shape)
    o = pl.program_id(0) * BLOCK + jnp.arange(BLOCK)
    mask = o < n_size * c_size * p_size * q_size
    n, c = o // (c_size * p_size * q_size), o // (p_size * q_size) % c_size
    p, q = o // q_size % p_size, o % q_size
    (height, width), acc, count = sizes(layout, x.shape)[2:], jnp.zeros(BLOCK, jnp.float32), 1
    h0, w0 = p * stride[0] - padding[0][0], q * stride[1] - padding[1][0]

    def step(i, acc):
        h, v = h0 + i // kernel_size[1], w0 + i % kernel_size[1]
        inside = (h >= 0) & (h < height) & (v >= 0) & (v < width) & mask
        return acc + plgpu.load(x.at[at(layout, n, c, h, v)], mask=inside, other=0.0).astype(jnp.float32)

    acc = jax.lax.fori_loop(0, kernel_size[0] * kernel_size[1], step, acc)
    for start, size, k, (_, after) in zip((h0, w0), (height, width), kernel_size, padding, strict=True):
        whole = jnp.minimum(start + k, size + after) - start
        count *= whole if count_include_pad else jnp.minimum(start + k, size) - jnp.maximum(start, 0)
    divisor = count if divisor_override is None else jnp.full(BLOCK, divisor_override)
    plgpu.store(y.at[at(layout, n, c, p, q)], (acc / divisor.astype(jnp.float32)).astype(y.dtype), mask=mask)


def matmul_kernel(*refs, alpha, beta):
    a, b, *c, y = refs  # [batch, rows, columns]
    (_, m_size, n_size), k_size, batch = y.shape, a.shape[2], pl.program_id(2)
    m = (pl.program_id(0) * BLOCK_M + jnp.arange(BLOCK_M))[:, None]
    n = (pl.program_id(1) * BLOCK_N + jnp.arange(BLOCK_N))[None, :]
    in_m, in_n = m < m_size, n < n_size

    def step(i, acc):
        k = i * BLOCK_K + jnp.arange(BLOCK_K)
        rows = plgpu.load(a.at[batch, m, k[None, :]], mask=in_m & (k < k_size)[None, :], other=0.0)
        columns = plgpu.load(b.at[batch, k[:, None], n], mask=(k < k_size)[:, None] & in_n, other=0.0)
        return acc + jnp.dot(rows, columns, precision="highest", preferred_element_type=jnp.float32)

    acc = alpha * jax.lax.fori_loop(0, pl.cdiv(k_size, BLOCK_K), step, jnp.zeros((BLOCK_M, BLOCK_N), jnp.float32))
    if c:
        acc += beta * plgpu.load(c[0].at[batch, m, n], mask=in_m & in_n, other=0.0).astype(jnp.float32)
    plgpu.store(y.at[batch, m, n], acc.astype(y.dtype), mask=in_m & in_n)


@functools.partial(jax.jit, static_argnums=(0, 1, 2), static_argnames="parameters")
def call(kernel, grid, shape, *arrays, parameters):
    shape = jax.ShapeDtypeStruct(shape, arrays[0].dtype)
    return pl.pallas_call(functools.partial(kernel, **dict(parameters)), shape, grid=grid, interpret=True)(*arrays)


@sim.implements("conv_forward", **TAKES)
def conv_forward(x, w, bias, *, stride, padding, dilation, groups, layout):
    (n, _, *size), (k, _, *kernel) = sizes(layout, x.shape), sizes(layout, w.shape)
    p, q = (axis.outputs for axis in windows(size, kernel, stride, padding, dilation))
    parameters = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": layout}
    grid = (pl.cdiv(n * p * q, BLOCK_M), pl.cdiv(k // groups, BLOCK_N), groups)
    arrays = (x, w) if bias is None else (x, w, bias)
    return call(conv_kernel, grid, at(layout, n, k, p, q), *arrays, parameters=tuple(parameters.items()))


@sim.implements("avg_pool_forward", **TAKES)
def avg_pool_forward(x, *, ceil_mode, layout, kernel_size, stride, padding, count_include_pad, divisor_override):
    n, c, *image = sizes(layout, x.shape)
    size = [axis.outputs for axis in windows(image, kernel_size, stride, padding, ceil=ceil_mode)]
    parameters = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "layout": layout}
    parameters |= {"count_include_pad": count_include_pad, "divisor_override": divisor_override}
    grid = (pl.cdiv(n * c * size[0] * size[1], BLOCK),)
    return call(avg_pool_kernel, grid, at(layout, n, c, *size), x, parameters=tuple(parameters.items()))


@sim.implements("gemm", **MATRICES)
def gemm(a, b, c, *, layout, alpha=1.0, beta=1.0):
    a, b = (t if lies == "n" else t.swapaxes(-1, -2) for t, lies in zip((a, b), layout, strict=True))
    shape = (len(a) if a.ndim == 3 else 1, a.shape[-2], b.shape[-1])
    arrays = [a, b] if c is None or beta == 0 else [a, b, jnp.broadcast_to(c, (*a.shape[:-1], shape[2]))]
    grid, how = (pl.cdiv(shape[1], BLOCK_M), pl.cdiv(shape[2], BLOCK_N), shape[0]), (("alpha", alpha), ("beta", beta))
    y = call(matmul_kernel, grid, shape, *(t[(None,) * (3 - t.ndim)] for t in arrays), parameters=how)
    return y if a.ndim == 3 else y[0]


sim.implements("matmul", **MATRICES)(lambda a, b, bias, *, layout: gemm(a, b, bias, layout=layout))
