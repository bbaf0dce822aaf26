"""Known-bad scaled products: less precision than declared, in each way to scale, and results that are nearly right."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from conformance.dtypes import BF16, FP16, FP32, STORAGE
from conformance.operators import Arrays, Operator
from conformance.operators.matmul_scaled.geometry import ScaledGeometry
from tests.calibration.conv import known_bad_formats
from tests.calibration.kernels import sums
from tests.calibration.kernels.arithmetic import KernelArithmetic
from tests.calibration.kernels.kernel import FP8, INT8, Mutant, Run, exact, on_outputs, stored
from tests.calibration.kernels.rounding import bits, rounded
from tests.calibration.kernels.scale import DEVIATIONS
from tests.calibration.kernels.sums import Sum
from tests.calibration.matmul_scaled.known_good import NAME, ByBlocks, Way, operands_first, rounding, run

BOTH = (*FP8, *INT8)
_EMULATED = partial(Sum, work=np.float64)
_STEPS: dict[str, sums.Step] = {
    "fp16 accumulator": sums.rounding_to(FP16),
    "bf16 accumulator": sums.rounding_to(BF16),
    "20-bit accumulator": sums.rounding_to(bits(20)),
    "14-bit accumulator toward zero": sums.rounding_to(bits(14), np.trunc),
}
"""Accumulators of the products. fp32 with a bit less holds most sums of 8-bit products."""
_OF_SCALED: dict[str, sums.Step] = {
    "accumulator with two bits less than fp32": sums.rounding_to(bits(22)),
    "fp32 accumulator toward zero": sums.rounding_to(FP32, np.trunc),
}
_WAYS: dict[str, Way] = {"operands scaled": operands_first, "sums scaled": ByBlocks()}


def _scales_multiplied_in(dtype: str) -> ByBlocks:
    """Round the product of two scales to 16 bits."""
    narrow = STORAGE[dtype]
    return ByBlocks(lambda block, rows, columns: block * (rows * columns).astype(narrow).astype(np.float32))


_BLOCKS: dict[str, ByBlocks] = {
    "scaled sums added in fp16": ByBlocks(add=rounding(FP16)),
    "scaled sums added in 20 bits": ByBlocks(add=rounding(bits(20))),
    "product of scales in bf16": _scales_multiplied_in("bf16"),
    "product of scales in fp16": _scales_multiplied_in("fp16"),
}


def _stored_in(format: str) -> Run:
    """Return a kernel that stores results in 16 bits on the way."""
    return on_outputs(lambda y, g: y.astype(np.float32).astype(STORAGE[format]).astype(np.float64))


def _result_in_bits(precision: int) -> Run:
    return on_outputs(lambda y, g: rounded(y, bits(precision)))


def _promoted_late(operator: Operator, g: ScaledGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Add 128 products in 14 bits before fp32 takes over, as a matrix unit for fp8 does."""
    promoted = _EMULATED(step=sums.rounding_to(bits(14), np.trunc), lanes=sums.blocks(128))
    return run(ByBlocks(), promoted, operator, g, inputs, dtype)


def _skips_zero_blocks(operator: Operator, g: ScaledGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Skip blocks of terms that are zero in every row of a, whatever they meet in b."""
    length = g.terms or g.c
    b = inputs["b"].copy()
    for start in range(0, g.c, length):
        if not inputs["a"][:, start : start + length].astype(np.float64).any():
            b[:, start : start + length] = 0
    return exact(operator, g, inputs | {"b": b}, dtype)


def _negated_in_8_bits(operator: Operator, g: ScaledGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Move the sign of a into b, of which -128 has no negative in 8 bits."""
    a, b = (inputs[name].astype(np.float64) for name in ("a", "b"))
    least = np.where(b == -128, 1.0, 0.0)
    unbiased = {name: np.zeros_like(array) for name, array in inputs.items() if name == "bias"}
    lost = operator.reference(g, inputs | unbiased | {"a": np.minimum(a, 0), "b": least})["y"]
    return stored({"y": operator.reference(g, inputs)["y"] + 256 * lost}, "fp32")


_FORMATS = tuple(
    replace(mutant, name=f"scaled product, {mutant.name}", operators=NAME, ranks=(0,))
    for mutant in known_bad_formats.KNOWN_BAD
    if "conv_forward" in mutant.operators
    and set(mutant.dtypes) <= {*FP8}
    and not isinstance(mutant.run, KernelArithmetic)
)
"""Mistakes about the number that 8 bits stand for, as convolutions have them."""

KNOWN_BAD: tuple[Mutant, ...] = (
    *_FORMATS,
    *(
        Mutant(f"scaled product, {name}, {way}", "precision", partial(run, scale, _EMULATED(step=step)),
               operators=NAME, dtypes=FP8, base=partial(run, scale, Sum()))
        for way, scale in _WAYS.items()
        for name, step in _STEPS.items()
    ),
    *(
        Mutant(f"scaled product, {name}, operands scaled", "precision",
               partial(run, operands_first, _EMULATED(step=step)), operators=NAME,
               dtypes=FP8, base=partial(run, operands_first, Sum()))
        for name, step in _OF_SCALED.items()
    ),
    *(
        Mutant(f"scaled product, {name}", "precision", partial(run, way, Sum()), operators=NAME, dtypes=BOTH,
               base=partial(run, ByBlocks(), Sum()))
        for name, way in _BLOCKS.items()
    ),
    Mutant("scaled product, 14 bits for 128 products", "precision", _promoted_late, operators=NAME, dtypes=FP8,
           base=partial(run, ByBlocks(), Sum())),
    *(
        Mutant(f"scaled product, result rounded by way of {format}", "precision", _stored_in(format), operators=NAME,
               dtypes=BOTH, base=exact)
        for format in ("bf16", "fp16")
    ),
    Mutant("scaled product, blocks of zeros skipped", "values", _skips_zero_blocks, operators=NAME, dtypes=FP8,
           when=lambda g: bool(g.terms), base=exact),
    Mutant("scaled product, signs of a moved into b", "values", _negated_in_8_bits, operators=NAME, dtypes=INT8,
           base=exact),
    Mutant("scaled product, result rounded to 20 bits", "precision", _result_in_bits(20), operators=NAME, dtypes=BOTH,
           base=exact),
    *(
        Mutant(f"scaled product, {name}", "scale", on_outputs(deviation), operators=NAME, dtypes=BOTH, base=exact)
        for name, deviation in DEVIATIONS.items()
    ),
)  # fmt: skip
