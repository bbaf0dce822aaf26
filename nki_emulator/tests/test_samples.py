"""Kernels that others published, unmodified, in the emulator: those of the checkouts in CONFORMANCE_NKI_SAMPLES."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nki_emulator.tests import own_tests, public
from nki_emulator.tests.calls import Array, Call
from nki_emulator.tests.definitions import SUM

VARIABLE = "CONFORMANCE_NKI_SAMPLES"
FOLDER = os.environ.get(VARIABLE)
HOW = "; ".join(source.clone for source in public.SOURCES)
needs_folder = pytest.mark.skipif(FOLDER is None, reason=f"{VARIABLE} names no folder of checkouts: {HOW}")


def _checkouts() -> Iterator[public.Source]:
    folder = Path(FOLDER or "")
    return (source for source in public.SOURCES if FOLDER and (folder / source.folder).is_dir())


@needs_folder
@pytest.mark.parametrize("source", list(_checkouts()), ids=lambda source: source.folder)
def test_public_kernels(source: public.Source):
    found = list(public.outcomes(Path(FOLDER or ""), source))
    assert found
    assert [str(outcome) for outcome in found if outcome.outcome in ("wrong", "unexplained")] == []


@needs_folder
def test_folder_holds_checkouts():
    assert list(_checkouts()), f"none of the checkouts lies in {FOLDER}: {HOW}"


KERNEL = """import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def add(a, b):
    y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nl.store(y, value=nl.{what})
    return y
"""
PAIR = (Array((4, 3)), Array((4, 3)))


@pytest.mark.parametrize(
    ("what", "refused", "outcome"),
    [
        ("load(a) + nl.load(b)", (), "right"),
        ("load(a) - nl.load(b)", (), "wrong"),
        ("load(a) + b", (), "unexplained"),
        ("load(a) + b", ("buffer",), "refused"),
        ("load(a) + nl.load(b)", ("buffer",), "unexplained"),
        ("all_reduce(nl.load(a), nl.add, 0)", (), "not implemented"),
        ("load(a) + no_such_name", (), "unexplained"),
    ],
)
def test_outcomes(what: str, refused: tuple[str, ...], outcome: str, tmp_path: Path):
    path = tmp_path / "kernel.py"
    path.write_text(KERNEL.format(what=what))
    call = Call("kernel.py", "add", PAIR, SUM, refused=refused, page="a page")
    assert public.called(call, path, "here").outcome == outcome


OWN = """import unittest
import numpy as np

class TestOwn(unittest.TestCase):
  def test_it(self):
    a = np.ones((4, 3), np.float32)
    self.assertTrue(np.allclose(add(a, a), a * {factor}))
"""


@pytest.mark.parametrize(("factor", "outcome"), [(2, "right"), (2.0001, "wrong")])
def test_outcomes_of_own_tests(factor: float, outcome: str, tmp_path: Path):
    path = tmp_path / "test_own.py"
    path.write_text(KERNEL.format(what="load(a) + nl.load(b)") + OWN.format(factor=factor))
    assert [found.outcome for found in public.tested(path, "here")] == [outcome]
    assert np.allclose(1, 1 + 1e-9)  # NumPy's own is back, which is stricter while such tests run


def test_tolerance_follows_the_format():
    ones = np.ones(4, np.float32)
    assert own_tests.agrees(ones, ones * (1 + 2.0**-16))
    assert not own_tests.agrees(ones, ones * (1 + 2.0**-13))
    assert own_tests.agrees(ones, ones * (1 + 2.0**-8), "bfloat16")
    assert own_tests.agrees(ones.astype(np.float16), ones * (1 + 2.0**-11))
    assert not own_tests.agrees(ones.astype(int), ones.astype(int) + 1)
    assert not own_tests.agrees(np.array([np.nan, 1]), np.array([1.0, 1]))
    assert own_tests.agrees(np.array([np.inf, 1]), np.array([np.inf, 1]))


def test_counts_are_by_source():
    found = [public.Outcome("one", "a", "right"), public.Outcome("two", "b", "not implemented")]
    lines = public.summary(found).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["one", "1", "0", "0", "0", "0", "1"],
        ["two", "0", "0", "1", "0", "0", "1"],
        ["all", "1", "0", "1", "0", "0", "2"],
    ]
