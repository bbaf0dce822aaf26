"""Mutants that a single distribution or a single statistic of the judge detects: without it they would survive."""

from __future__ import annotations

import numpy as np

from conformance.calibration.known_bad.arithmetic import EXACT, KernelArithmetic, to
from conformance.calibration.known_bad.base import Mutant, exact
from conformance.calibration.known_kernel import FP32_ONLY
from conformance.calibration.rounding import bits
from conformance.dtypes import BF16
from conformance.judge import Contract
from conformance.operators import CONVOLUTIONS, Arrays, ConvGeometry, Operator

PEEK = 3
LONG = 4096
MANY = 1000

_ROUNDED = KernelArithmetic(to(BF16), to(BF16))
_SHORTER = KernelArithmetic(accumulate=(bits(19), np.rint))


def _skipping_zeros(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Rows of the data that begin with zeros are taken for empty, as a kernel for sparse data might."""
    data = inputs[operator.data]
    if data.shape[-1] <= PEEK:
        return exact(operator, geometry, inputs, dtype)
    empty = (data[..., :PEEK] == 0).all(axis=-1, keepdims=True)
    return exact(operator, geometry, inputs | {operator.data: np.where(empty, np.zeros_like(data), data)}, dtype)


def _without_last_product(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """The last product of a long sum is left out, which is less than the declared rounding of the inputs."""
    w = inputs["w"].copy()
    w.reshape(geometry.k, -1)[:, -1] = 0
    return _ROUNDED(operator, geometry, inputs | {"w": w}, dtype)


def _one_element(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """One element of many is summed in a shorter accumulator; among few, the rms would show it."""
    outputs, other = (kernel(operator, geometry, inputs, dtype) for kernel in (EXACT, _SHORTER))
    main = next(iter(outputs))
    middle = outputs[main].size // 2
    if outputs[main].size >= MANY:
        outputs[main].reshape(-1)[middle] = other[main].reshape(-1)[middle]
    return outputs


SUBTLE: tuple[Mutant, ...] = (
    Mutant("rows of data that begin with zeros skipped", "subtle", _skipping_zeros, dtypes=FP32_ONLY, base=exact),
    Mutant(
        "last product of a long sum left out, inputs declared bf16", "subtle", _without_last_product,
        Contract(inputs="bf16"), CONVOLUTIONS[:1], lambda geometry: geometry.c >= LONG, FP32_ONLY, base=_ROUNDED,
    ),
    Mutant("one element summed in 19 bits", "subtle", _one_element, dtypes=FP32_ONLY, base=EXACT),
    Mutant("fp32 result packed in 22 bits", "subtle", KernelArithmetic(after=to(bits(22))), dtypes=FP32_ONLY,
           base=EXACT),
)  # fmt: skip
