"""Which declared contracts a reading contradicts."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.contract import Contract
from conformance.reading.declaration import contradictions
from conformance.reading.read import Reading

HOPPER = Contract(accumulate="hopper-fp8-promoted")
SUMS: dict[str, Any] = {
    "bits": 14, "rounding": "zero", "group": 32, "group_bits": 13, "group_rounding": "zero", "promoted_bits": 24,
}  # fmt: skip


def reading_of(dtype: str, **read: Any) -> Reading:
    reading = Reading("conv_forward", dtype, **read)
    reading.agreeing.update(dict.fromkeys(read, 5))
    return reading


@pytest.mark.parametrize(
    ("declared", "dtype", "read", "fields"),
    [
        (HOPPER, "fp8_e4m3", SUMS | {"promoted": 128}, []),
        (HOPPER, "fp8_e4m3", SUMS | {"promoted": 64}, []),
        # kernels that promote half as often, or never, passed a run, and no line said it
        (HOPPER, "fp8_e4m3", SUMS | {"promoted": 256}, ["accumulate"]),
        (HOPPER, "fp8_e4m3", SUMS | {"unpromoted": 1024}, ["accumulate"]),
        (HOPPER, "fp8_e4m3", {"bits": 24, "rounding": "nearest", "unpromoted": 1024}, []),
        (Contract(accumulate="hopper-fp8"), "fp8_e4m3", SUMS | {"unpromoted": 1024}, []),
        (Contract(inputs="tf32"), "fp32", {"inputs": "tf32", "input_bits": 11, "input_rounding": "zero"}, ["rounding"]),
        (Contract(inputs="tf32", rounding="zero"), "fp32", {"inputs": "tf32", "input_rounding": "zero"}, []),
        # the bits of stored partial sums were taken for those of the accumulator
        (Contract(accumulate="hopper-16", splits=4, partials="bf16"), "bf16", {"bits": 8, "rounding": "nearest"}, []),
        (Contract(splits=4), "bf16", {"bits": 8, "rounding": "nearest"}, ["accumulate"]),
    ],
)
def test_what_a_reading_contradicts(declared: Contract, dtype: str, read: dict[str, Any], fields: list[str]):
    assert contradictions(reading_of(dtype, **read), declared) == fields
