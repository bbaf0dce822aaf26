"""Modelled times of a Neuron device in records, summary and page."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conformance.execution.case import Case
from conformance.execution.verify import verify
from conformance.implementations import registry
from conformance.implementations.implementation import Implementation
from conformance.operators import OPERATORS
from conformance.problems import Variant, typed
from conformance.reporting import emulator_counts
from conformance.reporting.emulator_counts import modelled_rows
from conformance.reporting.tally import Tally
from conformance.results import build
from conformance.results.reading import RecordError, decode
from conformance.results.schema import Modelled, Record
from conformance.results.writing import encode
from tests.report_samples import as_read, sample, shown, written

NKI = Path(__file__).parents[1] / "impls" / "nki"


@cache
def emulated() -> Implementation:
    return registry.load([NKI]).implementations["nki@emu"]


def tried(dtype: str = "fp32") -> Record:
    problem = typed("n1 c64 h8 w8 k64 r3 s3 p1")
    case = Case(emulated(), OPERATORS["conv_forward"], problem, Variant(dtype, "nchw", "fixed"), seed=3)
    return build.record(case, verify(case))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_record_holds_the_modelled_time_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, dtype: str):
    plain = tried(dtype)
    monkeypatch.setenv("CONFORMANCE_MODELLED", "1")
    found = tried(dtype)
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
