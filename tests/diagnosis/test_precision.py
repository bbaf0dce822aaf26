"""Hints to declare less precision: one that is copied passes, and what hides a defect is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.diagnosis.diagnose import BITS_LOST
from tests.conftest import ROOT, Project
from tests.documents import UNDECLARED, contract_examples
from tests.kit import command

pytest_plugins = ["pytester"]

ROUNDED = """
import ml_dtypes
import numpy as np

def rounded(y, dtype=ml_dtypes.bfloat16):
    return y.astype(dtype).astype(y.dtype)
"""
SHAPES = (
    "n30 c1 h5 w5 k1 r1 s1 u5x3 p2x1 b1",
    "n1 c3 h4 w4 k1 r1 s1",
    "n2 c8 h6 w6 k6 r3 s3 p1",
    "n2 c8 h9 w9 k6 r3 s3 u2 b1",
)
SELECTION = ("--distribution=fixed", "--distribution=natural", "--dtype=fp32", *(f"--problem={one}" for one in SHAPES))
HINT = re.compile(r"if that is meant,\s+declare\s+contract=(Contract\([^)]*\))")

MEANT = {
    "x = rounded(x); w = rounded(w); y = kernels.conv_forward(x, w, bias, stride=stride, padding=padding, "
    "dilation=dilation, groups=groups); return y": 'Contract(inputs="bf16", accumulate="fp32")',
    "return rounded(y, np.float16)": 'Contract(accumulate="fp16")',
}
"""A kernel's body -> a contract under which it is right."""
DEFECTS = {
    "the last channel alone": "y[:, -1:] = rounded(y[:, -1:]); return y",
    "every second channel": "y[:, ::2] = rounded(y[:, ::2]); return y",
    "one image": "y[-1:] = rounded(y[-1:]); return y",
    "NaN": "return y * float('nan')",
    "a gain": "return y * y.dtype.type(1 + 2**-14)",
    "one element of many": "y.flat[y.size // 2] *= y.dtype.type(1 + 2**-9); return y",
    "one of several problems": "return rounded(y) if bias is not None and y.shape[1] == 6 else y",
}


@pytest.mark.parametrize(("body", "contract"), MEANT.items(), ids=MEANT.values())
def test_a_hint_that_is_copied_passes(project: Project, body: str, contract: str):
    project.kernel(head=ROUNDED, body=body)
    failed = project.run(*SELECTION)
    assert failed.exit == 1
    (hint,) = {*HINT.findall(failed.text.replace("\n", " "))}
    project.kernel(head=ROUNDED, body=body, construct=f", contract={hint}")
    assert project.run(*SELECTION).exit == 0, hint
    project.kernel(head=ROUNDED, body=body, construct=f", contract={contract}")
    assert project.run(*SELECTION).exit == 0


@pytest.mark.parametrize("body", DEFECTS.values(), ids=DEFECTS)
def test_what_is_no_arithmetic_has_no_hint(project: Project, body: str):
    project.kernel(head=ROUNDED, body=body)
    failed = project.run(*SELECTION, "--show=fail")
    assert failed.exit == 1
    assert "mismatched" in failed.text or "NaN" in failed.text
    assert not HINT.search(failed.text.replace("\n", " "))


def test_bits_that_an_accumulator_lacks_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A unit with a bit less than declared was said to leave some results zero, as if never written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fp8.py").write_text(dict(contract_examples())["fp8"].replace(", 13)", ", 12)"))
    exit_code, report = command("run", "fp8.py", "--level=full", "--distribution=absorbed")
    assert exit_code == 1
    title = f"1. {BITS_LOST.name} (partial sums are kept in 13 bits instead of 14): 1 case"
    assert title in " ".join(report.split())


def test_partial_sums_that_are_read_are_the_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No known arithmetic has the errors of stored partial sums, so that nothing was said of what to declare."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "splitk.py").write_text(UNDECLARED.sub("", dict(contract_examples())["splitk"]))
    exit_code, report = command("run", "splitk.py", "--level=smoke", "--distribution=fixed")
    assert exit_code == 1
    assert HINT.findall(" ".join(report.split())) == ['Contract(splits=4, partials="bf16")']


def test_a_transform_that_is_not_declared_has_no_bits_of_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Winograd was said to keep partial sums in 23 bits: it rounds the sums by which bits are read."""
    monkeypatch.chdir(tmp_path)
    imports = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.reading import kernels\n"
    (tmp_path / "wino.py").write_text(
        imports
        + "from conformance import Implementation\n"
        + "wino = Implementation('wino')\n"
        + "plain = lambda p: p.rank == 2 and p.r == p.s == 3 and p.groups == 1 and {*p.stride, *p.dilation} == {1}\n"
        + "wino.implements('conv_forward', when=plain)(kernels.winograd(2))\n"
    )
    exit_code, report = command("run", "wino.py", "--level=smoke", "--dtype=fp32", "--layout=nchw")
    assert exit_code == 1, report
    assert "sums are kept in" not in report, report


def test_results_that_are_cut_on_one_path_are_no_rounded_inputs():
    """It was said that bf16 inputs may be declared, under which the kernel fails: sums of whole numbers are inexact."""
    file = str(Path(__file__).parents[1] / "field" / "requests.py")
    exit_code, report = command(
        "run", file, "--impl=requests-mask-dw-alone-of-bf16-sums", "--level=smoke", "--dtype=fp32"
    )
    assert exit_code == 1
    assert "dw: elements mismatched" in " ".join(report.split())
    assert not HINT.search(" ".join(report.split()))
