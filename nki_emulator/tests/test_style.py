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

FOLDER = Path(__file__).parent / "style"
POOL = Array((8, 12, 9))
CALLS = (
    Call("pooling.py", "pool", (POOL, 3), definitions.AVERAGE_POOL),
    Call("pooling.py", "pool", (replace(POOL, dtype="bf16"), 3), definitions.AVERAGE_POOL),
    Call("pooling.py", "pool_rounding_between", (POOL, 3), definitions.AVERAGE_POOL),
    Call("matmul.py", "matmul", (Array((256, 128)), Array((256, 1024))), definitions.PRODUCT),
    Call("matmul.py", "matmul", (Array((150, 140)), Array((150, 600))), definitions.PRODUCT),
    Call("matmul.py", "matmul", (Array((40, 30), "bf16"), Array((40, 50), "bf16")), definitions.PRODUCT),
    Call("transpose.py", "transpose_free", (Array((5, 12)), 3, 4), definitions.TRANSPOSE_FREE),
    Call("transpose.py", "transpose", (Array((256, 128), "bf16"),), definitions.TRANSPOSE),
    Call("rows.py", "softmax", (Array((200, 70), low=-20, high=20),), definitions.SOFTMAX),
    Call("rows.py", "rms_norm", (Array((200, 70)), Array((70,))), definitions.RMS_NORM),
    Call("rows.py", "rms_norm", (Array((128, 512)), Array((512,))), definitions.RMS_NORM),
    Call("rows.py", "layer_norm", (Array((200, 70)), 1e-5, Array((70,)), Array((70,))), definitions.LAYER_NORM),
    Call("rows.py", "layer_norm", (Array((30, 700)), 1e-3, Array((700,)), Array((700,))), definitions.LAYER_NORM),
)


def _adapted(call: Call) -> Call:
    """The function of a flat transpose takes the shape, the kernels its sizes."""
    if call.kernel != "transpose_free":
        return call
    transposed = call.definition
    assert isinstance(transposed, definitions.Definition)
    return replace(call, definition=definitions.Definition(lambda x, *shape: transposed.expected(x, shape)))


@pytest.mark.parametrize("generation", ["beta_", ""], ids=["beta", "present"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.kernel}-{call.arguments[0].dtype}")
def test_kernel(call: Call, generation: str):
    module = load(FOLDER / f"{generation}{call.file}")
    assert _adapted(call).run(module) == []


@pytest.mark.parametrize("generation", ["beta_", ""], ids=["beta", "present"])
def test_bounds_see_a_wrong_last_row(generation: str):
    """The same calls detect a kernel that leaves one result as it was for the row before."""
    module: Any = load(FOLDER / f"{generation}rows.py")
    right = module.softmax

    def wrong(x: np.ndarray) -> np.ndarray:
        found = np.asarray(right(x))
        found[-1] *= np.float32(1 + 2.0**-15)
        return found

    module.softmax = wrong
    (call,) = [call for call in CALLS if call.kernel == "softmax"]
    assert len(call.run(module)) == 1
