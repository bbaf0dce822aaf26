"""What emulators count, and times that they model, are in records, summary and page; else nothing is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from conformance import Implementation, numpy_arrays
from conformance.execution.case import Case
from conformance.execution.verify import verify
from conformance.implementations import registry
from conformance.implementations.bridges.numpy import NumpyArrays
from conformance.operators import OPERATORS
from conformance.problems import Variant, typed
from conformance.reporting import emulator_counts
from conformance.reporting.emulator_counts import modelled_rows, rows
from conformance.reporting.tally import Tally
from conformance.results import build
from conformance.results.reading import RecordError, decode
from conformance.results.schema import Modelled, Record, Work
from conformance.results.writing import encode
from tests import kernels
from tests.report_samples import as_read, sample, shown, written

NKI = Path(__file__).parents[1] / "impls" / "nki"
PROBLEM, LARGER = "n1 c3 h5 w5 k4 r3 s3 p1", "n1 c64 h8 w8 k64 r3 s3 p1"
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
    case = Case(implementation, OPERATORS["conv_forward"], typed(problem), Variant(dtype, "nchw", "fixed"), seed=3)
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


def test_the_summary_shows_it_once_and_only_where_counted():
    loud, silent = Tally(), Tally()
    loud.add(tried(planted(Counting())))
    silent.add(tried(planted(numpy_arrays())))
    assert sum("acme           conv_forward" in line for line in shown(loud, 120)) == 1
    assert not any("traffic" in line for line in shown(silent, 120))


# Modelled times of a device


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_record_holds_the_modelled_time_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, dtype: str):
    plain = tried(emulated(), dtype, LARGER)
    monkeypatch.setenv("CONFORMANCE_MODELLED", "1")
    found = tried(emulated(), dtype, LARGER)
    assert plain.work is not None
    assert found.work is not None
    assert plain.work.modelled is None
    model = found.work.modelled
    assert isinstance(model, Modelled)
    assert 0 < model.roofline < model.lower <= model.scheduled <= model.upper
    assert model.roofline == pytest.approx(found.work.least_bytes / 272_000, rel=1e-4)
    assert model.limit == "dma"
    assert model.shortest_run == 64 * 64 * (4 if dtype == "fp32" else 2)  # the whole image in one run
    assert decode(encode(found)) == found


def test_the_schema_refuses_a_modelled_time_that_is_none():
    model = {"lower": 1.0, "scheduled": 2.0, "upper": 3.0, "roofline": 0.5, "limit": "dma", "shortest_run": 4}
    work = {"least_bytes": 4, "modelled": model}
    assert decode(json.dumps(sample(work=work))).work is not None
    for name, value in (("lower", -1.0), ("roofline", 0.0), ("limit", " "), ("shortest_run", 1.5)):
        with pytest.raises(RecordError, match=f"modelled.{name}"):
            decode(json.dumps(sample(work=work | {"modelled": model | {name: value}})))


def _with(lower: float, upper: float, limit: str, problem: str) -> dict[str, Any]:
    model = {
        "lower": lower, "scheduled": lower, "upper": upper, "roofline": 2.0, "limit": limit, "shortest_run": 4,
    }  # fmt: skip
    return sample(problem=problem, work={"least_bytes": 4, "modelled": model})


CASES = [_with(4.0, 8.0, "dma", "a"), _with(4.0, 40.0, "dma", "b"), _with(2.0, 10.0, "tensor", "c")]
ROW = ("acme", "conv_forward", "3", "10 to 58", "20% to 50%", "5% to 50%", "b", "dma")


def test_the_page_shows_it(tmp_path: Path):
    pytest.importorskip("jinja2", reason="no jinja2 (extra: report)")
    from conformance.reporting.page.merge import load
    from conformance.reporting.page.render import page
    from conformance.reporting.page.tables import Digest

    found = Digest(load([written(tmp_path / "r.jsonl", CASES)]))
    (table,) = (one for one in emulator_counts.tables(found.tally.moved) if one.title == "Modelled time on the device")
    assert table.rows == (ROW,)
    assert table.title in page(found, "t")
    assert not emulator_counts.tables(Digest(load([written(tmp_path / "s.jsonl", [sample()])])).tally.moved)


def test_the_summary_shows_it_and_only_where_it_is_modelled():
    loud, silent = Tally(), Tally()
    for case in CASES:
        loud.add(as_read(case))
    silent.add(as_read(sample(work={"least_bytes": 4})))
    assert list(modelled_rows(loud.moved)) == [ROW]
    assert any("modelled time on the device" in line for line in shown(loud, 120))
    assert not any("modelled" in line for line in shown(silent, 120))
