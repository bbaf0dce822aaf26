"""Kernels that compute with less than the contract says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from conformance.calibration.known_bad.arithmetic import EXACT, KernelArithmetic, scaled_in_fp32, to
from conformance.calibration.known_bad.base import Mutant, exact, stored
from conformance.calibration.known_kernel import DEFAULT, FP32_ONLY, SHORT, STORED
from conformance.calibration.rounding import bits, flushed, outward
from conformance.dtypes import BF16, FP16, FP32, TF32
from conformance.operators import CONVOLUTIONS, Arrays, ConvGeometry, Operator


def _factors_and_partials() -> Iterator[tuple[str, KernelArithmetic, tuple[str, ...]]]:
    for format in (TF32, BF16, FP16):
        yield f"inputs rounded to {format.name}", KernelArithmetic(to(format), to(format)), ("fp32", "fp16")
        yield f"weights (dy) rounded to {format.name}", KernelArithmetic(first=to(format)), ("fp32", "fp16")
        yield f"data rounded to {format.name}", KernelArithmetic(second=to(format)), ("fp32", "fp16")
    for format, splits in itertools.product((BF16, FP16), (4, 16, 64)):
        yield f"{splits} partial sums stored in {format.name}", KernelArithmetic(splits=splits, partials=format), STORED


_EMULATED: tuple[tuple[str, KernelArithmetic, tuple[str, ...]], ...] = (
    *_factors_and_partials(),
    ("fp16 accumulator", KernelArithmetic(accumulate=(FP16, np.rint)), STORED),
    ("bf16 accumulator", KernelArithmetic(accumulate=(BF16, np.rint)), STORED),
    ("accumulator in the storage dtype", KernelArithmetic(in_storage=True), SHORT),
    ("fp32 accumulator toward zero", KernelArithmetic(accumulate=(FP32, np.trunc)), FP32_ONLY),
    ("fp32 accumulator upward", KernelArithmetic(accumulate=(FP32, np.ceil)), FP32_ONLY),
    ("20-bit accumulator", KernelArithmetic(accumulate=(bits(20), np.rint)), FP32_ONLY),
    ("14-bit accumulator toward zero", KernelArithmetic(accumulate=(bits(14), np.trunc)), FP32_ONLY),
    ("bf16 result rounded twice, first to 11 bits", KernelArithmetic(after=to(bits(11))), ("bf16",)),
    ("bf16 result rounded by way of fp16", KernelArithmetic(after=to(FP16)), ("bf16",)),
    ("fp16 result rounded twice, first to 14 bits", KernelArithmetic(after=to(bits(14))), ("fp16",)),
    ("fp16 result rounded by way of bf16", KernelArithmetic(after=to(BF16)), ("fp16",)),
    ("fp32 result rounded by way of bf16", KernelArithmetic(after=to(BF16)), FP32_ONLY),
    ("fp32 result rounded by way of fp16", KernelArithmetic(after=to(FP16)), FP32_ONLY),
    ("fp32 result rounded to 18 bits", KernelArithmetic(after=to(bits(18))), FP32_ONLY),
    ("fp32 result truncated to 20 bits", KernelArithmetic(after=to(bits(20), np.trunc)), FP32_ONLY),
    ("fp32 result truncated", KernelArithmetic(after=to(FP32, np.trunc)), FP32_ONLY),
    ("bf16 result truncated", KernelArithmetic(after=to(BF16, np.trunc)), ("bf16",)),
    ("fp16 result truncated", KernelArithmetic(after=to(FP16, np.trunc)), ("fp16",)),
    ("fp32 result rounded up", KernelArithmetic(after=to(FP32, np.ceil)), FP32_ONLY),
    ("bf16 result rounded up", KernelArithmetic(after=to(BF16, np.ceil)), ("bf16",)),
    ("fp16 result rounded up", KernelArithmetic(after=to(FP16, np.ceil)), ("fp16",)),
    ("fp32 result rounded away from zero", KernelArithmetic(after=to(FP32, outward)), FP32_ONLY),
    ("subnormal results flushed", KernelArithmetic(after=flushed), STORED),
    ("subnormal inputs flushed", KernelArithmetic(flushed, flushed), STORED),
    ("sum scaled by 256 in fp32 before it is scaled back", KernelArithmetic(after=scaled_in_fp32(256.0)),
     ("fp32", "bf16")),
    ("sum scaled by 1/256 in fp32 before it is scaled back", KernelArithmetic(after=scaled_in_fp32(1 / 256)),
     ("fp32", "bf16")),
)  # fmt: skip


def _atomic(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Gradients of the images added one by one in the storage dtype."""
    total = stored({name: np.zeros(t.shape) for name, t in operator.outputs(geometry).items()}, dtype)
    for n in range(geometry.n):
        image = {name: array[n : n + 1] for name, array in inputs.items()}
        part = operator.reference(replace(geometry, n=1), image)
        total = stored({name: total[name].astype(np.float64) + part[name] for name in total}, dtype)
    return total


PRECISION: tuple[Mutant, ...] = (
    *(Mutant(name, "precision", run, dtypes=dtypes, base=EXACT) for name, run, dtypes in _EMULATED),
    Mutant(
        "dw of the images added in the storage dtype", "precision", _atomic, DEFAULT, CONVOLUTIONS[2:], dtypes=SHORT,
        base=exact,
    ),
)  # fmt: skip
