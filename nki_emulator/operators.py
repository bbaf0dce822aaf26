"""Math operators and activation functions. Page: "NKI ISA API Common Fields", Neuron SDK 2.32.

Engines compute in float32. Operators here take and return float32 (bit operators: integers), rounded once each. The
device approximates activation functions by piecewise polynomials; here they are correct to a rounding of float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import erf, inf, pi, sqrt
from typing import Any

import numpy as np

from .errors import refuse
from .machine import Machine
from .operands import operand
from .tensor import NkiTensor

Function = Callable[..., np.ndarray]
Values = np.ndarray


@dataclass(frozen=True, eq=False, slots=True)
class Operator:
    """A binary operator, or a unary one; `reduction` folds an axis where the operator may."""

    name: str
    function: Function
    arity: int = 2
    bits: bool = False
    reduction: Function | None = None
    generation: int = 2
    on_gpsimd: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Activation:
    """A function of the Scalar Engine, and the |x| or x for which it is documented to be valid."""

    name: str
    function: Function
    low: float = -inf
    high: float = inf
    magnitude: bool = False


COMPARISONS = ("equal", "not_equal", "greater_equal", "greater", "less_equal", "less")


def _comparison(compare: Function) -> Function:
    return lambda a, b: compare(a, b).astype(np.float32)


def _logical(combine: Function) -> Function:
    return lambda a, b: combine(a != 0, b != 0).astype(np.float32)


def _truth(fold: Function) -> Function:
    return lambda x, axis: fold(x != 0, axis=axis).astype(np.float32)


def _in_double(function: Function) -> Function:
    """A function evaluated in float64 and rounded once to float32."""
    return lambda *operands: function(*(np.float64(x) for x in operands)).astype(np.float32)


def _shift(shift: Function) -> Function:
    """Logical: the sign bit is a bit."""

    def shifted(a: Values, b: Values) -> Values:
        unsigned = f"u{a.dtype.itemsize}"
        return shift(a.view(unsigned), np.asarray(b).astype(unsigned)).view(a.dtype)

    return shifted


_BINARY = (
    Operator("add", np.add, reduction=np.add.reduce),
    Operator("subtract", np.subtract),
    Operator("multiply", np.multiply, reduction=np.multiply.reduce),
    Operator("maximum", np.maximum, reduction=np.maximum.reduce),
    Operator("minimum", np.minimum, reduction=np.minimum.reduce),
    *(Operator(name, _comparison(getattr(np, name))) for name in COMPARISONS),
    Operator("logical_and", _logical(np.logical_and), reduction=_truth(np.all)),
    Operator("logical_or", _logical(np.logical_or), reduction=_truth(np.any)),
    Operator("logical_xor", _logical(np.logical_xor)),
    Operator("power", _in_double(np.power), on_gpsimd=True),
    Operator("abs_max", lambda a, b: np.asarray(np.where(np.abs(a) > np.abs(b), a, b)), generation=4),
    Operator("abs_min", lambda a, b: np.asarray(np.where(np.abs(a) < np.abs(b), a, b)), generation=4),
    Operator("bitwise_and", np.bitwise_and, bits=True, reduction=np.bitwise_and.reduce),
    Operator("bitwise_or", np.bitwise_or, bits=True, reduction=np.bitwise_or.reduce),
    Operator("bitwise_xor", np.bitwise_xor, bits=True, reduction=np.bitwise_xor.reduce),
    Operator("left_shift", _shift(np.left_shift), bits=True),
    Operator("right_shift", _shift(np.right_shift), bits=True),
)
_UNARY = (
    Operator("abs", np.abs, arity=1),
    # as operators since nki 0.4, of gen4 alone: "NKI Release Notes"
    Operator("square", np.square, arity=1, generation=4),
    Operator("relu", lambda x: np.maximum(x, np.float32(0)), arity=1, generation=4),
    Operator("rsqrt", _in_double(lambda x: 1 / np.sqrt(x)), arity=1, on_gpsimd=True),
    Operator("reciprocal", np.reciprocal, arity=1),
    Operator("invert", np.invert, arity=1, bits=True),
)
OPERATORS = {operator.name: operator for operator in _BINARY + _UNARY}
FOLDED: dict[str, Function] = {"subtract": np.subtract.reduce, "logical_xor": _truth(np.logical_xor.reduce)}
"""Operators that reduce in nki 0.6 and not in the first generation: the first element with each of the others."""
REDUCTIONS_BY_NAME = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "multiply"}
"""Function of nki.language -> the operator that it reduces with."""

_erf = np.vectorize(erf, otypes=[np.float64])


def _sigmoid(x: Values) -> Any:
    return 1 / (1 + np.exp(-x))


def _sigmoid_gelu(x: Values) -> Any:
    return x * _sigmoid(1.702 * x)


def _sigmoid_gelu_dx(x: Values) -> Any:
    s = _sigmoid(1.702 * x)
    return s * (1 + 1.702 * x * (1 - s))


def _silu_dx(x: Values) -> Any:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


_ACTIVATIONS = (
    Activation("copy", np.positive),
    Activation("square", np.square),
    Activation("sigmoid", _sigmoid),
    Activation("relu", lambda x: np.maximum(x, 0)),
    Activation("gelu", lambda x: x * 0.5 * (1 + _erf(x / sqrt(2)))),
    Activation("gelu_apprx_tanh", lambda x: 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))),
    Activation("gelu_dx", lambda x: 0.5 * (1 + _erf(x / sqrt(2))) + x * np.exp(-x * x / 2) / sqrt(2 * pi)),
    Activation("gelu_apprx_sigmoid", _sigmoid_gelu),
    Activation("gelu_apprx_sigmoid_dx", _sigmoid_gelu_dx),
    Activation("silu", lambda x: x * _sigmoid(x)),
    Activation("silu_dx", _silu_dx),
    Activation("mish", lambda x: x * np.tanh(np.logaddexp(0, x))),
    Activation("erf_dx", lambda x: 2 / sqrt(pi) * np.exp(-x * x)),
    Activation("tanh", np.tanh),
    Activation("softplus", lambda x: np.logaddexp(0, x)),
    Activation("erf", _erf),
    Activation("exp", np.exp),
    Activation("log", np.log, 2.0**-64, 2.0**64),
    Activation("sin", np.sin, -pi, pi),
    Activation("arctan", np.arctan, -pi / 2, pi / 2),
    Activation("sqrt", np.sqrt, 2.0**-116, 2.0**118),
    Activation("rsqrt", lambda x: 1 / np.sqrt(x), 2.0**-87, 2.0**97),
    Activation("reciprocal", np.reciprocal, 2.0**-42, 2.0**42, magnitude=True),
    Activation("sign", np.sign),
    Activation("abs", np.abs),
)
ACTIVATIONS = {activation.name: activation for activation in _ACTIVATIONS}


def operator_of(machine: Machine, op: Any, what: str = "op") -> Operator:
    """The operator that a function of nki.language stands for."""
    operator = getattr(op, "operator", None)
    if operator is None:
        refuse("operator", f"{what} {getattr(op, '__name__', op)!r} is no math operator of {machine.operation}")
    if operator.generation > machine.generation:
        refuse("target", f"{what} nl.{operator.name} needs gen{operator.generation}, not {machine.target.name}")
    if machine.trace is not None:
        machine.trace.operator(operator.name)
    return operator  # type: ignore[no-any-return]


def arithmetic_operator(machine: Machine, op: Any, what: str = "op") -> Operator:
    """An operator that is no bit operator."""
    operator = operator_of(machine, op, what)
    if operator.bits:
        refuse("operator", f"{what} nl.{operator.name} is a bit operator; {machine.operation} takes arithmetic ones")
    return operator


def activation_of(machine: Machine, op: Any) -> Activation:
    """The activation function that a function of nki.language stands for."""
    name = getattr(op, "__name__", str(op))
    activation = ACTIVATIONS.get(name) if getattr(op, "is_activation", False) else None
    if activation is None:
        refuse("operator", f"op {name!r} is no activation function of {machine.operation} here")
    return activation


def activated(activation: Activation, values: Values) -> Values:
    """float32 -> float32. A NaN passes; other values outside the documented range are refused."""
    if activation.low != -inf:
        checked = np.abs(values) if activation.magnitude else values
        if ((checked < activation.low) | (checked > activation.high)).any():
            valid = f"{activation.low:g} to {activation.high:g}"
            refuse("activation-range", f"nl.{activation.name} is valid in {valid} only; an input is not")
    if activation.name == "copy":
        return values
    return activation.function(values.astype(np.float64)).astype(np.float32)


def applied(operator: Operator, a: Values, b: Any, reverse: bool) -> Values:
    """a <op> b, or b <op> a, in float32; a unary operator takes a alone."""
    if operator.arity == 1:
        return operator.function(a)
    return operator.function(b, a) if reverse else operator.function(a, b)


def stepped(values: Values, operator: Operator, value: Any, reverse: bool, data: NkiTensor, what: str) -> Values:
    """values <op> an operand of tensor_scalar: a number or a (P, 1) tile; none for a unary operator."""
    if operator.arity == 1:
        if value is not None and (isinstance(value, NkiTensor) or value != 0):
            refuse("operand", f"{what} of the unary nl.{operator.name} must be None or 0")
        return operator.function(values)
    return applied(operator, values, operand(value, data, what), reverse)
