"""Which declared contracts a reading contradicts."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.contract import Contract
from conformance.execution.arithmetic import ReadContract
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


@pytest.mark.parametrize(
    ("declared", "dtype", "read", "whole"),
    [
        (Contract(), "fp32", {"inputs": "tf32", "bits": 24}, Contract(inputs="tf32", accumulate="fp32")),
        (
            Contract(between="storage"),
            "bf16",
            {"inputs": "exact", "bits": 11},
            Contract(accumulate="fp16", between="storage"),
        ),
        (Contract(), "fp32", {"algorithm": "fft"}, Contract(algorithm="fft")),
        # as declared, more precise, or read in part: nothing to declare follows
        (Contract(inputs="tf32"), "fp32", {"inputs": "tf32", "bits": 24}, None),
        (Contract(inputs="tf32"), "fp32", {"inputs": "exact", "bits": 24}, None),
        (Contract(), "fp32", {"inputs": "tf32"}, None),
    ],
)
def test_a_whole_reading_is_declared(declared: Contract, dtype: str, read: dict[str, Any], whole: Contract | None):
    assert ReadContract("acme", reading_of(dtype, **read), declared).whole == whole
