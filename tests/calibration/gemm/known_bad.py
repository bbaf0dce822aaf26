"""Known-bad products that are scaled and added to a matrix: less precision than declared, and factors applied late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.dtypes import STORAGE, sums_of
from conformance.operators import Arrays, Operator
from conformance.operators.gemm.geometry import GemmGeometry
from tests.calibration.conv.known_bad import EMULATED
from tests.calibration.gemm.known_good import by_steps, with_factors
from tests.calibration.kernels.arithmetic import EXACT
from tests.calibration.kernels.kernel import STORED, Mutant, exact, stored

GEMM = ("gemm",)


def _c_in_bf16(operator: Operator, g: GemmGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Read c by way of bf16."""
    c = inputs["c"].astype(np.float32).astype(STORAGE["bf16"]).astype(inputs["c"].dtype)
    return exact(operator, g, inputs | {"c": c}, dtype)


def _alpha_on_every_split(operator: Operator, g: GemmGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Add beta * c in each of two splits of the sum."""
    y = operator.reference(g, inputs)["y"]
    again = g.beta * inputs["c"].astype(np.float64) if g.beta and g.c >= 2 * g.groups else 0.0
    return stored({"y": y + again}, sums_of(dtype))


def _scaled_a_in_storage(operator: Operator, g: GemmGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Round alpha * a to the format of a."""
    scaled = (g.alpha * inputs["a"].astype(np.float64)).astype(np.float32).astype(inputs["a"].dtype)
    return exact(operator, replace(g, alpha=1.0), inputs | {"a": scaled}, dtype)


def _product_rounded(operator: Operator, g: GemmGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Round the product to the format of y before it is scaled and c is added."""
    product = operator.reference(replace(g, alpha=1.0, beta=0.0), inputs)["y"]
    rounded = stored({"y": product}, sums_of(dtype))["y"].astype(np.float64)
    return stored({"y": g.alpha * rounded + (g.beta * inputs["c"].astype(np.float64) if g.beta else 0.0)}, dtype)


_ACCUMULATORS = ("fp16 accumulator", "accumulator with a bit less than fp32", "14-bit accumulator toward zero")

KNOWN_BAD: tuple[Mutant, ...] = (
    *(
        Mutant(f"gemm, {name}", "precision", with_factors(run, by_steps), operators=GEMM, dtypes=("fp32",),
               base=with_factors(EXACT, by_steps))
        for name, run, _ in EMULATED
        if name in _ACCUMULATORS
    ),
    Mutant("product rounded to 16 bits before c is added", "precision", _product_rounded, operators=GEMM,
           dtypes=("bf16", "fp16"), when=lambda g: g.beta != 0, base=exact),
    Mutant("c read by way of bf16", "precision", _c_in_bf16, operators=GEMM, dtypes=("fp32", "fp16"),
           when=lambda g: g.beta != 0 and g.groups >= 1, base=exact),
    Mutant("c added by every split of two", "subtle", _alpha_on_every_split, operators=GEMM, dtypes=STORED,
           when=lambda g: g.beta != 0, base=exact),
    Mutant("alpha times a rounded to 16 bits", "precision", _scaled_a_in_storage, operators=GEMM,
           dtypes=("bf16", "fp16"), when=lambda g: abs(g.alpha) not in (0.125, 0.25, 0.5, 1.0, 2.0), base=exact),
)  # fmt: skip
