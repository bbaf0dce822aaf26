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


def _comparison(compare: Function) -> Function:
    return lambda a, b: compare(a, b).astype(np.float32)


def _logical(combine: Function) -> Function:
    return lambda a, b: combine(a != 0, b != 0).astype(np.float32)


def _in_double(function: Function) -> Function:
    """A function evaluated in float64 and rounded once to float32."""
    return lambda *operands: function(*(np.float64(x) for x in operands)).astype(np.float32)


def _bits_of(values: Values) -> Values:
    return values.view(f"u{values.dtype.itemsize}")


def _shift(shift: Function) -> Function:
    """Logical: the sign bit is a bit."""
    return lambda a, b: shift(_bits_of(a), np.asarray(b).astype(f"u{a.dtype.itemsize}")).view(a.dtype)


def _larger(a: Values, b: Values) -> Values:
    return np.where(np.abs(a) > np.abs(b), a, b)


def _smaller(a: Values, b: Values) -> Values:
    return np.where(np.abs(a) < np.abs(b), a, b)


def _all_nonzero(values: Values, axis: int) -> Values:
    return (values != 0).all(axis=axis).astype(np.float32)


def _any_nonzero(values: Values, axis: int) -> Values:
    return (values != 0).any(axis=axis).astype(np.float32)


_BINARY = (
    Operator("add", np.add, reduction=np.add.reduce),
    Operator("subtract", np.subtract),
    Operator("multiply", np.multiply, reduction=np.multiply.reduce),
    Operator("maximum", np.maximum, reduction=np.maximum.reduce),
    Operator("minimum", np.minimum, reduction=np.minimum.reduce),
    Operator("equal", _comparison(np.equal)),
    Operator("not_equal", _comparison(np.not_equal)),
    Operator("greater_equal", _comparison(np.greater_equal)),
    Operator("greater", _comparison(np.greater)),
    Operator("less_equal", _comparison(np.less_equal)),
    Operator("less", _comparison(np.less)),
    Operator("logical_and", _logical(np.logical_and), reduction=_all_nonzero),
    Operator("logical_or", _logical(np.logical_or), reduction=_any_nonzero),
    Operator("logical_xor", _logical(np.logical_xor)),
    Operator("power", _in_double(np.power), on_gpsimd=True),
    Operator("abs_max", _larger, generation=4),
    Operator("abs_min", _smaller, generation=4),
    Operator("bitwise_and", np.bitwise_and, bits=True, reduction=np.bitwise_and.reduce),
    Operator("bitwise_or", np.bitwise_or, bits=True, reduction=np.bitwise_or.reduce),
    Operator("bitwise_xor", np.bitwise_xor, bits=True, reduction=np.bitwise_xor.reduce),
    Operator("left_shift", _shift(np.left_shift), bits=True),
    Operator("right_shift", _shift(np.right_shift), bits=True),
)
_UNARY = (
    Operator("abs", np.abs, arity=1),
    Operator("square", np.square, arity=1),
    Operator("relu", lambda x: np.maximum(x, np.float32(0)), arity=1),
    Operator("rsqrt", _in_double(lambda x: 1 / np.sqrt(x)), arity=1, on_gpsimd=True),
    Operator("reciprocal", np.reciprocal, arity=1),
    Operator("invert", np.invert, arity=1, bits=True),
)
OPERATORS = {found.name: found for found in _BINARY + _UNARY}
REDUCTIONS_BY_NAME = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "multiply"}
"""Function of nki.language -> the operator that it reduces with."""

_erf = np.vectorize(erf, otypes=[np.float64])


def _sigmoid(x: Values) -> Values:
    return 1 / (1 + np.exp(-x))


def _gelu(x: Values) -> Values:
    return x * 0.5 * (1 + _erf(x / sqrt(2)))


def _gelu_tanh(x: Values) -> Values:
    return 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))


_ACTIVATIONS = (
    Activation("copy", np.positive),
    Activation("square", np.square),
    Activation("sigmoid", _sigmoid),
    Activation("relu", lambda x: np.maximum(x, 0)),
    Activation("gelu", _gelu),
    Activation("gelu_apprx_tanh", _gelu_tanh),
    Activation("silu", lambda x: x * _sigmoid(x)),
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
ACTIVATIONS = {found.name: found for found in _ACTIVATIONS}


def operator_of(machine: Machine, op: Any, what: str = "op") -> Operator:
    """The operator that a function of nki.language stands for."""
    found = getattr(op, "operator", None)
    if found is None:
        refuse("operator", f"{what} {getattr(op, '__name__', op)!r} is no math operator of {machine.operation}")
    if found.generation > machine.generation:
        refuse("target", f"{what} nl.{found.name} needs gen{found.generation}, not {machine.target.name}")
    return found  # type: ignore[no-any-return]


def arithmetic_operator(machine: Machine, op: Any, what: str = "op") -> Operator:
    """An operator that is no bit operator."""
    found = operator_of(machine, op, what)
    if found.bits:
        refuse("operator", f"{what} nl.{found.name} is a bit operator; {machine.operation} takes arithmetic ones")
    return found


def activation_of(machine: Machine, op: Any) -> Activation:
    """The activation function that a function of nki.language stands for."""
    name = getattr(op, "__name__", str(op))
    found = ACTIVATIONS.get(name) if getattr(op, "is_activation", False) else None
    if found is None:
        refuse("operator", f"op {name!r} is no activation function of {machine.operation} here")
    return found


def activated(found: Activation, values: Values) -> Values:
    """float32 -> float32. A NaN passes; other values outside the documented range are refused."""
    if found.low != -inf:
        checked = np.abs(values) if found.magnitude else values
        if ((checked < found.low) | (checked > found.high)).any():
            refuse(
                "activation-range", f"nl.{found.name} is valid in {found.low:g} to {found.high:g} only; an input is not"
            )
    if found.name == "copy":
        return values
    return found.function(values.astype(np.float64)).astype(np.float32)


def applied(found: Operator, a: Values, b: Any, reverse: bool) -> Values:
    """a <op> b, or b <op> a, in float32; a unary operator takes a alone."""
    if found.arity == 1:
        return found.function(a)
    return found.function(b, a) if reverse else found.function(a, b)
