"""Known-bad products with weights of 4 bits: less precision than declared, and results that are nearly right."""

from __future__ import annotations

from functools import partial

import numpy as np

from conformance.dtypes import BF16, FP16, FP32
from conformance.operators import Arrays
from conformance.operators.matmul_int4.geometry import Int4Geometry
from conformance.operators.matmul_int4.operators import weights
from tests.calibration.kernels import sums
from tests.calibration.kernels.kernel import Mutant, exact, on_outputs
from tests.calibration.kernels.rounding import bits, rounded
from tests.calibration.kernels.scale import DEVIATIONS
from tests.calibration.kernels.sums import Sum, Total
from tests.calibration.matmul_int4.known_good import DTYPES, NAME, Way, run, sums_of_blocks, weights_first

_EMULATED = partial(Sum, work=np.float64)
_STEPS: dict[str, sums.Step] = {
    "fp16 accumulator": sums.rounding_to(FP16),
    "bf16 accumulator": sums.rounding_to(BF16),
    "20-bit accumulator": sums.rounding_to(bits(20)),
    "14-bit accumulator toward zero": sums.rounding_to(bits(14), np.trunc),
    "fp32 accumulator toward zero": sums.rounding_to(FP32, np.trunc),
}
_WAYS: dict[str, Way] = {"weights first": weights_first, "sums of blocks scaled": sums_of_blocks}


def _activations_in_8_bits(total: Total, g: Int4Geometry, inputs: Arrays) -> np.ndarray:
    """Round each row of a to 8 bits with a scale of its own, as kernels do that multiply whole numbers."""
    a = inputs["a"].astype(np.float64)
    largest = np.abs(a).max(axis=1, initial=0.0, keepdims=True)
    step = np.where(largest > 0, largest, 1) / 127
    return weights_first(total, g, inputs | {"a": (np.rint(a / step) * step).astype(np.float32)})


def _scales_in(precision: int) -> Way:
    """Round scaled weights to fewer bits."""

    def way(total: Total, g: Int4Geometry, inputs: Arrays) -> np.ndarray:
        values = rounded(weights(g, inputs).values, bits(precision)).astype(np.float32)
        return total(inputs["a"].astype(np.float32)[None], values.T[None], 1)[0].astype(np.float32)

    return way


KNOWN_BAD: tuple[Mutant, ...] = (
    *(
        Mutant(f"4-bit product, {name}, {way}", "precision", partial(run, scale, _EMULATED(step=step)), operators=NAME,
               dtypes=("fp32",), base=partial(run, scale, Sum()))
        for way, scale in _WAYS.items()
        for name, step in _STEPS.items()
        if "toward zero" not in name or way == "weights first"
    ),
    *(
        Mutant(f"4-bit product, {name} of 16-bit numbers", "precision",
               partial(run, weights_first, _EMULATED(step=_STEPS[name])), operators=NAME, dtypes=("bf16", "fp16"),
               base=partial(run, weights_first, Sum()))
        for name in ("fp16 accumulator", "bf16 accumulator")
    ),
    Mutant("4-bit product, activations in 8 bits", "precision", partial(run, _activations_in_8_bits, Sum()),
           operators=NAME, dtypes=DTYPES, base=partial(run, weights_first, Sum())),
    Mutant("4-bit product, weights in 12 bits", "precision", partial(run, _scales_in(12), Sum()), operators=NAME,
           dtypes=("fp32",), base=partial(run, weights_first, Sum())),
    *(
        Mutant(f"4-bit product, {name}", "scale", on_outputs(deviation), operators=NAME, dtypes=DTYPES, base=exact)
        for name, deviation in DEVIATIONS.items()
    ),
)  # fmt: skip
