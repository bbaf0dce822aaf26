"""Every operation of the emulator with what it computes: data for the tests of the emulator and of the simulator."""

from __future__ import annotations

import numpy as np

from nki_emulator.tests.arithmetic import COMPUTED
from nki_emulator.tests.sources import (
    BF16,
    BFLOAT16,
    COLUMN,
    FP16,
    FP32,
    I32,
    U32,
    F,
    Operation,
    P,
    Spec,
    f32,
    unit,
    wide,
)

SQUARE: Spec = ((P, P), "fp32")
ROWS = np.arange(P)[:, None]
COLUMNS = np.arange(F)[None, :]


MOVES = (
    Operation("nisa.dma_copy(dst=t, src=a)", wide, inputs=(BF16,), result=BF16),
    Operation("nisa.dma_copy(dst=t, src=a)", wide, result=BF16),
    Operation("nisa.dma_copy(dst=t, src=x)", wide, result=FP16),
    Operation("nisa.dma_copy(dst=t, src=a.ap([[1, 16], [16, 24]]))", lambda a: wide(a).T, inputs=(((F, P), "fp32"),)),
    Operation("nisa.tensor_copy(dst=t, src=nl.load(a, dtype=nl.bfloat16))", lambda a: wide(a.astype(BFLOAT16))),
    Operation("nl.store(out, x)\nnisa.dma_copy(dst=t, src=out)", wide),
    Operation("t = nl.load_transpose2d(a)", lambda a: wide(a).T, inputs=(((F, P), "fp32"),)),
    Operation("nisa.dma_transpose(dst=t, src=a)", lambda a: wide(a).T, inputs=(((F, P), "bf16"),), result=BF16),
    Operation(
        "nisa.dma_transpose(dst=t, src=a, axes=(2, 1, 0))",
        lambda a: wide(a).transpose(2, 1, 0),
        inputs=(((4, 6, P), "bf16"),),
        result=((P, 6, 4), "bf16"),
    ),
    Operation(
        "nisa.dma_transpose(dst=t, src=a)",
        lambda a: wide(a).transpose(3, 1, 2, 0),
        inputs=(((4, 3, 2, P), "bf16"),),
        result=((P, 3, 2, 4), "bf16"),
    ),
    Operation("nisa.tensor_copy(dst=t, src=x)", wide, result=BF16),
    Operation("nisa.tensor_copy(dst=t, src=x, engine=nisa.engine.gpsimd)", wide, inputs=(I32,), result=I32),
    Operation("nisa.tensor_copy(dst=t, src=x, engine=nisa.engine.scalar)", wide, result=FP16, target="gen3"),
    Operation("nisa.memset(dst=t, value=0.1)", lambda: np.full((P, F), f32(0.1)), inputs=(), result=BF16),
    Operation("nisa.memset(dst=t, value=-3)", lambda: np.full((P, F), -3), inputs=(), result=I32),
    Operation("nisa.memset(dst=t, value=-2147483648)", lambda: np.full((P, F), -(2**31)), inputs=(), result=I32),
    Operation("nisa.memset(dst=t, value=4294967295)", lambda: np.full((P, F), 2**32 - 1), inputs=(), result=U32),
    Operation(
        "nisa.tensor_copy(dst=t, src=x)\nnisa.tensor_copy_predicated(dst=t, src=y, predicate=z)",
        lambda a, b, c: np.where(c != 0, b, a),
        inputs=(I32, I32, U32),
        result=I32,
        low=0,
        high=3,
    ),
    Operation(
        "nisa.memset(dst=t, value=9)\nnisa.tensor_copy_predicated(dst=t, src=-1, predicate=x, reverse_pred=True)",
        lambda a: np.where(a != 0, 9, -1),
        inputs=(U32,),
        result=I32,
        low=0,
        high=3,
    ),
    Operation(
        "nisa.iota(dst=t, pattern=[[10, 4], [1, 6]], offset=5, channel_multiplier=-100)",
        lambda: 5 - 100 * ROWS + 10 * (COLUMNS // 6) + COLUMNS % 6,
        inputs=(),
        result=I32,
    ),
    Operation(
        "nisa.affine_select(dst=t, pattern=[[-1, 24]], channel_multiplier=1, on_true_tile=x, on_false_value=-7.5,\n"
        "                   cmp_op=nl.greater_equal, offset=2)",
        lambda a: np.where(2 + ROWS - COLUMNS >= 0, wide(a), -7.5),
        result=BF16,
    ),
    Operation(
        "m = nl.ndarray((16, 24), dtype=nl.uint8)\n"
        "nisa.tensor_scalar(dst=m, data=x, op0=nl.greater, operand0=0.0)\n"
        "nisa.select_reduce(dst=t, predicate=m, on_true=x, on_false=y)",
        lambda a, b, c: np.where(a > 0, wide(a), wide(b)),
        inputs=(FP32, COLUMN, FP32),
    ),
    Operation("t = nl.where(nl.less(x, 1.0), x, 2.5)", lambda a: np.where(a < 1, wide(a), 2.5)),
    Operation("t = nl.copy(x, dtype=nl.float16)", wide, result=FP16),
    Operation("t = nl.zeros((16, 24), dtype=nl.float16)", lambda: np.zeros((P, F)), inputs=(), result=FP16),
    Operation("t = nl.ones((16, 24), dtype=nl.float16)", lambda: np.ones((P, F)), inputs=(), result=FP16),
    Operation("t = nl.full((16, 24), 0.1, dtype=nl.float32)", lambda: np.full((P, F), f32(0.1)), inputs=()),
    Operation("t = nl.zeros_like(x)", lambda a: np.zeros((P, F))),
    Operation("t = nl.empty_like(x)\nnisa.tensor_copy(dst=t, src=x)", wide),
    Operation("t = nl.shared_identity_matrix(16, dtype=nl.float32)", lambda: np.eye(P), inputs=(), result=SQUARE),
    Operation(
        "nisa.tensor_copy(dst=t, src=nl.broadcast_to(x, (16, 24)))",
        lambda a: np.broadcast_to(wide(a), (P, F)),
        inputs=(COLUMN,),
    ),
    Operation(
        "nisa.tensor_copy(dst=t, src=nl.broadcast_to(x[0:1, 0:1], (16, 24)))",
        lambda a: np.broadcast_to(wide(a)[0, 0], (P, F)),
    ),
    Operation("nisa.tensor_copy(dst=t, src=nl.expand_dims(x, 1))", wide),
    Operation(
        "r = nisa.register_alloc()\nnisa.register_load(r, x)\nnisa.register_move(r, r)\nnisa.register_store(t, r)",
        wide,
        inputs=(((1, 1), "i32"),),
        result=((1, 1), "i32"),
    ),
    Operation(
        "def body(i):\n    nisa.dma_copy(dst=t.ap([[24, 16], [1, 1]], scalar_offset=i, indirect_dim=1),\n"
        "                  src=a.ap([[24, 16], [1, 1]], scalar_offset=i, indirect_dim=1))\nnl.fori_loop(0, 24, body)",
        wide,
    ),
    Operation(
        "nisa.memset(dst=t, value=0)\none = nl.ones((1, 1), dtype=nl.int32)\nr = nisa.register_alloc(5)\n"
        "left = nl.full((1, 1), 5, dtype=nl.int32)\n"
        "def body(r):\n    nisa.tensor_tensor(dst=t, data1=t, data2=x, op=nl.add)\n"
        "    nisa.tensor_tensor(dst=left, data1=left, data2=one, op=nl.subtract)\n"
        "    nisa.register_load(r, left)\n    return r\nnl.while_loop(r, body)",
        lambda a: 5 * wide(a),
        inputs=(((1, 1), "i32"),),
        result=((1, 1), "i32"),
    ),
)


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(wide(a).reshape(len(a), -1).T @ wide(b).reshape(len(b), -1))


def _product_bound(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of a sum of len(a) products, each rounded and added in float32, in any order, and one addition on top."""
    return unit(_product(np.abs(a), np.abs(b)), len(a) + 2)


_MATMUL = """p = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.psum)
nisa.nc_matmul(dst=p, stationary={a}, moving={b}{more})
nisa.tensor_copy(dst=t, src=p)"""

PRODUCTS = (
    Operation(
        _MATMUL.format(shape=(24, 40), a="x", b="y", more=""),
        _product,
        _product_bound,
        inputs=(FP32, ((P, 40), "fp32")),
        result=((24, 40), "fp32"),
    ),
    Operation(
        _MATMUL.format(shape=(24, 40), a="x", b="y", more=", accumulate=False"),
        _product,
        _product_bound,
        inputs=(BF16, ((P, 40), "fp16")),
        result=((24, 40), "fp32"),
    ),
    Operation(
        _MATMUL.format(shape=(24, 3, 4), a="x", b="y[:, 1:6:2, 2:6]", more=""),
        lambda a, b: _product(a, b[:, 1:6:2, 2:6]).reshape(24, 3, 4),
        lambda a, b: _product_bound(a, b[:, 1:6:2, 2:6]).reshape(24, 3, 4),
        inputs=(FP32, ((P, 7, 8), "fp32")),
        result=((24, 3, 4), "fp32"),
    ),
    Operation(
        "p = nl.ndarray((24, 40), dtype=nl.float32, buffer=nl.psum)\nfor i in range(3):\n"
        "    nisa.nc_matmul(dst=p, stationary=x, moving=y, accumulate=(i > 0))\nnisa.tensor_copy(dst=t, src=p)",
        lambda a, b: 3 * _product(a, b),
        lambda a, b: 3 * _product_bound(a, b),
        inputs=(FP32, ((P, 40), "fp32")),
        result=((24, 40), "fp32"),
    ),
    Operation(
        "nisa.tensor_copy(dst=t, src=nl.matmul(x, y, transpose_x=True))",
        _product,
        _product_bound,
        inputs=(FP32, ((P, 40), "fp32")),
        result=((24, 40), "fp32"),
    ),
    Operation(
        "p = nl.ndarray((24, 16), dtype=nl.bfloat16, buffer=nl.psum)\nnisa.nc_transpose(dst=p, data=x)\n"
        "nisa.tensor_copy(dst=t, src=p)",
        lambda a: wide(a).T,
        inputs=(BF16,),
        result=((F, P), "bf16"),
    ),
    Operation(
        "nisa.nc_transpose(dst=t, data=x, engine=nisa.engine.vector)",
        lambda a: wide(a).reshape(P, F).T,
        inputs=(((P, 4, 6), "fp32"),),
        result=((F, P), "fp32"),
    ),
    Operation("nisa.tensor_copy(dst=t, src=nl.transpose(x))", lambda a: wide(a).T, result=((F, P), "fp32")),
)

OPERATIONS = (*MOVES, *PRODUCTS, *COMPUTED)
