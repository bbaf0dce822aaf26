"""`conformance contract`: what it prints, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

import conformance
from tests.kit import command

FILE = """
import numpy as np
from conformance import Contract, Implementation, Unsupported
from tests.reading import kernels as k

acme = Implementation("acme"{declares})

@acme.implements("conv_forward", dtypes=("{dtype}",), when=lambda p: p.rank == 2 and p.groups == p.dilation[0] == 1)
def conv_forward(x, w, bias, *, stride, padding):
    {body}
"""
RIGHT = "return k.convolution(k.sequential())(x, w, bias, stride=stride, padding=padding)"
TF32 = "return k.convolution(k.rounded_inputs(k.tf32, k.sequential()))(x, w, bias, stride=stride, padding=padding)"


def written(folder: Path, body: str = RIGHT, dtype: str = "fp32", declares: str = "") -> str:
    file = folder / "acme.py"
    file.write_text(FILE.format(body=body, dtype=dtype, declares=declares))
    return str(file)


def test_a_reading_names_the_line_to_declare(tmp_path: Path):
    code, text = command("contract", written(tmp_path, TF32, declares=', contract=Contract(inputs="tf32")'))
    assert code == 0
    assert 'declare       contract=Contract(inputs="tf32")\n' in text
    assert "inputs        tf32, 11 bits to nearest  (6 probes agree)" in text
    assert "order         one after another  (16 probes agree)\n                0 + 1 + 2 + ... + 63\n" in text
    assert "CONTRADICTION" not in text


@pytest.mark.parametrize("columns", [80, 160])
def test_lines_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int):
    monkeypatch.setenv("COLUMNS", str(columns))
    body = "return k.convolution(k.unit(32, 13, 13))(x, w, bias, stride=stride, padding=padding)"
    code, text = command("contract", written(tmp_path, body, "fp8_e4m3"))
    assert code == 1
    assert max(map(len, text.splitlines())) < columns
    assert 'contract=Contract(accumulate="hopper-fp8")' in text


def test_a_folder_that_is_no_package_is_refused(tmp_path: Path):
    """It was named as a FileNotFoundError of its __init__.py."""
    code, text = command("contract", str(tmp_path))
    assert (code, text) == (4, f"error: kernel {tmp_path}: a folder without __init__.py; name a file in it\n")


def test_a_kernel_that_refuses_values_is_not_read(tmp_path: Path):
    """It ended the command, and a run that wanted to know its arithmetic, with a traceback."""
    refusing = "if abs(x).max(initial=0) > 1e4: raise Unsupported('beyond the range')\n    y = "
    noise = "np.sin(np.arange(y.size)).reshape(y.shape) * 1e-4"
    wrong = f"{refusing}{RIGHT.removeprefix('return ')}\n    return (y + {noise}).astype(y.dtype)"
    file = written(tmp_path, wrong)
    error = "error         the kernel refuses inputs that are needed: beyond the range\n"
    assert command("contract", file) == (1, f"conv_forward in fp32\n  {error}")
    code, text = command("run", file, "--level=smoke", "--distribution=fixed", "--dtype=fp32")
    assert (code, "declare" in text) == (1, False)


def test_a_contradiction_has_one_line_and_its_exit_code(tmp_path: Path):
    code, text = command("contract", written(tmp_path, TF32))
    assert code == 1
    (line,) = [line for line in text.splitlines() if "CONTRADICTION" in line]
    assert line == "  CONTRADICTION contract=Contract() is declared, which allows no such inputs"


@pytest.mark.parametrize(
    ("body", "said"),
    [("raise ValueError('no such shape')", "ValueError: no such shape"), ("import os; os.abort()", "crashed"),
     ("while True: pass", "no answer within 1 s"), ("return None", "conv_forward"), ("return w", "shape")],
)  # fmt: skip
def test_a_call_without_a_result_ends_in_a_message(tmp_path: Path, body: str, said: str):
    code, text = command("contract", written(tmp_path, body), "--timeout=1")
    assert code == 1
    assert text.startswith("conv_forward in fp32\n  error         ")
    assert said in text
    assert "Traceback" not in text


def test_refusals_are_no_failure(tmp_path: Path):
    code, text = command("contract", written(tmp_path, "raise Unsupported('none')"))
    assert code == 5
    assert "it supports no small problem whose sums have 32 to 128 terms" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [(["missing.py"], "no such file"), (["numpy-direct", "--dtype=fp31"], "fp31"),
     (["numpy-direct", "--operator=attention"], "attention"), (["numpy-direct", "--timeout=0"], "timeout"),
     (["numpy-direct", "--operator=conv_requantized", "--dtype=fp32"], "has no such kernel")],
)  # fmt: skip
def test_unusable_words_are_told_without_a_traceback(words: list[str], said: str):
    code, text = command("contract", *words)
    assert code == 4
    assert said in text
    assert "Traceback" not in text


def test_the_function_returns_what_the_command_prints(tmp_path: Path):
    (result,) = conformance.read_contract(written(tmp_path, TF32))
    assert result.contract == conformance.Contract(inputs="tf32")
    assert (result.contradictions, result.reading.calls > 100) == (["inputs"], True)


@pytest.mark.parametrize("operator", ["conv_requantized", "matmul_requantized"])
def test_ties_of_whole_numbers_are_read(operator: str):
    """The command ended with a KeyError, as whole numbers have no format."""
    code, text = command("contract", "numpy-direct", f"--operator={operator}", "--dtype=int8")
    assert code == 0
    assert "ties          even" in text
    assert "it is the default" in text


def test_operators_without_sums_say_so():
    code, text = command("contract", "numpy-direct", "--operator=max_pool_forward", "--dtype=fp32")
    assert (code, text) == (
        5,
        "max_pool_forward in fp32\n  nothing read  its results are neither sums of products nor averages\n",
    )
