"""Tensors that a kernel places itself: memory that two of them share belongs to the later one."""

from __future__ import annotations

import numpy as np
import pytest

from nki_emulator import EmulationError
from nki_emulator.tests.sources import HEADER, indented, loaded

BODY = """y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
first = nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.{memory}, address=(0, {first}))
nisa.memset(dst=first, value=1.0)
second = nl.ndarray((4, {columns}), dtype=nl.float32, buffer=nl.{other}, address=(0, {start}))
nisa.memset(dst=second, value=2.0)
result = nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.sbuf)
nisa.tensor_copy(dst=result, src=first)
nisa.dma_copy(dst=y, src=result)
return y"""


FIRST = {"sbuf": 64, "psum": 2048}
"""Where the first tensor lies; in PSUM tensors are placed at the beginning of a bank."""


def _run(tmp_path, **places) -> np.ndarray:
    source = f"{HEADER}def kernel(a):\n{indented(BODY.format(first=FIRST[places['memory']], **places))}"
    found: np.ndarray = loaded(tmp_path, source).kernel(np.zeros((4, 8), np.float32))
    return found


APART = (("sbuf", "sbuf", 8, 96), ("sbuf", "sbuf", 16, 0), ("sbuf", "psum", 8, 2048), ("psum", "psum", 8, 4096))
SHARED = (("sbuf", "sbuf", 8, 92), ("sbuf", "sbuf", 17, 0), ("sbuf", "sbuf", 2, 72), ("psum", "psum", 1, 2048))


@pytest.mark.parametrize(("memory", "other", "columns", "start"), APART)
def test_apart(tmp_path, memory: str, other: str, columns: int, start: int):
    found = _run(tmp_path, memory=memory, other=other, columns=columns, start=start)
    np.testing.assert_array_equal(found, np.ones((4, 8)))


@pytest.mark.parametrize(("memory", "other", "columns", "start"), SHARED)
def test_shared(tmp_path, memory: str, other: str, columns: int, start: int):
    with pytest.raises(EmulationError) as caught:
        _run(tmp_path, memory=memory, other=other, columns=columns, start=start)
    assert caught.value.rule == f"{'psum-' if memory == 'psum' else ''}uninitialised"
    assert "first" in BODY.splitlines()[caught.value.line - 8]
