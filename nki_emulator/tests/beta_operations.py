"""Operations of the first generation of NKI with what they give: a body leaves its result in `t`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nki_emulator.tests.definitions import gamma
from nki_emulator.tests.sources import BETA_HEADER, indented

P, F = 16, 24
FRAME = """x, y = nl.load(a), nl.load(b)
p, f = nl.arange({P})[:, None], nl.arange({F})[None, :]
{body}
z = nl.ndarray(t.shape, dtype=t.dtype, buffer=nl.shared_hbm)
nl.store(z, value=t)
return z"""


@dataclass(frozen=True)
class BetaOperation:
    """Operands are whole numbers from -4 to 4, or 1 to 8; without a bound the result is exact."""

    name: str
    body: str
    expected: Callable[[np.ndarray, np.ndarray], np.ndarray]
    bound: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    positive: bool = False

    @property
    def source(self) -> str:
        """The file."""
        return f"{BETA_HEADER}@nki.jit\ndef kernel(a, b):\n{indented(FRAME.format(P=P, F=F, body=self.body))}"

    def operands(self) -> tuple[np.ndarray, np.ndarray]:
        """Arrays [P, F] of float32."""
        stream = np.random.Generator(np.random.Philox(7))
        low, high = (1, 9) if self.positive else (-4, 5)
        first, second = (stream.integers(low, high, (P, F)).astype(np.float32) for _ in range(2))
        return first, second


def _column(values: np.ndarray) -> np.ndarray:
    return values[:, :1]


def _relative(expected: Callable[[np.ndarray, np.ndarray], np.ndarray], roundings: int):
    return lambda a, b: gamma(roundings) * np.abs(expected(a, b))


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(a / b)


def _mean_and_variance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.stack([a.mean(1), a.var(1)], 1)


ROWS, COLUMNS = np.arange(P)[:, None], np.arange(F)[None, :]
INDICES = (
    BetaOperation("rsub", "t = nl.load(a[p, 23 - f])", lambda a, b: a[:, ::-1]),
    BetaOperation("sub", "t = nl.load(a[p, 2 * f - f])", lambda a, b: a),
    BetaOperation("negative", "t = nl.load(a[p, -f + 23])", lambda a, b: a[:, ::-1]),
    BetaOperation("grid", "t = nl.load(a[nl.mgrid[0:16, 0:24]])", lambda a, b: a),
    BetaOperation("strided grid", "i, j = nl.mgrid[0:16, 1:24:3]\nt = x[i, j]", lambda a, b: a[:, 1::3]),
    BetaOperation("strided slice", "t = x[:, 1:24:3]", lambda a, b: a[:, 1::3]),
    BetaOperation("one partition", "t = x[3]", lambda a, b: a[3:4]),
    BetaOperation("one column", "t = nl.copy(x[:, 5])", lambda a, b: a[:, 5:6]),
    BetaOperation(
        "blocks",
        "t = nl.ndarray((16, 24), dtype=a.dtype)\n"
        "kept = nl.ndarray((2, 3, nl.par_dim(16), 24), dtype=a.dtype)\n"
        "kept[1, 2] = y\nkept[0, 2] = x\nt[...] = nl.exp(kept[1, 2] * 0.0) + kept[1][2] - kept[0, 2, 0:16, :]",
        lambda a, b: 1 + b - a,
    ),
)
_MASKS = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}


def _masked(symbol: str, compare: Callable[..., np.ndarray]) -> BetaOperation:
    body = f"t = nl.zeros((16, 24), dtype=a.dtype)\nt[...] = nl.copy(x, mask=p {symbol} 7)"
    return BetaOperation(f"mask {symbol}", body, lambda a, b: np.where(compare(ROWS, 7), a, 0))


MASKS = (
    *(_masked(symbol, compare) for symbol, compare in _MASKS.items()),
    BetaOperation(
        "mask or",
        "t = nl.zeros((16, 24), dtype=a.dtype)\nt[...] = nl.add(x, 1, mask=(p < 3) | (f + p >= 20))",
        lambda a, b: np.where((ROWS < 3) | (ROWS + COLUMNS >= 20), a + 1, 0),
    ),
    BetaOperation(
        "masked cast",
        "t = nl.zeros((16, 24), dtype=nl.int32)\nhalves = nisa.affine_select(p < 8, x, 0.5)\n"
        "t[...] = nl.copy(halves, mask=p < 8, dtype=nl.int32)",
        lambda a, b: np.where(ROWS < 8, a, 0),
    ),
    BetaOperation("masked sum", "t = nl.sum(x, axis=1, mask=f < 5)", lambda a, b: a[:, :5].sum(1, keepdims=True)),
    BetaOperation("masked max", "t = nl.max(x, axis=1, mask=f >= 5)", lambda a, b: a[:, 5:].max(1, keepdims=True)),
    BetaOperation(
        "masked store",
        "t = y\nz = nl.ndarray(t.shape, dtype=t.dtype, buffer=nl.shared_hbm)\nnl.store(z, value=y)\n"
        "nl.store(z, value=x, mask=p >= 9)\nt = nl.load(z)",
        lambda a, b: np.where(ROWS >= 9, a, b),
    ),
    BetaOperation(
        "affine_select", "t = nisa.affine_select(f < p, x, -7.0)", lambda a, b: np.where(COLUMNS < ROWS, a, -7)
    ),
    BetaOperation("iota", "t = nisa.iota(5 - p + 100 * f, dtype=nl.int32)", lambda a, b: 5 - ROWS + 100 * COLUMNS),
)
ELEMENTWISE = (
    BetaOperation("operators", "t = 3 - x * 2 + (-y) - 1", lambda a, b: 2 - 2 * a - b),
    BetaOperation("divide", "t = x / y", _quotient, _relative(_quotient, 1), positive=True),
    BetaOperation("rdivide", "t = 2 / y", lambda a, b: 2 / b, _relative(lambda a, b: 2 / b, 1), positive=True),
    BetaOperation("power", "t = x ** 2", lambda a, b: a**2),
    BetaOperation("compare", "t = nl.where(x < y, x, y)", np.minimum),
    BetaOperation("equal", "t = nl.equal(x, y)", lambda a, b: a == b),
    BetaOperation("logical_not", "t = nl.logical_not(x)", lambda a, b: a == 0),
    BetaOperation("broadcast", "t = x * y[:, 0:1] + y[0:1, :]", lambda a, b: a * b[:, :1] + b[:1]),
    BetaOperation("broadcast_to", "t = y[0:1, :].broadcast_to((16, 24)) + x", lambda a, b: b[:1] + a),
    BetaOperation("expand_dims", "t = nl.expand_dims(x, 1) + 0", lambda a, b: a[:, None, :]),
    BetaOperation("reshape", "t = x.reshape((16, 4, 6)) + 0", lambda a, b: a.reshape(P, 4, 6)),
    BetaOperation("astype", "t = x.astype(nl.int32)", lambda a, b: a),
    BetaOperation(
        "reciprocal", "t = nisa.reciprocal(x)", lambda a, b: 1 / a, _relative(lambda a, b: 1 / a, 2), positive=True
    ),
    BetaOperation("tensor_tensor", "t = nisa.tensor_tensor(x, y, op=np.subtract)", np.subtract),
    BetaOperation(
        "tensor_scalar", "t = nisa.tensor_scalar(x, np.subtract, y[:, 0], True)", lambda a, b: _column(b) - a
    ),
    BetaOperation(
        "tensor_scalar of two",
        "t = nisa.tensor_scalar(x, nl.add, 3, False, nl.subtract, y[:, 0:1], True)",
        lambda a, b: _column(b) - (a + 3),
    ),
    BetaOperation(
        "scalar_tensor_tensor",
        "t = nisa.scalar_tensor_tensor(\n"
        "    data=x, op0=nl.multiply, operand0=3, op1=nl.subtract, operand1=y, reverse1=True)",
        lambda a, b: b - 3 * a,
    ),
    BetaOperation(
        "activation",
        "t = nisa.activation(np.square, x, bias=y[:, 0], scale=2.0)",
        lambda a, b: np.square(2 * a + _column(b)),
    ),
    BetaOperation(
        "tensor_copy_predicated",
        "t = nl.copy(x)\nnisa.tensor_copy_predicated(src=y, dst=t, predicate=nl.greater(x, 0))",
        lambda a, b: np.where(a > 0, b, a),
    ),
    BetaOperation(
        "tensor_copy_predicated reversed",
        "t = nl.copy(x)\nnisa.tensor_copy_predicated(src=2, dst=t, predicate=nl.greater(x, 0), reverse_pred=True)",
        lambda a, b: np.where(a > 0, a, 2),
    ),
    BetaOperation("memset", "t = nisa.memset((16, 24), 2.5, dtype=nl.float32)", lambda a, b: np.full((P, F), 2.5)),
    BetaOperation("dma_copy", "t = nl.zeros((16, 24), dtype=a.dtype)\nnisa.dma_copy(dst=t, src=a)", lambda a, b: a),
)
REDUCTIONS = (
    BetaOperation("sum", "t = nl.sum(x.reshape((16, 4, 6)), axis=[1])", lambda a, b: a.reshape(P, 4, 6).sum(1)),
    BetaOperation(
        "keepdims",
        "t = nl.min(x.reshape((16, 4, 6)), axis=2, keepdims=True)",
        lambda a, b: a.reshape(P, 4, 6).min(2, keepdims=True),
    ),
    BetaOperation("mean", "t = nl.mean(x.reshape((16, 3, 8)), axis=2)", lambda a, b: a.reshape(P, 3, 8).mean(2)),
    BetaOperation(
        "var",
        "t = nl.var(x, axis=1)",
        lambda a, b: a.var(1, keepdims=True),
        lambda a, b: gamma(4 * F) * np.square(a).mean(1, keepdims=True) * 4,
    ),
    BetaOperation(
        "tensor_reduce",
        "t = nisa.tensor_reduce(np.add, x, axis=[1], negate=True)",
        lambda a, b: -a.sum(1, keepdims=True),
    ),
    BetaOperation(
        "tensor_partition_reduce", "t = nisa.tensor_partition_reduce(np.max, x)", lambda a, b: a.max(0, keepdims=True)
    ),
    BetaOperation(
        "activation_reduce",
        "t = nl.ndarray((16, 1), dtype=nl.float32)\n"
        "nisa.activation_reduce(nl.copy, x, reduce_op=np.add, reduce_res=t[:, 0])",
        lambda a, b: a.sum(1, keepdims=True),
    ),
    BetaOperation(
        "tensor_scalar_reduce",
        "t = nl.ndarray((16, 1), dtype=nl.float32)\n"
        "nisa.tensor_scalar_reduce(data=x, op0=nl.add, operand0=2, reduce_op=nl.max, reduce_res=t)",
        lambda a, b: a.max(1, keepdims=True) + 2,
    ),
    BetaOperation(
        "bn_stats and bn_aggr",
        "s = nl.ndarray((16, 12), dtype=nl.float32)\n"
        "s[:, 0:6], s[:, 6:12] = nisa.bn_stats(x[:, 0:9] + 50), nisa.bn_stats(x[:, 9:24])\nt = nisa.bn_aggr(s)",
        lambda a, b: _mean_and_variance(np.where(COLUMNS < 9, a + 50, a), b),
        lambda a, b: gamma(4 * F) * np.array([54.0, 54.0**2]),
    ),
    BetaOperation(
        "tensor_tensor_scan",
        "twos = nl.full((16, 24), 2.0, dtype=nl.float32)\n"
        "t = nisa.tensor_tensor_scan(twos, x[:, :], y[:, 0:1], nl.subtract, nl.add)",
        lambda a, b: np.stack([_scanned(a, b, i) for i in range(F)], 1),
    ),
)


def _scanned(a: np.ndarray, b: np.ndarray, last: int) -> np.ndarray:
    state = b[:, 0]
    for i in range(last + 1):
        state = (2 - state) + a[:, i]
    return state


PRODUCTS = (
    BetaOperation("matmul", "t = nl.copy(nl.matmul(x[:, 0:16], y))", lambda a, b: a[:, :P] @ b),
    BetaOperation("matmul transposed", "t = nl.copy(nl.matmul(x, y, transpose_x=True))", lambda a, b: a.T @ b),
    BetaOperation("transpose", "t = nl.transpose(x)", lambda a, b: a.T),
    BetaOperation("load_transpose2d", "t = nl.load_transpose2d(a)", lambda a, b: a.T),
    BetaOperation("dma_transpose", "t = nisa.dma_transpose(a)", lambda a, b: a.T),
    BetaOperation(
        "identity", "t = nl.matmul(nl.load(nl.shared_identity_matrix(16, dtype=nl.float32)), y)", lambda a, b: b
    ),
    BetaOperation(
        "constant",
        "t = nl.load(nl.shared_constant(np.arange(6.0).reshape(2, 3), dtype=nl.int32))",
        lambda a, b: np.arange(6).reshape(2, 3),
    ),
    BetaOperation(
        "softmax",
        "t = nl.softmax(x, axis=1)",
        lambda a, b: np.exp(a) / np.exp(a).sum(1, keepdims=True),
        _relative(lambda a, b: np.exp(a) / np.exp(a).sum(1, keepdims=True), 2 * F),
    ),
)
BETA_OPERATIONS = (*INDICES, *MASKS, *ELEMENTWISE, *REDUCTIONS, *PRODUCTS)
