"""Reductions, scans, arithmetic and activation functions of the emulator with what they compute."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from nki_emulator.tests.sources import BF16, COLUMN, FP16, FP32, I32, U32, F, Operation, P, Spec, f32, unit, wide


def _each(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return np.vectorize(function, otypes=[np.float64])


def _last_place(values: np.ndarray) -> np.ndarray:
    return unit(np.abs(values), 2)


def _relative(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Two roundings of the result: float64 functions of different libraries may round apart in the last place."""
    return lambda *inputs: _last_place(function(*inputs))


def _mean(a: np.ndarray) -> np.ndarray:
    return np.asarray(wide(a).mean(axis=1, keepdims=True))


def _variance(a: np.ndarray) -> np.ndarray:
    return np.concatenate([_mean(a), wide(a).var(axis=1, keepdims=True)], axis=1)


def _statistics(a: np.ndarray) -> np.ndarray:
    halves = [wide(a)[:, start::2] for start in (0, 1)]
    parts = [[np.full(P, h.shape[1]), h.mean(axis=1), h.var(axis=1) * h.shape[1]] for h in halves]
    return np.stack([part for half in parts for part in half], axis=1)


def _spread_bound(a: np.ndarray) -> np.ndarray:
    """Sums of F squares of at most (2 max)^2, with a handful of roundings each."""
    return unit(np.full((P, 1), 4 * F * np.square(wide(a)).max()), F + 8)


def _sum(a: np.ndarray) -> np.ndarray:
    return np.asarray(wide(a).sum(axis=1, keepdims=True))


def _sum_bound(a: np.ndarray) -> np.ndarray:
    return unit(np.abs(wide(a)).sum(axis=1, keepdims=True), F)


def _bf16_sum_bound(a: np.ndarray) -> np.ndarray:
    """That of float32, and half a spacing of bf16."""
    return np.asarray(_sum_bound(a) + np.abs(_sum(a)) * 2.0**-8)


REDUCTIONS = (
    Operation("nisa.tensor_reduce(dst=t, op=nl.add, data=x, axis=1)", _sum, _sum_bound, result=COLUMN),
    Operation(
        "nisa.tensor_reduce(dst=t, op=nl.maximum, data=x.reshape((16, 2, 3, 4)), axis=(2, 3), negate=True)",
        lambda a: -wide(a).reshape(P, 2, 12).max(axis=2),
        inputs=(BF16,),
        result=((P, 2), "bf16"),
    ),
    Operation(
        "nisa.tensor_reduce(dst=t, op=nl.bitwise_xor, data=x, axis=[1])",
        lambda a: np.bitwise_xor.reduce(a, axis=1, keepdims=True),
        inputs=(I32,),
        result=((P, 1), "i32"),
        low=-1000,
        high=1000,
    ),
    Operation("t = nl.sum(x, axis=1)", _sum, _bf16_sum_bound, inputs=(BF16,), result=((P, 1), "bf16")),
    Operation("t = nl.sum(x, axis=[1], dtype=nl.float32)", _sum, _sum_bound, inputs=(BF16,), result=COLUMN),
    Operation("t = nl.max(x, axis=1, keepdims=True)", lambda a: wide(a).max(axis=1, keepdims=True), result=COLUMN),
    Operation("t = nl.min(x, axis=1)", lambda a: wide(a).min(axis=1, keepdims=True), result=COLUMN),
    Operation(
        "t = nl.prod(x, axis=1)",
        lambda a: wide(a).prod(axis=1, keepdims=True),
        lambda a: unit(np.abs(wide(a).prod(axis=1, keepdims=True)), F + 1),
        result=COLUMN,
        low=0.5,
        high=2,
    ),
    Operation("t = nl.mean(x, axis=1)", _mean, lambda a: _sum_bound(a) / F + unit(np.abs(_mean(a)), 3), result=COLUMN),
    Operation("t = nl.var(x, axis=1)", lambda a: _variance(a)[:, 1:], lambda a: _spread_bound(a) / F, result=COLUMN),
    Operation("nisa.bn_stats(dst=t, data=x)", _statistics, _spread_bound, result=((P, 6), "fp32")),
    Operation(
        "s = nl.ndarray((16, 4, 6), dtype=nl.float32)\nfor i in range(4):\n"
        "    nisa.bn_stats(dst=s[:, i, :], data=x[:, 6 * i:6 * i + 6])\nnisa.bn_aggr(dst=t, data=s)",
        _variance,
        lambda a: _spread_bound(a) / F,
        result=((P, 2), "fp32"),
    ),
    Operation(
        "nisa.tensor_scalar_reduce(dst=x, data=x, op0=nl.multiply, operand0=2.0, reduce_op=nl.add, reduce_res=t)",
        lambda a: 2 * _sum(a),
        lambda a: 2 * _sum_bound(a),
        result=COLUMN,
    ),
    Operation(
        "nisa.activation_reduce(dst=x, op=nl.square, data=x, reduce_op=nl.add, reduce_res=t)",
        lambda a: np.square(wide(a)).sum(axis=1, keepdims=True),
        lambda a: unit(np.square(wide(a)).sum(axis=1, keepdims=True), F + 1),
        result=COLUMN,
    ),
    Operation(
        "for i in range(2):\n"
        "    cmd = nisa.reduce_cmd.reduce\n"
        "    if i == 0:\n        cmd = nisa.reduce_cmd.reset_reduce\n"
        "    nisa.activation(dst=y, op=nl.copy, data=x, reduce_op=nl.add, reduce_res=t, reduce_cmd=cmd)",
        lambda a, b: 2 * _sum(a),
        lambda a, b: 2 * _sum_bound(a) + unit(np.abs(_sum(a)), 2),
        inputs=(FP32, FP32),
        result=COLUMN,
    ),
    Operation(
        "nisa.tensor_tensor_scan(dst=t, data0=x, data1=y, initial=1.5, op0=nl.multiply, op1=nl.add)",
        lambda a, b: _scan(lambda state, i: f32(f32(wide(a)[:, i] * state) + wide(b)[:, i]), np.full(P, 1.5)),
        inputs=(FP32, FP32),
    ),
    Operation(
        "nisa.tensor_scalar_cumulative(dst=t, src=x, op0=nl.multiply, op1=nl.add, imm0=3.0)",
        lambda a: _scan(lambda state, i: f32(f32(3 * wide(a)[:, i]) + state), np.zeros(P)),
    ),
)


def _scan(step: Callable[[np.ndarray, int], np.ndarray], state: np.ndarray) -> np.ndarray:
    columns = []
    for i in range(F):
        state = step(state, i)
        columns.append(state)
    return np.stack(columns, axis=1)


def _tensor_tensor(op: str, expected: Callable[..., np.ndarray], spec: Spec = FP32, **options: float) -> Operation:
    body = f"nisa.tensor_tensor(dst=t, data1=x, data2=y, op=nl.{op})"
    return Operation(body, expected, inputs=(spec, spec), result=spec, **options)  # type: ignore[arg-type]


ARITHMETIC = (
    _tensor_tensor("add", lambda a, b: f32(wide(a) + wide(b))),
    _tensor_tensor("add", lambda a, b: f32(wide(a) + wide(b)), BF16),
    _tensor_tensor("subtract", lambda a, b: f32(wide(a) - wide(b)), FP16),
    _tensor_tensor("multiply", lambda a, b: f32(wide(a) * wide(b))),
    _tensor_tensor("maximum", np.maximum),
    _tensor_tensor("minimum", np.minimum, BF16),
    _tensor_tensor("power", lambda a, b: wide(a) ** wide(b), low=0.5),
    _tensor_tensor("equal", np.equal, I32, low=0, high=3),
    _tensor_tensor("not_equal", np.not_equal, I32, low=0, high=3),
    _tensor_tensor("greater", np.greater),
    _tensor_tensor("greater_equal", np.greater_equal, I32, low=0, high=3),
    _tensor_tensor("less", np.less),
    _tensor_tensor("less_equal", np.less_equal, I32, low=0, high=3),
    _tensor_tensor("logical_and", np.logical_and, I32, low=-2, high=2),
    _tensor_tensor("logical_or", np.logical_or, I32, low=-2, high=2),
    _tensor_tensor("logical_xor", np.logical_xor, I32, low=-2, high=2),
    _tensor_tensor("bitwise_and", np.bitwise_and, I32, low=-900, high=900),
    _tensor_tensor("bitwise_or", np.bitwise_or, U32, low=0, high=900),
    _tensor_tensor("bitwise_xor", np.bitwise_xor, I32, low=-900, high=900),
    _tensor_tensor("left_shift", np.left_shift, U32, low=0, high=9),
    _tensor_tensor("right_shift", np.right_shift, U32, low=0, high=9),
    _tensor_tensor("add", lambda a, b: wide(a) + wide(b), I32, low=2**28, high=2**30),
    Operation(
        "nisa.tensor_tensor(dst=t, data1=x, data2=y, op=nl.add, engine=nisa.engine.vector)",
        lambda a, b: f32(f32(a) + f32(b)),
        inputs=(I32, I32),
        result=I32,
        low=2**28,
        high=2**29,
    ),
    Operation(
        "p = nl.ndarray((16, 24), dtype=nl.int32, buffer=nl.psum)\nnisa.tensor_copy(dst=p, src=x)\n"
        "nisa.tensor_tensor(dst=t, data1=p, data2=y, op=nl.add)",
        lambda a, b: f32(f32(a) + f32(b)),
        inputs=(I32, I32),
        result=I32,
        low=2**28,
        high=2**29,
    ),
    Operation(
        "nisa.tensor_scalar(dst=t, data=x, op0=nl.multiply, operand0=y, op1=nl.add, operand1=0.1)",
        lambda a, b: f32(f32(wide(a) * wide(b)) + f32(0.1)),
        inputs=(BF16, COLUMN),
        result=BF16,
    ),
    Operation(
        "nisa.tensor_scalar(dst=t, data=x, op0=nl.subtract, operand0=1.0, reverse0=True, op1=nl.subtract,\n"
        "                   operand1=2.0, reverse1=True)",
        lambda a: f32(2 - f32(1 - wide(a))),
    ),
    Operation(
        "nisa.tensor_scalar(dst=t, data=x, op0=nl.rsqrt, operand0=0.0)",
        lambda a: 1 / np.sqrt(wide(a)),
        _relative(lambda a: 1 / np.sqrt(wide(a))),
        low=0.1,
    ),
    Operation(
        "nisa.tensor_scalar(dst=t, data=x, op0=nl.left_shift, operand0=3, op1=nl.bitwise_and, operand1=40)",
        lambda a: (a << 3) & 40,
        inputs=(I32,),
        result=I32,
        low=0,
        high=99,
    ),
    Operation(
        "nisa.scalar_tensor_tensor(dst=t, data=x, op0=nl.multiply, operand0=z,\n"
        "                          op1=nl.subtract, operand1=y, reverse1=True)",
        lambda a, b, c: f32(wide(b) - f32(wide(a) * wide(c))),
        inputs=(FP32, FP32, COLUMN),
    ),
    Operation("nisa.reciprocal(dst=t, data=x)", lambda a: f32(1 / wide(a)), result=FP16, low=0.1),
    Operation("t = nl.add(x, y)", lambda a, b: f32(wide(a) + wide(b)), inputs=(FP32, FP32)),
    Operation("t = nl.subtract(1.0, x)", lambda a: f32(1 - wide(a))),
    Operation("t = nl.multiply(x, 0.1, dtype=nl.bfloat16)", lambda a: f32(wide(a) * f32(0.1)), result=BF16),
    Operation("t = nl.maximum(x, y)", np.maximum, inputs=(FP32, FP32)),
    Operation("t = nl.negative(x)", lambda a: -wide(a), inputs=(BF16,), result=BF16),
    Operation("t = nl.invert(x)", np.invert, inputs=(I32,), result=I32, low=-99, high=99),
    Operation(
        "t = nl.abs_min(x, y)", lambda a, b: np.where(np.abs(a) < np.abs(b), a, b), inputs=(FP32, FP32), target="gen4"
    ),
    Operation(
        "t = nl.abs_max(x, y)", lambda a, b: np.where(np.abs(a) > np.abs(b), a, b), inputs=(FP32, FP32), target="gen4"
    ),
)


def _activation(op: str, function: Callable[[float], float], low: float = -4.0, high: float = 4.0) -> Operation:
    body = f"nisa.activation(dst=t, op=nl.{op}, data=x)"
    expected = _each(function)
    return Operation(body, expected, _relative(expected), low=low, high=high)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = (
    _activation("copy", float),
    _activation("square", lambda x: x * x),
    _activation("sigmoid", _sigmoid),
    _activation("relu", lambda x: max(x, 0.0)),
    _activation("gelu", lambda x: x * 0.5 * math.erfc(-x / math.sqrt(2)), low=-2.0),
    _activation("gelu_apprx_tanh", _gelu_tanh, low=-2.0),
    _activation("silu", lambda x: x * _sigmoid(x)),
    _activation("tanh", math.tanh),
    _activation("softplus", lambda x: math.log1p(math.exp(x))),
    _activation("erf", math.erf),
    _activation("exp", math.exp),
    _activation("log", math.log, low=0.1),
    _activation("sin", math.sin, low=-3.1, high=3.1),
    _activation("arctan", math.atan, low=-1.5, high=1.5),
    _activation("sqrt", math.sqrt, low=0.1),
    _activation("rsqrt", lambda x: 1 / math.sqrt(x), low=0.1),
    _activation("reciprocal", lambda x: 1 / x, low=0.1),
    _activation("sign", lambda x: math.copysign(1, x)),
    _activation("abs", abs),
    Operation(
        "nisa.activation(dst=t, op=nl.relu, data=x, bias=y, scale=z)",
        lambda a, b, c: np.maximum(f32(f32(wide(a) * wide(c)) + wide(b)), 0),
        inputs=(BF16, COLUMN, COLUMN),
        result=BF16,
    ),
    Operation(
        "nisa.activation(dst=t, op=nl.copy, data=x, bias=0.5, scale=2.0)",
        lambda a: f32(2 * wide(a) + 0.5),
        target="gen3",
    ),
    Operation("t = nl.sqrt(x)", lambda a: np.sqrt(wide(a)), low=0.1),
    Operation("t = nl.square(x)", lambda a: f32(wide(a) ** 2)),
    Operation("t = nl.exp(x)", _each(math.exp), _relative(_each(math.exp))),
    Operation("t = nl.reciprocal(x)", lambda a: f32(1 / wide(a)), low=0.1),
)

COMPUTED = (*REDUCTIONS, *ARITHMETIC, *ACTIVATIONS)
