"""Common kernels in both generations of the API, run by the emulator, against float64 within derived bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nki_emulator import load
from nki_emulator.tests import definitions
from nki_emulator.tests.calls import Array, Call
from nki_emulator.tests.sources import BFLOAT16

FOLDER = Path(__file__).parent / "style"
POOL = Array((8, 12, 9))
CALLS = (
    Call("pooling.py", "pool", (POOL, 3), definitions.AVERAGE_POOL),
    Call("pooling.py", "pool", (replace(POOL, dtype="bf16"), 3), definitions.AVERAGE_POOL),
    Call("pooling.py", "pool_rounding_between", (POOL, 3), definitions.AVERAGE_POOL),
    Call("matmul.py", "matmul", (Array((256, 128)), Array((256, 1024))), definitions.PRODUCT),
    Call("matmul.py", "matmul", (Array((150, 140)), Array((150, 600))), definitions.PRODUCT),
    Call("matmul.py", "matmul", (Array((40, 30), "bf16"), Array((40, 50), "bf16")), definitions.PRODUCT),
)
BOTH = pytest.mark.parametrize("generation", ["beta_", ""], ids=["beta", "present"])


@BOTH
@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.kernel}-{call.arguments[0].dtype}")
def test_kernel(call: Call, generation: str):
    assert call.run(load(FOLDER / f"{generation}{call.file}")) == []


@BOTH
def test_bounds_see_a_wrong_last_row(generation: str):
    module: Any = load(FOLDER / f"{generation}matmul.py")
    right = module.matmul

    def wrong(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        found = np.asarray(right(x, y))
        found[-1] *= np.float32(1 + 2.0**-10)
        return found

    module.matmul = wrong
    assert len(CALLS[4].run(module)) == 1


@BOTH
def test_the_tutorials_own_test_does_not_see_its_rounding(generation: str):
    images = np.arange(72).reshape(2, 6, 6).astype(BFLOAT16)
    found = load(FOLDER / f"{generation}pooling.py").pool_rounding_between(images, 2)
    exact = images.astype(np.float64).reshape(2, 3, 2, 3, 2).mean(axis=(2, 4))
    np.testing.assert_array_equal(found.astype(np.float64), exact)
