"""`conformance neuron-model`, and modelled times in records, summary and page."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conformance.__main__ import main
from conformance.execution.case import Case
from conformance.execution.verify import verify
from conformance.exit_codes import ExitCode
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
from conformance.timing.neuron_model import BEGIN, END
from tests.report_samples import as_read, sample, shown, written

NKI = Path(__file__).parents[1] / "impls" / "nki"
ROW_START = "| resnet50.conv5.3x3@7 | forward |"
SMALL = ["--layers", "resnet50.conv5", "--direction", "forward", "--dtypes", "bf16", "--impl", "nki@emu-gen3"]


def _command(folder: Path, *words: str, text: str = f"# Title\n\n{BEGIN}old\n{END}\n\nrest\n") -> tuple[int, str]:
    document = folder / "model.md"
    document.write_text(text)
    return main(["neuron-model", *SMALL, "--into", str(document), *words]), document.read_text()


def test_the_table_is_written_between_the_markers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    status, text = _command(tmp_path, "--csv", str(tmp_path / "rows.csv"))
    assert status == ExitCode.GOOD
    assert text.startswith(f"# Title\n\n{BEGIN}")
    assert text.endswith(f"{END}\n\nrest\n")
    assert "old" not in text
    (row,) = [line for line in text.splitlines() if line.startswith(ROW_START)]
    low, high = (float(part) for part in row.split("|")[6].split(" to "))
    assert 361 / 441 <= low <= high  # of the roofline's products, those that are not with padding
    assert "modelled" in capsys.readouterr().out


def test_an_earlier_run_stands_beside(tmp_path: Path):
    rows = tmp_path / "rows.csv"
    _command(tmp_path, "--csv", str(rows))
    status, text = _command(tmp_path, "--before", str(rows))
    (cells,) = [line.split(" | ") for line in text.splitlines() if line.startswith(ROW_START)]
    assert status == ExitCode.GOOD
    assert "ratio before" in text
    assert cells[5] == cells[6]


WRONG = [
    (["--impl", "nobody"], "nobody", "that models time"),
    (["--before", "{folder}/no.csv"], "no.csv", "No such file"),
    (["--before", "{folder}/bad.csv"], "bad.csv, line 2", "--csv of this command"),
]


@pytest.mark.parametrize(("words", "place", "message"), WRONG)
def test_what_cannot_be_used_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], words, place, message):
    (tmp_path / "bad.csv").write_text("target,dtype\ngen2,bf16\n")
    status, text = _command(tmp_path, *(word.format(folder=tmp_path) for word in words))
    printed = capsys.readouterr().err
    assert status == ExitCode.UNUSABLE
    assert "old" in text
    assert place in printed
    assert message in printed


def test_a_document_without_markers_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    status, text = _command(tmp_path, text="nothing here\n")
    assert (status, text) == (ExitCode.UNUSABLE, "nothing here\n")
    assert "add them where the table goes" in capsys.readouterr().err


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
