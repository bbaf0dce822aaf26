"""Right and wrong kernels that end with an activation: the sum of another kernel, then bias, residual and activation as
libraries compute them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import STORAGE
from conformance.operators import Arrays, ConvGeometry, Operator
from conformance.operators.matmul.geometry import MatmulGeometry
from tests.calibration.conv.known_bad import EMULATED
from tests.calibration.conv.known_good import SUMS
from tests.calibration.kernels.arithmetic import EXACT
from tests.calibration.kernels.kernel import (
    DEFAULT,
    FP32_ONLY,
    SHORT,
    STORED,
    KnownGood,
    Mutant,
    Run,
    exact,
    stored,
)

Function = Callable[[np.ndarray], np.ndarray]
F = np.float32
_erf, _erfc = np.frompyfunc(math.erf, 1, 1), np.frompyfunc(math.erfc, 1, 1)


def _gelu(s: np.ndarray) -> np.ndarray:
    return F(0.5) * s * (1 + np.asarray(_erf(s * F(math.sqrt(0.5))), np.float32))


def _gelu_by_erfc(s: np.ndarray) -> np.ndarray:
    half: np.ndarray = F(0.5) * np.asarray(_erfc(-s * F(math.sqrt(0.5))), np.float32)
    return s * half


def _inside(s: np.ndarray) -> np.ndarray:
    cubed: np.ndarray = F(math.sqrt(2 / math.pi)) * (s + F(0.044715) * s * s * s)
    return cubed


def _gelu_tanh(s: np.ndarray) -> np.ndarray:
    return F(0.5) * s * (1 + np.tanh(_inside(s)))


def _gelu_tanh_by_exp(s: np.ndarray) -> np.ndarray:
    return s / (1 + np.exp(-2 * _inside(s)))


def _silu(s: np.ndarray) -> np.ndarray:
    return s * (1 / (1 + np.exp(-s)))


def _silu_by_tanh(s: np.ndarray) -> np.ndarray:
    return s * (F(0.5) + F(0.5) * np.tanh(F(0.5) * s))


_CLIPS: dict[str, Function] = {
    "none": lambda s: s,
    "relu": lambda s: np.maximum(s, 0),
    "relu6": lambda s: np.minimum(np.maximum(s, 0), 6),
}
BY_ERF = _CLIPS | {"gelu": _gelu, "gelu_tanh": _gelu_tanh, "silu": _silu}
BY_EXP = _CLIPS | {"gelu": _gelu_by_erfc, "gelu_tanh": _gelu_tanh_by_exp, "silu": _silu_by_tanh}
_COEFFICIENTS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def _gelu_by_polynomial(s: np.ndarray) -> np.ndarray:
    """Compute erf by formula 7.1.26 of Abramowitz and Stegun, which is 1.5e-7 off: 2.5 units of fp32's roundoff."""
    z = np.abs(s) * F(math.sqrt(0.5))
    t = 1 / (1 + F(0.3275911) * z)
    total = np.zeros_like(t)
    for coefficient in reversed(_COEFFICIENTS):
        total = (total + F(coefficient)) * t
    return F(0.5) * s * (1 + np.copysign(1 - total * np.exp(-z * z), s))


def _coarse_gelu(s: np.ndarray) -> np.ndarray:
    """Compute erf by formula 7.1.25, which is 2.5e-5 off."""
    z = np.abs(s) * F(math.sqrt(0.5))
    t = 1 / (1 + F(0.47047) * z)
    total = t * (F(0.3480242) + t * (F(-0.0958798) + t * F(0.7478556)))
    return F(0.5) * s * (1 + np.copysign(1 - total * np.exp(-z * z), s))


def _in_16_bits(function: Function, dtype: str) -> Function:
    """Return a function whose argument and value are rounded to 16 bits, as those of a table or of half precision."""
    kind = STORAGE[dtype]
    return lambda s: function(s.astype(kind).astype(np.float32)).astype(kind).astype(np.float32)


def plain(geometry: Any) -> Any:
    """Return the geometry of the sums alone."""
    kind = ConvGeometry if geometry.rank else MatmulGeometry
    return kind(*(getattr(geometry, name) for name in kind.__match_args__))


@dataclass(frozen=True, eq=False)
class Epilogue:
    """A kernel whose sums, those of `run` in fp32, get a residual and an activation in fp32.

    functions     activation -> its function of fp32 numbers
    early_bias    the bias is added by `run`; if not, after the residual
    between       sums are rounded to the storage format before the residual and before the activation
    """

    run: Run
    functions: dict[str, Function]
    early_bias: bool = True
    between: bool = False

    def __call__(self, operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        linear, of_sums = operator.linear, plain(geometry)  # type: ignore[attr-defined]
        parts = {name: array for name, array in inputs.items() if name in linear.arguments}
        late = geometry.bias and not self.early_bias
        if late:
            of_sums = replace(of_sums, bias=False)
            del parts["bias"]
        s = self.rounded(self.run(linear, of_sums, parts, "fp32")["y"], dtype)
        if geometry.residual:
            s = self.rounded(s + inputs["residual"].astype(np.float32), dtype)
        if late:
            s = self.rounded(s + inputs["bias"].astype(np.float32).reshape(-1, *(1,) * geometry.rank), dtype)
        with np.errstate(over="ignore"):
            return stored({"y": self.functions[geometry.activation](s)}, dtype)

    def rounded(self, s: np.ndarray, dtype: str) -> np.ndarray:
        """Round sums to the storage format where they are kept in it."""
        return s.astype(STORAGE[dtype]).astype(np.float32) if self.between else s


_SEQUENTIAL = next(kernel.run for kernel in SUMS if kernel.name == "sequential")
_BETWEEN = Contract(between="storage")


def known_good(family: str) -> tuple[KnownGood, ...]:
    """Return sums in every order and arithmetic, other formulas of the activations, and sums rounded in between."""
    ours: dict[str, Any] = {"family": family, "operators": (family,)}
    of_sums = (
        replace(kernel, name=f"{family} {kernel.name}", run=Epilogue(kernel.run, BY_ERF), **ours,
                dtypes=STORED if kernel.dtypes != FP32_ONLY else FP32_ONLY)
        for kernel in SUMS
        if "fp32" in kernel.dtypes and kernel.contract.accumulate == "auto"
    )  # fmt: skip
    others: dict[str, tuple[Run, Contract, dict[str, Any]]] = {
        "by exp": (Epilogue(_SEQUENTIAL, BY_EXP), DEFAULT, {}),
        "by a polynomial": (Epilogue(_SEQUENTIAL, BY_ERF | {"gelu": _gelu_by_polynomial}), DEFAULT, {}),
        "bias last": (Epilogue(_SEQUENTIAL, BY_ERF, early_bias=False), DEFAULT, {}),
        "rounded between": (
            Epilogue(_SEQUENTIAL, BY_EXP, between=True),
            _BETWEEN,
            {"stricter": DEFAULT, "dtypes": SHORT},
        ),
        "rounded between, bias last": (
            Epilogue(_SEQUENTIAL, BY_ERF, early_bias=False, between=True),
            _BETWEEN,
            {"stricter": DEFAULT, "dtypes": SHORT},
        ),
    }
    return (
        *of_sums,
        *(
            KnownGood(f"{family} {name}", family, run, contract, (family,), **given)
            for name, (run, contract, given) in others.items()
        ),
    )


_SHORTER = ("fp16 accumulator", "bf16 accumulator", "14-bit accumulator toward zero")


def _is(activation: str) -> Callable[[Any], bool]:
    return lambda geometry: bool(geometry.activation == activation)


def _residual_in_bf16(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """Read the residual by way of bf16."""
    narrow = inputs["residual"].astype(np.float32).astype(STORAGE["bf16"]).astype(inputs["residual"].dtype)
    return exact(operator, geometry, inputs | {"residual": narrow}, dtype)


def _in_fp32(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """Compute the activation of an fp64 sum in fp32."""
    return {"y": exact(operator, geometry, inputs, dtype)["y"].astype(np.float32).astype(np.float64)}


def _residual_by_both_splits(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """Add the residual in each of two splits of a long sum."""
    long = geometry.filter.size // geometry.k >= 64
    residual = inputs["residual"] * inputs["residual"].dtype.type(2 if long else 1)
    return exact(operator, geometry, inputs | {"residual": residual}, dtype)


def _activated_partial_sums(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """Compute the activation of each half of the products, and add both."""
    operand = inputs[operator.operand]
    half = operand.shape[1] // 2
    first, second = operand.copy(), operand.copy()
    first[:, half:], second[:, :half] = 0, 0
    begun = operator.reference(geometry, inputs | {operator.operand: first})["y"]
    bare = replace(geometry, bias=False, residual=False)
    rest = {name: array for name, array in inputs.items() if name in (operator.data, operator.operand)}
    return stored({"y": begun + operator.reference(bare, rest | {operator.operand: second})["y"]}, dtype)


def known_bad(family: str) -> tuple[Mutant, ...]:
    """Return kernels with less precision than declared, and with parts of the sum in the wrong place."""
    ours: dict[str, Any] = {"operators": (family,)}
    base = Epilogue(EXACT, BY_ERF)
    coarse: dict[str, Function] = {
        "erf off by 2.5e-5": _coarse_gelu,
        "gelu of a bf16 number": _in_16_bits(_gelu, "bf16"),
        "gelu of an fp16 number": _in_16_bits(_gelu, "fp16"),
    }
    return (
        *(
            Mutant(f"{family}, {name}", "precision", Epilogue(run, BY_ERF), dtypes=FP32_ONLY, base=base, **ours)
            for name, run, _ in EMULATED
            if name in _SHORTER
        ),
        *(
            Mutant(f"{family}, {name}", "precision", Epilogue(EXACT, BY_ERF | {"gelu": function}), dtypes=FP32_ONLY,
                   when=_is("gelu"), base=base, **ours)
            for name, function in coarse.items()
        ),
        Mutant(f"{family}, silu of an fp16 number", "precision",
               Epilogue(EXACT, BY_ERF | {"silu": _in_16_bits(_silu, "fp16")}), dtypes=FP32_ONLY, when=_is("silu"),
               base=base, **ours),
        Mutant(f"{family}, sum rounded to 16 bits before the activation", "precision",
               Epilogue(EXACT, BY_ERF, between=True), dtypes=SHORT, when=lambda g: g.activation in ("gelu", "silu"),
               base=base, **ours),
        Mutant(f"{family}, fp64 result in fp32", "precision", _in_fp32, dtypes=("fp64",), base=exact, **ours),
        Mutant(f"{family}, residual read by way of bf16", "precision", _residual_in_bf16, dtypes=("fp32", "fp16"),
               when=lambda g: g.residual, base=exact, **ours),
        Mutant(f"{family}, residual added by both splits of long sums", "subtle", _residual_by_both_splits,
               dtypes=STORED, when=lambda g: g.residual, base=exact, **ours),
        Mutant(f"{family}, activation of partial sums", "subtle", _activated_partial_sums, dtypes=STORED,
               when=lambda g: g.activation != "none" and g.filter.shape[1] > 1, base=exact, **ours),
    )  # fmt: skip
