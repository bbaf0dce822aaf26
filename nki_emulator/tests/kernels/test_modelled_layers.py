"""`python -m impls.nki.modelled_layers`: layers of networks on a model of the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.exit_codes import ExitCode
from impls.nki.modelled_layers import BEGIN, END, main

ROW_START = "| resnet50.conv5.3x3@7 | forward |"
SMALL = ["--layers", "resnet50.conv5", "--direction", "forward", "--dtypes", "bf16", "--impl", "nki@emu-gen3"]


def _command(folder: Path, *words: str, text: str = f"# Title\n\n{BEGIN}old\n{END}\n\nrest\n") -> tuple[int, str]:
    document = folder / "model.md"
    document.write_text(text)
    return main([*SMALL, "--into", str(document), *words]), document.read_text()


def test_the_table_is_written_between_the_markers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    status, text = _command(tmp_path)
    assert status == ExitCode.GOOD
    assert text.startswith(f"# Title\n\n{BEGIN}")
    assert text.endswith(f"{END}\n\nrest\n")
    assert "old" not in text
    (row,) = [line for line in text.splitlines() if line.startswith(ROW_START)]
    low, high = (float(part) for part in row.split("|")[6].split(" to "))
    assert 361 / 441 <= low <= high  # of the roofline's products, those that are not with padding
    assert "modelled" in capsys.readouterr().out


def test_an_implementation_that_models_nothing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    status, text = _command(tmp_path, "--impl", "nobody")
    assert status == ExitCode.UNUSABLE
    assert "old" in text
    assert "--impl nobody: no implementation of impls/nki that models time" in capsys.readouterr().err


def test_a_document_without_markers_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    status, text = _command(tmp_path, text="nothing here\n")
    assert (status, text) == (ExitCode.UNUSABLE, "nothing here\n")
    assert "add them where the table goes" in capsys.readouterr().err
