"""A run, its records, the page that is made from them, and a check of one case say the same of the same failures."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from conformance.__main__ import main
from conformance.reporting.page.merge import load
from conformance.reporting.page.tables import Digest
from tests.kit import source

POOL = """
import numpy as np

from conformance import Implementation
from tests.field import _right

acme = Implementation("acme")


def right(x, **given):
    return _right.max_pool_forward([x], given | {{"layout": "nchw"}})


@acme.implements("max_pool_forward")
def max_pool_forward(x, **given):
    {body}
"""
CONVOLUTIONS = (
    "return y * 2 if groups > 1 and max(stride) > 1 else y",
    "return kernels.conv_forward(x, w, bias, stride=stride[::-1], padding=padding, dilation=dilation, groups=groups)",
    "return y * y.dtype.type(1 + 2**-11) if bias is not None else y",
)
POOLINGS = (
    "return right(x, **given | {'dilation': (1,) * len(given['dilation'])})",
    "y = right(x, **given); return y + 1 if max(given['stride']) > 2 else y",
)


@pytest.mark.parametrize(
    ("operator", "text"),
    [
        *(("conv_forward", source(body=body)) for body in CONVOLUTIONS),
        *(("max_pool_forward", POOL.format(body=body)) for body in POOLINGS),
    ],
)
def test_run_check_and_page_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], operator: str, text: str
):
    monkeypatch.setenv("COLUMNS", "10000")
    monkeypatch.chdir(tmp_path)
    Path("acme.py").write_text(text)
    assert main(["run", "acme.py", "--level=smoke", f"--operator={operator}", "--records=records.jsonl"]) == 1
    said = capfd.readouterr().out.partition(" failures =")[2].splitlines()
    (first,) = (line.removeprefix("1. ").rpartition(": ")[0] for line in said if line.startswith("1. "))
    beginning = next(place for place, line in enumerate(said) if line.startswith("1. "))
    where = [line for line in said[beginning + 1 : beginning + 2] if line.startswith("fails where ")]
    command, *_ = (line.removeprefix("reproduce: ") for line in said if line.startswith("reproduce: "))

    results = load([Path("records.jsonl")])
    digest = Digest(results)
    ((_, (one, *_)),) = digest.groups
    assert one.title == first
    assert bool(digest.report.where(one)) == bool(where)
    heading, seen = digest.report.heading(one)
    assert [f"fails where {heading.rpartition(', where ')[2]}: {seen}"] == where or not where

    assert main([*shlex.split(command)[1:], "--where"]) == 1
    checked = capfd.readouterr().out.splitlines()
    # how many cases were seen differs: the case that is checked is one of them
    condition, *_ = (line.partition(": ")[0] for line in (*where, ""))
    assert [line.partition(": ")[0] for line in checked if line.startswith("fails where ")] == [condition] * len(where)
    assert first in checked
