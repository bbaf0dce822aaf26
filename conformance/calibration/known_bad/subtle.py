"""Mutants that a single distribution or a single statistic of the judge detects: without it they would walk free."""

from __future__ import annotations

import numpy as np

from conformance.calibration.known_bad.arithmetic import HONEST, Arithmetic, bits
from conformance.calibration.known_bad.base import Mutant, exact
from conformance.calibration.subject import Run
from conformance.dtypes import FORMATS
from conformance.judge.contract import Contract
from conformance.operators import CONVOLUTIONS, Arrays, ConvGeometry, Operator

PEEK = 3
LONG = 4096
MANY = 1000

_BF16 = FORMATS["bf16"]
_ROUNDED = Arithmetic(_BF16, _BF16)


def _skipping_zeros(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Rows of the data that begin with zeros are taken for empty, as a kernel for sparse data might."""
    data = inputs[operator.data]
    if data.shape[3] <= PEEK:
        return exact(operator, geometry, inputs, dtype)
    empty = (data[..., :PEEK] == 0).all(axis=3, keepdims=True)
    return exact(operator, geometry, inputs | {operator.data: np.where(empty, np.zeros_like(data), data)}, dtype)


def _without_last_product(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """The last product of a long sum is left out, which is less than the declared rounding of the inputs."""
    w = inputs["w"].copy()
    w[:, -1, -1, -1] = 0
    return _ROUNDED(operator, geometry, inputs | {"w": w}, dtype)


def _one_element(arithmetic: Arithmetic) -> Run:
    """One element of many is computed in another arithmetic; among few, the rms would show it."""

    def run(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
        outputs, other = (kernel(operator, geometry, inputs, dtype) for kernel in (HONEST, arithmetic))
        main = next(iter(outputs))
        middle = outputs[main].size // 2
        if outputs[main].size >= MANY:
            outputs[main].reshape(-1)[middle] = other[main].reshape(-1)[middle]
        return outputs

    return run


SUBTLE: tuple[Mutant, ...] = (
    Mutant("rows of data that begin with zeros skipped", "subtle", _skipping_zeros, dtypes=("fp32",), base=exact),
    Mutant(
        "last product of a long sum left out, inputs declared bf16",
        "subtle",
        _without_last_product,
        Contract(inputs="bf16"),
        ("conv_forward",),
        lambda geometry: geometry.c >= LONG,
        ("fp32",),
        base=_ROUNDED,
    ),
    Mutant(
        "one element summed in 19 bits",
        "subtle",
        _one_element(Arithmetic(accumulate=bits(19))),
        operators=CONVOLUTIONS,
        dtypes=("fp32",),
        base=HONEST,
    ),
    Mutant(
        "fp32 result packed in 22 bits",
        "subtle",
        Arithmetic(through=((bits(22), "nearest"),)),
        dtypes=("fp32",),
        base=HONEST,
    ),
)
