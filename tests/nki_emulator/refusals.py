"""Kernels that break one rule each, and neighbours that break none: data for the tests of the emulator."""

from __future__ import annotations

from tests.nki_emulator.refusals_operands import FURTHER, OPERANDS
from tests.nki_emulator.sources import Refused

MEMORY = (
    Refused("partition-limit", "nl.ndarray((129, 4), dtype=nl.float32)"),
    Refused(
        "sbuf-capacity",
        "u = nl.ndarray((1, 177792), dtype=nl.uint8)\nv = nl.ndarray((1, 1), dtype=nl.uint8)",
    ),
    Refused("sbuf-capacity", "nl.ndarray((128, 52639), dtype=nl.float32)", "gen3"),
    Refused(
        "psum-capacity",
        "u = nl.ndarray((2, 7 * 512), dtype=nl.float32, buffer=nl.psum)\n"
        "v = nl.ndarray((2, 1), dtype=nl.float32, buffer=nl.psum)",
    ),
    Refused("psum-capacity", "nl.ndarray((2, 8 * 512 + 1), dtype=nl.float32, buffer=nl.psum)"),
    Refused(
        "psum-bank",
        "u = nl.ndarray((24, 700), dtype=nl.float32, buffer=nl.psum)\n"
        "nisa.nc_matmul(dst=u[:, 500:524], stationary=x, moving=x)",
    ),
    Refused("uninitialised", "nisa.tensor_copy(dst=x, src=t)"),
    Refused("uninitialised", "nisa.memset(dst=t[:, 3:5], value=0)\nnl.copy(t[:, 3:5])\nnl.copy(t[:, 4:6])"),
    Refused(
        "uninitialised",
        "nisa.memset(dst=t[:, 0:23], value=0)\nnisa.tensor_scalar(dst=x, data=t, op0=nl.add, operand0=1.0)",
    ),
    Refused(
        "sbuf-capacity", "u = nl.ndarray((1, 100000), dtype=nl.uint8)[:, 0:1]\nnl.ndarray((1, 100000), dtype=nl.uint8)"
    ),
    Refused(
        "uninitialised",
        "nisa.memset(dst=t[:, ::2], value=0)\nnisa.memset(dst=t[0:8, 1::2], value=0)\nnisa.dma_copy(dst=out, src=t)",
    ),
    Refused("uninitialised", "h = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.private_hbm)\nnl.load(h)"),
    Refused("uninitialised", "nisa.nc_matmul(dst=p, stationary=t, moving=x)"),
    Refused("uninitialised", "nisa.tensor_scalar(dst=x, data=y, op0=nl.add, operand0=t[:, 0:1])"),
    Refused("uninitialised", "r = nisa.register_alloc()\nnisa.register_move(r, r)"),
    Refused("uninitialised", "a.select(0, nl.ndarray((1, 1), dtype=nl.int32))"),
    Refused("psum-uninitialised", "nisa.tensor_copy(dst=t, src=p[0:16, :])"),
    Refused("psum-uninitialised", "nisa.nc_matmul(dst=p, stationary=x, moving=x, accumulate=True)"),
    Refused(
        "psum-uninitialised",
        "nisa.nc_matmul(dst=p[:, 0:12], stationary=x, moving=x[:, 0:12])\n"
        "nisa.nc_matmul(dst=p, stationary=x, moving=x)",
    ),
    Refused(
        "psum-not-started",
        "nisa.memset(dst=p, value=0)\nnisa.nc_matmul(dst=p, stationary=x, moving=x, accumulate=True)",
    ),
    Refused("psum-not-started", "nisa.memset(dst=p, value=0)\nnisa.nc_matmul(dst=p, stationary=x, moving=x)", "gen3"),
    Refused(
        "psum-not-started",
        "nisa.nc_matmul(dst=p, stationary=x, moving=x)\nnisa.memset(dst=p[:, 3:4], value=0)\n"
        "nisa.nc_matmul(dst=p, stationary=x, moving=x, accumulate=True)",
    ),
    Refused(
        "register-uninitialised",
        "nisa.activation(dst=t, op=nl.copy, data=x, reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reduce)",
    ),
    Refused("register-frozen", "def body(i):\n    nisa.register_move(i, 3)  # refused\nnl.fori_loop(0, 2, body)"),
    Refused("input-written", "nisa.dma_copy(dst=a, src=x)"),
    Refused("input-written", "nl.store(a[0:16], x)"),
    Refused("overlap", "nisa.tensor_copy(dst=x[:, 1:24], src=x[:, 0:23])"),
    Refused("overlap", "nisa.tensor_tensor(dst=x[:, 0:12], data1=y[:, 0:12], data2=x[:, 6:18], op=nl.add)"),
    Refused("overlap", "nisa.tensor_reduce(dst=x[:, 3:4], op=nl.add, data=x, axis=1)"),
    Refused("overlap", "nisa.dma_copy(dst=out[0:8], src=out[4:12])"),
    Refused("overlap", "nisa.dma_copy(dst=x, src=x)"),
    Refused("overlap", "u = nl.zeros((16, 16), dtype=nl.float32)\nnisa.nc_transpose(dst=u, data=u)"),
    Refused("overlap", "u = nl.zeros((16, 16), dtype=nl.float32)\nnisa.dma_transpose(dst=u, src=u)"),
    Refused("overlapping-write", "nisa.memset(dst=t[:, 0:1].broadcast(1, 24), value=0)"),
    Refused("overlapping-write", "nisa.dma_copy(dst=t.ap([[24, 16], [1, 4], [2, 6]]), src=x)"),
)

ACCESS = (
    Refused("buffer", "nisa.tensor_copy(dst=t, src=a)"),
    Refused("buffer", "nisa.nc_matmul(dst=t, stationary=x[:, 0:16], moving=x)"),
    Refused(
        "buffer",
        "nisa.nc_matmul(dst=p, stationary=x, moving=x)\nq = nl.ndarray((24, 24), dtype=nl.float32, buffer=nl.psum)\n"
        "nisa.nc_matmul(dst=q, stationary=p, moving=p)",
    ),
    Refused("buffer", "nl.load(x)"),
    Refused("buffer", "nl.store(t, x)"),
    Refused("buffer", "nisa.dma_transpose(dst=out, src=a)"),
    Refused("buffer", "q = nl.ndarray((4, 4), dtype=nl.int32, buffer=nl.psum)\nnisa.iota(dst=q, pattern=[[1, 4]])"),
    Refused("buffer", "nl.ndarray((4, 4), dtype=nl.float32, buffer=3)"),
    Refused("dma-psum", "nisa.nc_matmul(dst=p, stationary=x, moving=x)\nnisa.dma_copy(dst=out[0:16], src=p[0:16, :])"),
    Refused("dma-psum", "nisa.dma_copy(dst=p[0:16, :], src=a)"),
    Refused("gpsimd-psum", "nisa.memset(dst=p, value=0, engine=nisa.engine.gpsimd)"),
    Refused(
        "gpsimd-psum", "nisa.memset(dst=p, value=1)\nnisa.tensor_scalar(dst=p, data=p, op0=nl.rsqrt, operand0=0.0)"
    ),
    Refused(
        "gpsimd-psum", "nisa.memset(dst=p, value=1)\nnisa.tensor_tensor(dst=t, data1=x, data2=p[0:16, :], op=nl.power)"
    ),
    Refused("both-in-psum", "nisa.memset(dst=p, value=1)\nnisa.tensor_tensor(dst=p, data1=p, data2=p, op=nl.add)"),
    Refused(
        "both-in-psum",
        "nisa.memset(dst=p, value=1)\n"
        "nisa.scalar_tensor_tensor(dst=p, data=p, op0=nl.add, operand0=1.0, op1=nl.add, operand1=p)",
    ),
    Refused("start-partition", "nisa.memset(dst=big[16:32], value=0)"),
    Refused("start-partition", "nisa.memset(dst=big[32:80], value=0)"),
    Refused("start-partition", "nisa.memset(dst=big[32:128], value=0)"),
    Refused("start-partition", "nisa.nc_matmul(dst=p, stationary=x[1:16], moving=x[1:16])"),
    Refused("partition-stride", "x[::2]"),
    Refused("partition-stride", "x.slice(0, 0, 16, 2)"),
    Refused("partition-stride", "x.ap([[48, 8], [1, 24]])"),
    Refused("partition-view", "x.permute((1, 0))"),
    Refused("partition-view", "x.reshape((8, 48))"),
    Refused("partition-view", "x.select(0, 1)"),
    Refused("partition-view", "x.expand_dim(0)"),
    Refused(
        "access-dimensions",
        "v = nl.zeros((2, 4, 4, 4, 4, 4), dtype=nl.float32)[:, ::2, ::2, ::2, ::2, ::2]\nnl.copy(v)",
    ),
    Refused("out-of-bounds", "x[:, 0:25]"),
    Refused("out-of-bounds", "a[16]"),
    Refused("out-of-bounds", "a[0:17]"),
    Refused("out-of-bounds", "a[3:3]"),
    Refused("out-of-bounds", "a[:, -25]"),
    Refused("out-of-bounds", "x.slice(1, 20, 25)"),
    Refused("out-of-bounds", "a.select(1, 24)"),
    Refused("out-of-bounds", "a.ap([[24, 16], [1, 24]], offset=1)"),
    Refused("out-of-bounds", "x.ap([[24, 15], [1, 24]], offset=1)"),
    Refused("out-of-bounds", "a.ap([[24, 16], [-1, 24]], offset=23)"),
    Refused("out-of-bounds", "a[nl.ds(12, 5)]"),
    Refused("slice-step", "a[0:10:0]"),
    Refused("index", "a[1.0]"),
    Refused("index", "a[0, 0, 0]"),
    Refused("index", "x.slice(1, 0, 24.0)"),
    Refused("ap-on-view", "x[:, 4:8].ap([[24, 16], [1, 4]], offset=0)"),
    Refused(
        "reshape",
        "x[:, ::2].reshape((16, 3, 2, 2)).reshape((16, 2, 6))\nx[:, 2:20].reshape((16, 3, 6))\n"
        "x.reshape((16, 4, 6))[:, :, 0:3].reshape((16, 12))",
    ),
    Refused("reshape", "x.reshape((16, 25))"),
)

KERNELS = (
    Refused("output-missing", "return None"),
    Refused("output-buffer", "return x"),
    Refused("output-view", "return out[0:8]"),
    Refused("output-view", "return out.permute((1, 0))"),
    Refused("output-view", "return out[0:1].broadcast(0, 16)"),
    Refused(
        "output-unwritten",
        "half = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.shared_hbm)\n"
        "nisa.dma_copy(dst=half[:, 0:3], src=x[0:4, 0:3])\nreturn out, half",
    ),
    Refused("tensor-value", "if x:  # refused\n    pass"),
    Refused("tensor-value", "for row in a:  # refused\n    pass"),
    Refused("tensor-value", "while nisa.register_alloc(1):  # refused\n    pass"),
    Refused("kernel-error", "[1, 2][5]"),
    Refused("kernel-error", "undefined_name"),
    Refused("kernel-error", "assert a.shape == (3, 3), 'not this one'"),
    Refused("kernel-error", "nisa.no_such_instruction(dst=t)"),
    Refused("kernel-error", "nisa.memset(t, 0, nothing=1)"),
    Refused("kernel-error", "t + x"),
)

PYTHON = (
    Refused("python-comprehension", "[k for k in range(3)]"),
    Refused("python-comprehension", "sum(k for k in range(3))"),
    Refused("python-comprehension", "{k: 1 for k in ('a', 'b')}"),
    Refused("python-lambda", "f = lambda k: k"),
    Refused("python-generator", "def g():\n    yield 1  # refused"),
    Refused("python-exception", "try:  # refused\n    pass\nfinally:\n    pass"),
    Refused("python-exception", "raise ValueError"),
    Refused("python-scope", "global counter"),
    Refused("python-import", "import math"),
    Refused("python-walrus", "if (k := 3) > 2:  # refused\n    pass"),
    Refused("python-match", "match 3:  # refused\n    case 3:\n        pass"),
    Refused("python-is", "a is None"),
    Refused("python-is", "a is not None"),
    Refused("python-chained-comparison", "0 < 1 < 2"),
    Refused("python-keyword-only", "def f(k, *, l):  # refused\n    return k"),
    Refused("python-dict-key", "{1: 2}"),
    Refused("python-with", "with open('/dev/null'):  # refused\n    pass"),
)

REFUSED = (*MEMORY, *ACCESS, *OPERANDS, *FURTHER, *KERNELS, *PYTHON)

ACCEPTED = {
    "all of SBUF": "nl.ndarray((1, 177792), dtype=nl.uint8)",
    "SBUF is given back": "for k in range(40):\n    u = 0\n    u = nl.ndarray((128, 20000), dtype=nl.float32)",
    "a view gives its tensor back": "u = nl.ndarray((1, 100000), dtype=nl.uint8)[:, 0:1]\nu = 0\n"
    "nl.ndarray((1, 170000), dtype=nl.uint8)",
    "all banks": "u = nl.ndarray((128, 7 * 512), dtype=nl.float32, buffer=nl.psum)",
    "banks are given back": "for k in range(20):\n    u = 0\n"
    "    u = nl.ndarray((128, 3584), dtype=nl.float32, buffer=nl.psum)",
    "one full bank": "u = nl.ndarray((24, 700), dtype=nl.float32, buffer=nl.psum)\n"
    "nisa.nc_matmul(dst=u[:, 512:536], stationary=x, moving=x)",
    "the largest product": "u = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)\n"
    "nisa.nc_matmul(dst=u, stationary=big[:, 0:128], moving=big[:, 0:512])",
    "quadrants": "for k in range(4):\n    nisa.memset(dst=big[32 * k:32 * k + 32], value=0)",
    "halves": "nisa.memset(dst=big[64:128], value=0)\nnisa.memset(dst=big[0:63], value=0)",
    "DMA from any partition": "nisa.dma_copy(dst=big[3:9, 0:24], src=a[0:6])",
    "in place": "nisa.tensor_scalar(dst=x, data=x, op0=nl.add, operand0=1.0)",
    "columns apart": "nisa.tensor_copy(dst=x[:, 0:12], src=x[:, 12:24])\n"
    "nisa.tensor_copy(dst=x[:, ::2], src=x[:, 1::2])",
    "written in parts": "nisa.memset(dst=t[:, 0:10], value=0)\nnisa.memset(dst=t[:, 10:24], value=0)\nnl.copy(t)",
    "the written part": "nisa.memset(dst=t[:, 3:5], value=0)\nnl.copy(t[:, 4:5])",
    "accumulation": "nisa.nc_matmul(dst=p, stationary=x, moving=x)\nnisa.nc_matmul(dst=p, stationary=x, moving=x)\n"
    "nisa.nc_matmul(dst=p[:, 0:3], stationary=x, moving=x[:, 0:3], accumulate=True)",
    "a product that is called a transpose": "nisa.nc_matmul(dst=p, stationary=x, moving=x, is_transpose=True)",
    "a new start": "nisa.memset(dst=p, value=0)\nnisa.nc_matmul(dst=p, stationary=x, moving=x, accumulate=False)\n"
    "nisa.nc_matmul(dst=p, stationary=x, moving=x, accumulate=True)",
    "one tile in PSUM": "nisa.nc_matmul(dst=p, stationary=x, moving=x)\n"
    "nisa.tensor_tensor(dst=t, data1=x, data2=p[0:16, :], op=nl.add)",
    "rsqrt on GpSimd": "nisa.tensor_scalar(dst=t, data=x, op0=nl.rsqrt, operand0=0.0, engine=nisa.engine.gpsimd)",
    "dense dimensions merge": "u = t.reshape((16, 2, 3, 2, 2, 1))\nnisa.tensor_copy(dst=u, src=x.reshape(u.shape))",
    "bn_stats of 512": "q = nl.ndarray((128, 6), dtype=nl.float32)\nnisa.bn_stats(dst=q, data=big[:, 0:512])",
    "two outputs": "other = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.shared_hbm)\n"
    "nisa.dma_copy(dst=other, src=x[0:4, 0:4])\nreturn out, other",
    "and instead of chains": "assert 0 < 1 and 1 < 2\nassert a != None\nd = {'k': 1}",
}
"""Lines that lie just inside what rules allow, by what they show."""
