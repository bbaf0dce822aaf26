"""Known-bad products that are scaled and added to a matrix: less precision than declared, and factors applied late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.dtypes import STORAGE, sums_of
from conformance.operators import Arrays, Operator
from conformance.operators.gemm.geometry import GemmGeometry
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


KNOWN_BAD: tuple[Mutant, ...] = (
    Mutant("c read by way of bf16", "precision", _c_in_bf16, operators=GEMM, dtypes=("fp32", "fp16"),
           when=lambda g: g.beta != 0 and g.groups >= 1, base=exact),
    Mutant("c added by every split of two", "subtle", _alpha_on_every_split, operators=GEMM, dtypes=STORED,
           when=lambda g: g.beta != 0, base=exact),
    Mutant("alpha times a rounded to 16 bits", "precision", _scaled_a_in_storage, operators=GEMM,
           dtypes=("bf16", "fp16"), when=lambda g: abs(g.alpha) not in (0.125, 0.25, 0.5, 1.0, 2.0), base=exact),
)  # fmt: skip
