"""The arithmetic of kernels whose arithmetic is known: each property is right, or unknown where that is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance import Contract, Implementation
from conformance.accumulator import Accumulator
from conformance.engine.reading import ReadContract, read_contract
from tests.reading import kernels as k

NONE: dict[str, Any] = {}


def acme(kernel: Callable[..., Any], dtype: str, operator: str = "conv_forward", **declares: Any) -> Implementation:
    implementation = Implementation("acme", **declares)
    implementation.implements(operator, dtypes=(dtype,))(kernel)
    return implementation


def only(kernel: Callable[..., Any], dtype: str, operator: str = "conv_forward", when: Any = None) -> ReadContract:
    implementation = Implementation("acme")
    implementation.implements(operator, dtypes=(dtype,), when=when)(kernel)
    (result,) = read_contract(implementation)
    return result


def is_3x3(p: Any) -> bool:
    return p.rank == 2 and p.window == (3, 3) and p.groups == 1 and p.stride == p.dilation == (1, 1)


def is_plain(p: Any) -> bool:
    return p.rank == 2 and p.groups == 1 and p.dilation == (1, 1)


FP32 = {"bits": 24, "rounding": "nearest", "inputs": "exact", "input_bits": 24, "group": 1, "algorithm": "direct"}
FP32 |= {"inputs_flushed": False, "results_flushed": False, "promoted": 0, "partial_bits": 0}
UNIT = FP32 | {"rounding": "zero", "group_rounding": "zero", "input_bits": 11, "partial_sums": 1, "bias": "before"}

KNOWN: dict[str, tuple[Any, str, dict[str, Any], dict[str, Any]]] = {
    "sequential": (k.convolution(k.sequential()), "fp32", FP32 | {"partial_sums": 1}, NONE),
    "from the end": (k.convolution(k.sequential(reverse=True)), "fp32", FP32 | {"partial_sums": 1}, NONE),
    "pairwise": (k.convolution(k.pairwise), "fp32", FP32 | {"partial_sums": 32}, NONE),
    "four lanes": (k.convolution(k.lanes(4)), "fp32", FP32 | {"partial_sums": 4}, NONE),
    "fp64 sums of fp32": (k.convolution(k.sequential(np.float64)), "fp32", FP32 | {"bits": 53}, {"accumulate": "fp64"}),
    "fp16 sums": (
        k.convolution(k.sequential(np.float16)), "fp16",
        FP32 | {"bits": 11, "input_bits": 11, "bias": None}, {"accumulate": "fp16"},
    ),
    "bf16 sums": (
        k.convolution(k.sequential(k.BF16)), "bf16",
        FP32 | {"bits": 8, "input_bits": 8, "bias": None}, {"accumulate": "bf16"},
    ),
    "bf16 sums of fp32": (
        k.convolution(k.sequential(k.BF16)), "fp32",
        FP32 | {"bits": 8, "inputs": None, "input_bits": 0}, {"accumulate": "bf16"},
    ),
    "Hopper, FP8": (
        k.convolution(k.unit(32, 13, 13, promote=128)), "fp8_e4m3",
        UNIT | {"bits": 14, "input_bits": 4, "group": 32, "group_bits": 13, "promoted": 128, "promoted_bits": 24,
                "bias": None, "results_flushed": None},
        {"accumulate": "hopper-fp8-promoted"},
    ),
    "FP8, promoted after each group": (
        k.convolution(k.unit(16, 13, 13, promote=16)), "fp8_e4m3",
        UNIT | {"bits": 14, "input_bits": 4, "group": 16, "group_bits": 13, "promoted": 16, "promoted_bits": 24,
                "partial_sums": 4, "bias": None, "results_flushed": None},
        {"accumulate": Accumulator(bits=13, group=16, stored="e8m13", promote=16)},
    ),
    "Ada, FP8, never promoted": (
        k.convolution(k.unit(16, 13, 13)), "fp8_e5m2",
        UNIT | {"bits": 14, "input_bits": 3, "group": 16, "group_bits": 13, "bias": None, "results_flushed": None},
        {"accumulate": "ada-fp8"},
    ),
    "Volta": (k.convolution(k.unit(4, 23)), "fp16", UNIT | {"group": 4, "group_bits": 23}, {"accumulate": "volta-16"}),
    "Ampere": (
        k.convolution(k.unit(8, 24)), "fp16", UNIT | {"group": 8, "group_bits": 24}, {"accumulate": "turing-16"},
    ),
    "Hopper": (
        k.convolution(k.unit(16, 25)), "fp16", UNIT | {"group": 16, "group_bits": 25}, {"accumulate": "hopper-16"},
    ),
    "CDNA3": (
        k.convolution(k.unit(8, 24, rounding=np.floor)), "bf16",
        UNIT | {"input_bits": 8, "group": 8, "group_bits": 24, "rounding": "down", "group_rounding": "down"},
        {"accumulate": "cdna3-16"},
    ),
    "TF32": (
        k.convolution(k.rounded_inputs(k.tf32, k.sequential())), "fp32",
        FP32 | {"inputs": "tf32", "input_bits": 11, "input_rounding": "nearest"}, {"inputs": "tf32"},
    ),
    "TF32, cut": (
        k.convolution(k.rounded_inputs(k.tf32_cut, k.unit(8, 24))), "fp32",
        FP32 | {"inputs": "tf32", "input_bits": 11, "input_rounding": "zero", "rounding": "zero", "group": 8},
        {"inputs": "tf32", "rounding": "zero", "accumulate": "turing-16"},
    ),
    "fp16 inputs": (
        k.convolution(k.rounded_inputs(lambda v: k.kept(v, np.float16), k.sequential())), "fp32",
        FP32 | {"inputs": "fp16", "input_bits": 11} | dict.fromkeys(("inputs_flushed", "results_flushed")),
        {"inputs": "fp16"},
    ),
    "bf16 inputs": (
        k.convolution(k.rounded_inputs(lambda v: k.kept(v, k.BF16), k.sequential())), "fp32",
        FP32 | {"inputs": "bf16", "input_bits": 8}, {"inputs": "bf16"},
    ),
    "bf16x3": (
        k.convolution(k.split_inputs(2, k.BF16, k.X3)), "fp32", FP32 | {"inputs": "bf16x3"}, {"inputs": "bf16x3"},
    ),
    "bf16x6": (
        k.convolution(k.split_inputs(3, k.BF16, k.X6)), "fp32", FP32 | {"inputs": "bf16x6"}, {"inputs": "bf16x6"},
    ),
    "bf16x9": (
        k.convolution(k.split_inputs(3, k.BF16, k.X9)), "fp32", FP32 | {"inputs": "bf16x9"}, {"inputs": "bf16x9"},
    ),
    "split-K, bf16": (
        k.convolution(k.split_k(4, k.BF16)), "bf16",
        FP32 | {"input_bits": 8, "partial_sums": 4, "partial_bits": 8}, {"splits": 4, "partials": "bf16"},
    ),
    "split-K, fp32": (k.convolution(k.split_k(4, np.float32)), "fp32", FP32 | {"partial_sums": 4}, NONE),
    "flushes": (
        k.convolution(k.sequential(), flush=True), "fp32",
        FP32 | {"inputs_flushed": True, "results_flushed": True}, {"subnormals": "flushed"},
    ),
    "flushes filters": (
        k.convolution(lambda a, b: k.sequential()(a, k.flushed(b))), "fp32",
        FP32 | {"inputs_flushed": True, "flushed_operand": "w"}, {"subnormals": "flushed"},
    ),
    "bias after": (
        k.convolution(k.sequential(), bias_after=True), "bf16", FP32 | {"input_bits": 8, "bias": "after"}, NONE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_arithmetic_is_read_off(name: str):
    kernel, dtype, expected, declared = KNOWN[name]
    result = only(kernel, dtype, when=is_plain)
    assert result.error == result.reading.nothing == ""
    assert {field: getattr(result.reading, field) for field in expected} == expected
    assert result.contract == Contract(**declared)
    assert bool(result.contradictions) == (declared != NONE and name != "fp64 sums of fp32")


@pytest.mark.parametrize(
    ("kernel", "algorithm"), [(k.winograd(m), f"winograd-f{m}") for m in (2, 4, 6)] + [(k.fft, "fft")]
)
@pytest.mark.parametrize("elsewhere", [True, False])
def test_transforms_are_told_apart(kernel: Any, algorithm: str, elsewhere: bool):
    """A library has another path for other windows, of which the rest is read, or no other path."""
    direct = k.convolution(k.sequential())

    def conv_forward(x: Any, w: Any, bias: Any, *, stride: Any, padding: Any) -> Any:
        if w.shape[2:] == (3, 3):
            return kernel(x, w, bias, padding=padding)
        return direct(x, w, bias, stride=stride, padding=padding)

    result = only(conv_forward, "fp32", when=is_plain if elsewhere else is_3x3)
    assert result.reading.algorithm == algorithm
    assert result.reading.bits == (24 if elsewhere else 0)
    assert result.contract == Contract(algorithm=algorithm)
    assert result.contradictions == ["algorithm"]
    assert ("what is unknown may need more" in result.explain()) == (not elsewhere)


@pytest.mark.parametrize("m", [0, 2, 4])
def test_transforms_of_transposed_convolutions_are_read_off(m: int):
    forward = k.winograd(m) if m else k.convolution(k.sequential())

    def conv_transpose_backward_data(dy: Any, w: Any, *, padding: Any) -> Any:
        return forward(dy, w, None, padding=padding, **({} if m else {"stride": (1, 1)}))

    result = only(conv_transpose_backward_data, "fp32", "conv_transpose_backward_data", is_3x3)
    assert result.reading.algorithm == (f"winograd-f{m}" if m else "direct")


@pytest.mark.parametrize("rounding", [np.rint, np.trunc, np.floor, np.ceil])
def test_roundings_of_results_are_told_apart(rounding: Any):
    result = only(k.convolution(k.stored(7, rounding, k.sequential())), "bf16", when=is_plain)
    names = {np.rint: "nearest", np.trunc: "zero", np.floor: "down", np.ceil: "up"}
    assert result.reading.result_rounding == names[rounding]
    assert result.contradictions == ([] if rounding is np.rint else ["stored"])
    assert ("no contract says: results that are" in result.explain(200)) == (rounding is not np.rint)


def test_slices_that_share_an_exponent_are_no_transform():
    """A number that is lost beside a large one of its window was said to be lost in an FFT, and a right declaration to
    be contradicted."""
    result = only(k.sliced, "fp32", when=is_plain)
    assert result.reading.algorithm is None
    assert "a large number changes sums of other channels" in result.explain(200)
    assert "algorithm" not in result.contradictions


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("table", "algorithm"), [(False, "running-sums"), (True, "summed-area")])
def test_prefix_sums_are_read_off(table: bool, algorithm: str, dtype: str):
    result = only(k.differences(table), dtype, "avg_pool_forward", lambda p: p.rank == 2)
    assert result.reading.algorithm == algorithm
    assert result.contract == Contract(algorithm=algorithm)
    assert result.contradictions == ["algorithm"]


@pytest.mark.parametrize("ties", ["even", "away", "up", "gemmlowp"])
def test_ties_are_read_off(ties: str):
    result = only(k.requantized(ties), "int8", "conv_requantized", is_plain)
    assert (result.reading.ties, result.contract) == (ties, Contract(ties=ties))
    assert result.contradictions == ([] if ties == "even" else ["ties"])


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("saturates", [True, False])
def test_overflow_is_read_off(dtype: str, saturates: bool):
    result = only(k.requantized(saturates=saturates), dtype, "conv_requantized", is_plain)
    overflow = "saturates" if saturates else "nonfinite"
    assert (result.reading.overflow, result.reading.bits) == (overflow, 24)
    assert result.contract == Contract(overflow=overflow)


def test_results_that_change_are_said_to():
    result = only(k.convolution(k.restless(k.sequential())), "fp32", when=is_plain)
    assert result.reading.changes
    assert (result.contract, result.contradictions) == (None, [])
    assert "results change from call to call" in result.explain()


def test_nothing_is_read_off_wrong_results():
    right = k.convolution(k.sequential())
    result = only(
        lambda x, w, bias, *, stride, padding: 2 * right(x, w, bias, stride=stride, padding=padding),
        "fp32",
        when=is_plain,
    )
    assert result.reading.wrong
    assert result.contract is None
