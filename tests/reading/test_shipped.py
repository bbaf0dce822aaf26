"""The suite's own kernels, whose sums are known: each property is right, or unknown."""

from __future__ import annotations

import pytest

from conformance import read_contract

SUMS = {"fp64": 53, "int8": 0, "uint8": 0}
"""Dtype -> bits of the accumulator, where they are not fp32's."""
OPERATORS = ("conv_forward", "conv_backward_data", "conv_backward_weight", "conv_transpose_forward",
             "conv_transpose_backward_data", "conv_transpose_backward_weight", "avg_pool_forward",
             "avg_pool_backward", "conv_requantized")  # fmt: skip


@pytest.mark.parametrize("operator", OPERATORS)
def test_definitions_are_read_as_they_are(operator: str):
    for result in read_contract("numpy-direct", operator=operator):
        reading = result.reading
        assert (result.error, reading.wrong, reading.changes, result.contradictions) == ("", False, False, [])
        if reading.nothing:
            assert reading.dtype in ("int8", "uint8")
            continue
        assert reading.bits == SUMS.get(reading.dtype, 24)
        assert {reading.inputs, reading.rounding, reading.algorithm, reading.bias} <= {
            "exact", "nearest", "direct", "before", None,
        }  # fmt: skip
        assert {reading.inputs_flushed, reading.results_flushed} <= {False, None}
        assert (reading.promoted, reading.partial_bits) == (0, 0)
        assert result.contract is not None
        assert result.contract.weakness == ""
        assert (reading.ties or "even", reading.overflow or "saturates") == ("even", "saturates")


def test_torch_is_read_as_it_is():
    pytest.importorskip("torch")
    for dtype in ("fp32", "bf16"):
        (result,) = read_contract("torch-cpu", operator="conv_forward", dtype=dtype)
        assert (result.error, result.contradictions) == ("", [])
        assert (result.reading.bits, result.reading.inputs, result.reading.algorithm) == (24, "exact", "direct")
