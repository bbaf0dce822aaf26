"""Kernels that compute with less than the contract says."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from conformance.calibration.known_bad.arithmetic import HONEST, Arithmetic, bits, flushed
from conformance.calibration.known_bad.base import Mutant, exact, stored
from conformance.calibration.subject import DEFAULT, Run
from conformance.dtypes import FORMATS, Format
from conformance.operators import CONVOLUTIONS, Arrays, ConvGeometry, Operator

_TF32, _BF16, _FP16, _FP32 = (FORMATS[name] for name in ("tf32", "bf16", "fp16", "fp32"))
_SHORT = ("bf16", "fp16")


def _roundings_of_inputs() -> Iterator[tuple[str, Arithmetic, tuple[str, ...]]]:
    """Both factors, or one of them."""
    for format in (_TF32, _BF16, _FP16):
        yield f"inputs rounded to {format.name}", Arithmetic(format, format), ("fp32", "fp16")
        yield f"weights (dy) rounded to {format.name}", Arithmetic(first=format), ("fp32", "fp16")
        yield f"data rounded to {format.name}", Arithmetic(second=format), ("fp32", "fp16")


def _split_k() -> Iterator[tuple[str, Arithmetic, tuple[str, ...]]]:
    for format, splits in itertools.product((_BF16, _FP16), (4, 16, 64)):
        name = f"{splits} partial sums stored in {format.name}"
        yield name, Arithmetic(splits=splits, partials=format), ("fp32", *_SHORT)


_EMULATED: tuple[tuple[str, Arithmetic, tuple[str, ...]], ...] = (
    *_roundings_of_inputs(),
    *_split_k(),
    ("fp16 accumulator", Arithmetic(accumulate=_FP16), ("fp32", *_SHORT)),
    ("bf16 accumulator", Arithmetic(accumulate=_BF16), ("fp32", *_SHORT)),
    ("accumulator in the storage dtype", Arithmetic(in_storage=True), _SHORT),
    ("fp32 accumulator toward zero", Arithmetic(accumulate=_FP32, toward="zero"), ("fp32",)),
    ("fp32 accumulator upward", Arithmetic(accumulate=_FP32, toward="up"), ("fp32",)),
    ("20-bit accumulator", Arithmetic(accumulate=bits(20)), ("fp32",)),
    ("14-bit accumulator toward zero", Arithmetic(accumulate=bits(14), toward="zero"), ("fp32",)),
    ("bf16 result rounded twice, first to 11 bits", Arithmetic(through=((bits(11), "nearest"),)), ("bf16",)),
    ("bf16 result rounded by way of fp16", Arithmetic(through=((_FP16, "nearest"),)), ("bf16",)),
    ("fp16 result rounded twice, first to 14 bits", Arithmetic(through=((bits(14), "nearest"),)), ("fp16",)),
    ("fp16 result rounded by way of bf16", Arithmetic(through=((_BF16, "nearest"),)), ("fp16",)),
    ("fp32 result rounded by way of bf16", Arithmetic(through=((_BF16, "nearest"),)), ("fp32",)),
    ("fp32 result rounded by way of fp16", Arithmetic(through=((_FP16, "nearest"),)), ("fp32",)),
    ("fp32 result rounded to 18 bits", Arithmetic(through=((bits(18), "nearest"),)), ("fp32",)),
    ("fp32 result truncated to 20 bits", Arithmetic(through=((bits(20), "zero"),)), ("fp32",)),
    ("fp32 result truncated", Arithmetic(through=((_FP32, "zero"),)), ("fp32",)),
    ("bf16 result truncated", Arithmetic(through=((_BF16, "zero"),)), ("bf16",)),
    ("fp16 result truncated", Arithmetic(through=((_FP16, "zero"),)), ("fp16",)),
    ("fp32 result rounded up", Arithmetic(through=((_FP32, "up"),)), ("fp32",)),
    ("bf16 result rounded up", Arithmetic(through=((_BF16, "up"),)), ("bf16",)),
    ("fp16 result rounded up", Arithmetic(through=((_FP16, "up"),)), ("fp16",)),
    ("fp32 result rounded away from zero", Arithmetic(through=((_FP32, "away"),)), ("fp32",)),
    ("subnormal results flushed", Arithmetic(after=flushed), ("fp32", *_SHORT)),
    ("subnormal inputs flushed", Arithmetic(before=flushed), ("fp32", *_SHORT)),
)


def _out_of_range(dtype: type, factor: float) -> Callable[[np.ndarray, Format], np.ndarray]:
    """Multiplied and divided again by a power of two, which is exact until it overflows."""
    return lambda values, _: (values.astype(dtype) * dtype(factor)).astype(np.float64) / factor


def _atomic(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Gradients of the images added one by one in the storage dtype."""
    total = stored({name: np.zeros(t.shape) for name, t in operator.outputs(geometry).items()}, dtype)
    for n in range(geometry.n):
        image = {name: array[n : n + 1] for name, array in inputs.items()}
        part = operator.reference(replace(geometry, n=1), image)
        total = stored({name: total[name].astype(np.float64) + part[name] for name in total}, dtype)
    return total


_OTHERS: tuple[tuple[str, Run, Run, tuple[str, ...], tuple[str, ...]], ...] = (
    ("sum scaled by 256 in fp32 before it is scaled back", Arithmetic(after=_out_of_range(np.float32, 256.0)), HONEST,
     ("fp32", "bf16"), CONVOLUTIONS),
    ("sum scaled by 1/256 in fp32 before it is scaled back", Arithmetic(after=_out_of_range(np.float32, 1 / 256)),
     HONEST, ("fp32", "bf16"), CONVOLUTIONS),
    ("dw of the images added in the storage dtype", _atomic, exact, _SHORT, ("conv_backward_weight",)),
)  # fmt: skip

PRECISION: tuple[Mutant, ...] = (
    *(Mutant(name, "precision", run, dtypes=dtypes, base=HONEST) for name, run, dtypes in _EMULATED),
    *(Mutant(name, "precision", run, DEFAULT, where, dtypes=dtypes, base=base)
      for name, run, base, dtypes, where in _OTHERS),
)  # fmt: skip
