"""Triton kernels in Triton's interpreter (TRITON_INTERPRET=1), as somebody writes them who has no GPU yet.

Convolution is an implicit GEMM: a program computes BLOCK_M pixels times BLOCK_N filters of one group, and tl.dot runs
over channels and taps, which are found from the index of the product. Matrices have blocks of rows and columns, average
pooling of outputs. All read through strides, so layouts and views are only other numbers. fp64 is left out: a GPU has
no use for it here. A block takes milliseconds: problems are kept to arrays of 2^15 elements, in few groups. 16-bit
floats are multiplied as fp32: the interpreter has no operations on bf16.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import triton
import triton.language as tl

from conformance import Implementation, torch_arrays
from conformance.implementations.windows import windows

sim = Implementation("triton-interpreter", "simulator", torch_arrays("cpu"), version=triton.__version__)
SMALL, NCHW = 2**15, {"nchw": (0, 1, 2, 3), "nhwc": (0, 3, 1, 2)}
TAKES = {"dtypes": ("fp32", "fp16", "bf16"), "layouts": ("nchw", "nhwc")}
MATRICES = TAKES | {"layouts": ("nn", "nt", "tn", "tt"), "when": lambda p: p.batch * p.m * max(p.n, p.k) < SMALL}


@triton.jit
def conv_kernel(
    x, w, bias, y, N, C, H, W, K, P, Q, uh, uw, ph, pw, dh, dw,
    xn, xc, xh, xw, wk, wc, wr, ws, bk, yn, yk, yp, yq,
    R: tl.constexpr, S: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Convolve a block; C and K are those of a group."""
    group = tl.program_id(2)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_m, in_k = m < N * P * Q, k < K
    n, p, q = m // (P * Q), m // Q % P, m % Q
    top, left = p * uh - ph, q * uw - pw
    x += (n.to(tl.int64) * xn)[:, None] + group.to(tl.int64) * C * xc
    filters = (group * K + k).to(tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, C * R * S, BLOCK_K):
        e = start + tl.arange(0, BLOCK_K)
        in_e = e < C * R * S
        c, r, s = e // (R * S), e // S % R, e % S
        h, v = top[:, None] + (r * dh)[None, :], left[:, None] + (s * dw)[None, :]
        inside = (h >= 0) & (h < H) & (v >= 0) & (v < W) & in_m[:, None] & in_e[None, :]
        a = tl.load(x + c[None, :].to(tl.int64) * xc + h.to(tl.int64) * xh + v.to(tl.int64) * xw, inside, 0.0)
        tap = c.to(tl.int64) * wc + r.to(tl.int64) * wr + s.to(tl.int64) * ws
        b = tl.load(w + tap[:, None] + (filters * wk)[None, :], in_e[:, None] & in_k[None, :], 0.0)
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias + filters * bk, in_k, 0.0).to(tl.float32)[None, :]
    pixel = n.to(tl.int64) * yn + p.to(tl.int64) * yp + q.to(tl.int64) * yq
    tl.store(y + pixel[:, None] + (filters * yk)[None, :], acc.to(y.dtype.element_ty), in_m[:, None] & in_k[None, :])


@triton.jit
def avg_pool_kernel(
    x, y, N, C, H, W, P, Q, uh, uw, top, bottom, left, right, divisor, xn, xc, xh, xw, yn, yc, yp, yq,
    R: tl.constexpr, S: tl.constexpr, COUNT_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Average a block of outputs; `divisor` is 0 where elements are counted."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = o < N * C * P * Q
    n, c, p, q = o // (C * P * Q), o // (P * Q) % C, o // Q % P, o % Q
    h0, w0 = p * uh - top, q * uw - left
    x += n.to(tl.int64) * xn + c.to(tl.int64) * xc
    acc = tl.zeros((BLOCK,), tl.float32)
    for r in range(R):
        for s in range(S):
            h, v = h0 + r, w0 + s
            inside = (h >= 0) & (h < H) & (v >= 0) & (v < W) & mask
            acc += tl.load(x + h.to(tl.int64) * xh + v.to(tl.int64) * xw, inside, 0.0).to(tl.float32)
    h1, w1 = tl.minimum(h0 + R, H + bottom), tl.minimum(w0 + S, W + right)
    if not COUNT_PAD:
        h0, w0, h1, w1 = tl.maximum(h0, 0), tl.maximum(w0, 0), tl.minimum(h1, H), tl.minimum(w1, W)
    count = tl.where(divisor > 0, divisor, (h1 - h0) * (w1 - w0)).to(tl.float32)
    at = n.to(tl.int64) * yn + c.to(tl.int64) * yc + p.to(tl.int64) * yp + q.to(tl.int64) * yq
    tl.store(y + at, (acc / count).to(y.dtype.element_ty), mask)


@triton.jit
def matmul_kernel(
    a, b, c, y, M, N, K, alpha, beta, ab, am, ak, bb, bk, bn, cb, cm, cn, yb, ym, yn,
    HAS_C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(2).to(tl.int64)
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :]
    acc, inside = tl.zeros((BLOCK_M, BLOCK_N), tl.float32), (m < M) & (n < N)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K).to(tl.int64)
        rows = tl.load(a + batch * ab + m * am + k[None, :] * ak, (m < M) & (k < K)[None, :], 0.0)
        columns = tl.load(b + batch * bb + k[:, None] * bk + n * bn, (k < K)[:, None] & (n < N), 0.0)
        acc = tl.dot(rows.to(tl.float32), columns.to(tl.float32), acc, input_precision="ieee")
    acc = alpha * acc + beta * tl.load(c + batch * cb + m * cm + n * cn, inside & HAS_C, 0.0).to(tl.float32)
    tl.store(y + batch * yb + m * ym + n * yn, acc.to(y.dtype.element_ty), inside)


@sim.implements("conv_forward", **TAKES, when=lambda p: p.n * max(p.c, p.k) * p.h * p.w < SMALL and p.groups <= 32)
def conv_forward(x, w, bias, *, stride, padding, dilation, groups, layout):
    x, w = x.permute(NCHW[layout]), w.permute(NCHW[layout])
    (n, _, h, v), (k, c, r, s) = x.shape, w.shape
    p, q = (axis.outputs for axis in windows((h, v), (r, s), stride, padding, dilation))
    result = x.new_empty((n, k, p, q) if layout == "nchw" else (n, p, q, k))
    y, b = result.permute(NCHW[layout]), w if bias is None else bias
    grid = (triton.cdiv(n * p * q, 64), triton.cdiv(k // groups, 32), groups)
    numbers = (n, c, h, v, k // groups, p, q, *stride, padding[0][0], padding[1][0], *dilation)
    strides = (*x.stride(), *w.stride(), b.stride(0), *y.stride())
    conv_kernel[grid](x, w, b, y, *numbers, *strides, r, s, bias is not None, 64, 32, 64)
    return result


@sim.implements("avg_pool_forward", **TAKES, when=lambda p: p.n * p.c * p.h * p.w < SMALL)
def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, layout):
    x = x.permute(NCHW[layout])
    size = [axis.outputs for axis in windows(x.shape[2:], kernel_size, stride, padding, ceil=ceil_mode)]
    result = x.new_empty((*x.shape[:2], *size) if layout == "nchw" else (len(x), *size, x.shape[1]))
    numbers = (*x.shape, *size, *stride, *padding[0], *padding[1], divisor_override or 0)
    strides = (*x.stride(), *result.permute(NCHW[layout]).stride())
    avg_pool_kernel[(triton.cdiv(result.numel(), 256),)](
        x, result, *numbers, *strides, *kernel_size, count_include_pad, 256
    )
    return result


@sim.implements("gemm", **MATRICES)
def gemm(a, b, c, *, layout, alpha=1.0, beta=1.0):
    a, b = (t if lies == "n" else t.mT for t, lies in zip((a, b), layout, strict=True))
    y, has_c = a.new_empty((*a.shape[:-1], b.shape[-1])), c is not None and beta != 0
    tensors = [t if t.ndim == 3 else t[None] for t in (a, b, c.expand(y.shape) if has_c else y, y)]
    (batch, m, n), strides = tensors[-1].shape, (stride for t in tensors for stride in t.stride())
    blocks = triton.cdiv(m, 64), triton.cdiv(n, 32), batch
    matmul_kernel[blocks](*tensors, m, n, a.shape[-1], alpha, beta, *strides, has_c, 64, 32, 64)
    return y


sim.implements("matmul", **MATRICES)(lambda a, b, bias, *, layout: gemm(a, b, bias, layout=layout))
