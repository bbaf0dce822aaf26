"""What emulators count is in records and summary; where there is nothing, nothing is said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from conformance import Implementation, numpy_arrays
from conformance.execution.trial import Trial
from conformance.execution.verify import verify
from conformance.implementations import registry
from conformance.implementations.bridges.numpy import NumpyArrays
from conformance.operators import OPERATORS
from conformance.problems import Variant, typed
from conformance.reporting.emulator_counts import rows
from conformance.results import build
from conformance.results.schema import Record, Work
from tests import kernels

NKI = Path(__file__).parents[1] / "impls" / "nki"
PROBLEM = "n1 c3 h5 w5 k4 r3 s3 p1"
LEAST = 4 * (75 + 108 + 100)


@dataclass(frozen=True, slots=True)
class Counting(NumpyArrays):
    """Counts, once the block has ended, what a call did."""

    @contextmanager
    def metered(self) -> Iterator[dict[str, int]]:
        counts: dict[str, int] = {}
        yield counts
        counts |= {"dma_bytes": 3 * LEAST, "instructions": 7, "matmuls": 2}


def tried(implementation: Implementation, dtype: str = "fp32", problem: str = PROBLEM) -> Record:
    case = Trial(implementation, OPERATORS["conv_forward"], typed(problem), Variant(dtype, "nchw", "fixed"), seed=3)
    return build.record(case, verify(case))


def planted(arrays: NumpyArrays) -> Implementation:
    implementation = Implementation("acme", arrays=arrays)
    implementation.implements("conv_forward")(kernels.conv_forward)
    return implementation


@cache
def emulated() -> Implementation:
    return registry.load([NKI]).implementations["nki@emu"]


def counted(record: Record) -> Work:
    assert record.work is not None
    return record.work


def test_a_record_holds_what_a_bridge_counts_and_the_least():
    found = tried(planted(Counting()))
    assert found.status == "pass"
    assert (counted(found).dma_bytes, counted(found).least_bytes) == (3 * LEAST, LEAST)


def test_without_a_meter_a_record_says_nothing():
    assert tried(planted(numpy_arrays())).work is None


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_emulator_counts_one_call(dtype: str):
    found = tried(emulated(), dtype)
    assert found.status == "pass", found.reason
    work = counted(found)
    assert work.matmuls == 2  # three channels: the taps are packed onto the partitions
    assert work.dma_bytes == work.least_bytes == LEAST // (1 if dtype == "fp32" else 2)
    assert 0 < work.sbuf_peak < 180_224


def test_the_table_names_the_problem_that_moves_most():
    cases = [
        (replace(tried(planted(Counting())), problem=problem), Work(least_bytes=4, dma_bytes=n, instructions=i))
        for problem, n, i in (("small", 4, 3), ("ragged", 10, 4), ("large", 5, 5))
    ]
    (row,) = rows({("acme", "conv_forward"): cases})
    assert row == ("acme", "conv_forward", "3", "1.25", "2.50", "ragged", "12", "0")
