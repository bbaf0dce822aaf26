"""Mistakes of products that are scaled and added to a matrix: the two factors, what they are applied to, and c."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.dtypes import STORAGE
from conformance.operators.base import Arrays, Operator
from conformance.operators.conv.mistakes import neighbour, tails_of_sums
from conformance.operators.gemm.geometry import GemmGeometry
from conformance.operators.matmul import mistakes as matmul
from conformance.operators.mistakes import ROUNDING, Change, Compute, InapplicableError, Mistake, misread, rolled

GEMM = "gemm"
Factors = Callable[[GemmGeometry], tuple[float, float]]
"""Geometry -> the factors of the product and of c that the kernel uses."""


def _with(factors: Factors) -> Compute:
    """Return the mistake of a kernel that uses other factors; c is read where its factor is not zero."""

    def compute(operator: Operator, g: GemmGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        alpha, beta = factors(g)
        product = operator.reference(replace(g, alpha=1.0, beta=0.0), inputs, dtype)["y"]
        c = beta * inputs["c"].astype(dtype) if beta else 0.0
        return {"y": alpha * product + c}

    return compute


def _rounded_to(dtype: str) -> Callable[[float], float]:
    return lambda factor: float(np.float32(factor).astype(STORAGE[dtype]))


def _product_rounded(operator: Operator, g: GemmGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Round the product to the format of y before it is scaled and c is added."""
    if inputs["c"].dtype.itemsize != 2:
        raise InapplicableError
    product = operator.reference(replace(g, alpha=1.0, beta=0.0), inputs)["y"]
    rounded = product.astype(np.float32).astype(inputs["c"].dtype).astype(np.float64)
    return {"y": (g.alpha * rounded + (g.beta * inputs["c"].astype(np.float64) if g.beta else 0.0)).astype(dtype)}


_FACTORS: dict[str, Factors] = {
    "alpha ignored": lambda g: (1.0, g.beta),
    "alpha applied twice": lambda g: (g.alpha**2, g.beta),
    "alpha applied to c, too": lambda g: (g.alpha, g.alpha * g.beta),
    "sign of alpha ignored": lambda g: (abs(g.alpha), g.beta),
    "alpha inverted": lambda g: (1 / g.alpha, g.beta),
    "alpha cut to a whole number": lambda g: (float(int(g.alpha)), g.beta),
    "alpha rounded to bf16": lambda g: (_rounded_to("bf16")(g.alpha), g.beta),
    "alpha rounded to fp16": lambda g: (_rounded_to("fp16")(g.alpha), g.beta),
    "beta ignored": lambda g: (g.alpha, 1.0 if g.beta else 0.0),
    "beta applied twice": lambda g: (g.alpha, g.beta**2),
    "beta applied to the product, too": lambda g: (g.alpha * g.beta, g.beta),
    "sign of beta ignored": lambda g: (g.alpha, abs(g.beta)),
    "beta cut to a whole number": lambda g: (g.alpha, float(int(g.beta))),
    "beta rounded to bf16": lambda g: (g.alpha, _rounded_to("bf16")(g.beta)),
    "alpha and beta exchanged": lambda g: (g.beta, g.alpha if g.beta else 0.0),
    "c not added": lambda g: (g.alpha, 0.0),
}


def _read_anyway(operator: Operator, g: GemmGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Multiply c by a beta of zero, which leaves NaN."""
    if g.beta:
        raise InapplicableError
    return {"y": operator.reference(g, inputs, dtype)["y"] + 0.0 * inputs["c"].astype(dtype)}


def _first_row(array: np.ndarray, g: GemmGeometry) -> np.ndarray:
    return np.repeat(array[:1], len(array), axis=0)


def _first_column(array: np.ndarray, g: GemmGeometry) -> np.ndarray:
    columns = array.reshape(len(array), g.groups, -1)
    return np.repeat(columns[:, :, :1], columns.shape[2], axis=2).reshape(array.shape)


def _of_first_product(array: np.ndarray, g: GemmGeometry) -> np.ndarray:
    return np.tile(array[:, : g.k // g.groups], (1, g.groups))


_ADDED: dict[str, Change] = {
    "c taken for its transpose": matmul.transposed,
    "c read in column-major order": matmul.other_order,
    "row of c before": rolled(0),
    "column of c before": rolled(1),
    "first row of c for every row": _first_row,
    "first column of c for every column": _first_column,
    "leading dimension of c one too large": matmul.by_lines(1),
    "c of the first product for every product": _of_first_product,
}

MISTAKES: tuple[Mistake, ...] = (
    *(Mistake(name, "factors", _with(factors)) for name, factors in _FACTORS.items()),
    Mistake("c read although beta is 0", "factors", _read_anyway),
    *(Mistake(name, "index", misread(c=change), when=lambda g: g.beta != 0) for name, change in _ADDED.items()),
    *(
        replace(mistake, operators=(GEMM,) if mistake.operators else ())
        for mistake in matmul.MISTAKES
        if (not mistake.operators or matmul.FORWARD in mistake.operators)
        and mistake.kind != "bias"
        and not mistake.name.startswith("tail of the sum")
    ),
    *tails_of_sums({GEMM: ("b", 2)}),
    Mistake("c of the product before", "groups", misread(c=neighbour(1)), when=lambda g: g.groups > 1 and g.beta != 0),
)

FURTHER: tuple[Mistake, ...] = (Mistake("product rounded before c is added", ROUNDING, _product_rounded),)
