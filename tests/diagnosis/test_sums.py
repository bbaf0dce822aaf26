"""How a kernel adds, read off it by calls whose sums every order of addition gives exactly."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance.accumulator import Accumulator
from conformance.contract import Contract
from conformance.diagnosis.sums import read
from conformance.dtypes import STORAGE
from conformance.operators import OPERATORS, Arrays, parse

CONV = "n1 c48 h4 w4 k2 r1 s1"


def blocks(name: str, axis: int, size: int, inputs: Arrays) -> list[Arrays]:
    """Inputs of which one operand has only a block of its elements, for each block along an axis."""
    whole, parts = inputs[name], []
    for start in range(0, whole.shape[axis], size):
        kept = np.zeros_like(whole)
        index = (*[slice(None)] * axis, slice(start, start + size))
        kept[index] = whole[index]
        parts.append(inputs | {name: kept})
    return parts


def adding(operator: str, geometry: Any, dtype: str, split: tuple[str, int, int], keep: Any) -> Any:
    """A kernel that adds blocks of an operand, split along an axis; `keep` is applied to each partial sum."""

    def compute(inputs: Arrays) -> Arrays:
        total: Any = 0
        for part in blocks(*split, inputs):
            total = keep(total + next(iter(OPERATORS[operator].reference(geometry, part).values())))
        (output, tensor), *_ = OPERATORS[operator].outputs(geometry).items()
        return {output: np.asarray(total).astype(STORAGE[tensor.stored_as(dtype)])}

    return compute


def as_format(dtype: Any) -> Any:
    return lambda values: values.astype(dtype).astype(np.float64)


BF16 = ml_dtypes.bfloat16
SAID = [
    ("conv_forward", CONV, "fp32", ("w", 1, 16), as_format(BF16), "partial sums are kept in 8 bits, as bf16 has"),
    ("conv_forward", CONV, "bf16", ("w", 1, 16), as_format(BF16), "partial sums are kept in 8 bits, as bf16 has"),
    ("conv_forward", CONV, "fp32", ("w", 1, 1), as_format(np.float16), "kept in 11 bits, as tf32 or fp16 has"),
    ("conv_forward", CONV, "fp64", ("w", 1, 1), as_format(np.float32), "kept in 24 bits, as fp32 has"),
    ("conv_backward_weight", "n6 c2 h5 w5 k2 r3 s3", "fp32", ("dy", 0, 1), as_format(BF16), "kept in 8 bits"),
    ("conv_forward", "n1 c1056 h2 w2 k2 r1 s1", "int8", ("w", 1, 528), as_format(np.float32), "2^24 are rounded"),
    ("conv_forward", CONV, "int8", ("w", 1, 2), lambda v: np.clip(v, -(2**15), 2**15 - 1), "kept in 16 bits"),
    ("conv_requantized", "q n1 c8 h3 w3 k2 r1 s1 zx-100", "int8", None, None, "kept in 16 bits"),
]


@pytest.mark.parametrize(("operator", "problem", "dtype", "split", "keep", "said"), SAID)
def test_how_sums_are_kept_is_read_off(operator: str, problem: str, dtype: str, split: Any, keep: Any, said: str):
    geometry = parse(problem)
    compute = adding(operator, geometry, dtype, split, keep) if split else pair_sums(geometry)
    assert said in read(OPERATORS[operator].on(geometry), dtype, compute, Contract())


def cut(values: np.ndarray) -> Any:
    """Cut to 13 significant bits, toward zero."""
    step = np.ldexp(1.0, np.frexp(values)[1] - 13)
    return np.trunc(values / step) * step


@pytest.mark.parametrize(
    ("contract", "said"),
    [
        (Contract(), "partial sums are kept in 13 bits instead of 24"),
        (Contract(accumulate=Accumulator(13, stored="e8m13")), "partial sums are kept in 13 bits instead of 14"),
        (Contract(accumulate=Accumulator(12)), ""),
        (Contract(accumulate="bf16"), ""),
        (Contract(splits=2, partials="fp16"), ""),
        (Contract(algorithm="fft"), ""),
    ],
)
def test_bits_are_compared_with_those_that_are_declared(contract: Contract, said: str):
    """Numbers of fp8 reach from 2^-6 to 2^8, so that ones beside 2^13 were not tried."""
    workload = OPERATORS["conv_forward"].on(parse(CONV))
    compute = adding("conv_forward", workload.geometry, "fp8_e4m3", ("w", 1, 16), cut)
    assert read(workload, "fp8_e4m3", compute, contract) == said


def test_sums_of_some_elements_alone_are_read_off():
    """Only the last column of y is added in bf16."""
    workload = OPERATORS["conv_forward"].on(parse(CONV))
    short = adding("conv_forward", workload.geometry, "fp32", ("w", 1, 16), as_format(BF16))

    def compute(inputs: Arrays) -> Arrays:
        y = workload.reference(inputs)["y"].astype(np.float32)
        y[..., -1] = short(inputs)["y"][..., -1]
        return {"y": y}

    assert "kept in 8 bits" in read(workload, "fp32", compute, Contract())


def test_few_calls_show_that_sums_are_right():
    calls = list[Arrays]()
    workload = OPERATORS["conv_forward"].on(parse(CONV))

    def compute(inputs: Arrays) -> Arrays:
        calls.append(inputs)
        return {"y": workload.reference(inputs)["y"].astype(np.float32)}

    assert not read(workload, "fp32", compute, Contract())
    assert len(calls) <= 4


def pair_sums(geometry: Any) -> Any:
    """A requantized 1x1 convolution that adds saturated sums of pairs of products."""

    def compute(inputs: Arrays) -> Arrays:
        x = inputs["x"].astype(np.int64) - geometry.x_zero_point
        products = np.einsum("kc,nchw->nkchw", inputs["w"][:, :, 0, 0].astype(np.int64), x)
        pairs = np.clip(products[:, :, ::2] + products[:, :, 1::2], -(2**15), 2**15 - 1).sum(2)
        scaled = np.rint(pairs * inputs["scale"].astype(np.float64).reshape(-1, 1, 1)) + geometry.y_zero_point
        return {"y": np.clip(scaled, -128, 127).astype(np.int8)}

    return compute


def running(inputs: Arrays) -> Arrays:
    """Averages of five elements as differences of sums from the first element on."""
    sums = np.cumsum(inputs["x"], axis=-1, dtype=np.float32)
    before = np.concatenate([np.zeros_like(sums[..., :1]), sums], -1)
    return {"y": (before[..., 5:] - before[..., :-5]) / np.float32(5)}


def test_running_sums_are_read_off():
    geometry = parse("pool n1 c2 w24 s5 u1")
    assert "outside of their windows" in read(OPERATORS["avg_pool_forward"].on(geometry), "fp32", running, Contract())


@pytest.mark.parametrize(
    ("operator", "problem", "dtype"),
    [*(row[:3] for row in SAID), ("conv_forward", "n2 c6 h6 w7 k4 r3 s3 u2 p1 g2 b1", "bf16"),
     ("avg_pool_forward", "pool n1 c2 w24 s5 u1", "bf16"), ("conv_forward", CONV, "fp8_e4m3"),
     ("conv_transpose_forward", "convt n1 c4 h3 w3 k4 r2 s2 g2", "fp16"),
     ("conv_backward_data", "n1 c2 h6 w7 k6 r3 s3 g2 u2", "fp64")],
)  # fmt: skip
def test_nothing_is_said_of_right_sums(operator: str, problem: str, dtype: str):
    geometry = parse(problem)

    def right(inputs: Arrays) -> Arrays:
        tensors = OPERATORS[operator].outputs(geometry)
        exact = OPERATORS[operator].reference(geometry, inputs)
        return {name: array.astype(STORAGE[tensors[name].stored_as(dtype)]) for name, array in exact.items()}

    assert not read(OPERATORS[operator].on(geometry), dtype, right, Contract())
