"""The first generation of NKI (`neuronxcc.nki`) in the emulator: its rules, masks, grids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nki_emulator import EmulationError, counting, load
from nki_emulator.tests.sources import BETA_HEADER, BFLOAT16, indented, loaded

STYLE = Path(__file__).parent / "style"
VALUES = np.arange(40, dtype=np.float32).reshape(5, 8)


def _kernel(body: str, parameters: str = "a") -> str:
    return f"{BETA_HEADER}@nki.jit\ndef kernel({parameters}):\n{indented(body)}"


MASKED_LOAD = """y = nl.ndarray((8, 8), dtype=a.dtype, buffer=nl.shared_hbm)
p, x = nl.mgrid[0:8, 0:8]
tile = nl.zeros((8, 8), dtype=a.dtype)
tile[p, x] = nl.load(a[p - 2, x], mask=(p >= 2) & (p < 7))
nl.store(y, value=tile)
return y"""


def test_masked_load_keeps_what_is_there(tmp_path):
    found = loaded(tmp_path, _kernel(MASKED_LOAD)).kernel(VALUES)
    np.testing.assert_array_equal(found, np.pad(VALUES, ((2, 1), (0, 0))))


UNDEFINED = """y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
p, x = nl.arange(8)[:, None], nl.arange(8)[None, :]
tile = nl.load(a[p, x], mask=p < 5)
sums = nl.exp(tile * 0.0) * nl.sum(tile, axis=1)
nl.store(y[p, x], value=sums, mask={mask})
return y"""


def test_undefined_rows_may_be_computed_with_but_not_stored(tmp_path):
    found = loaded(tmp_path, _kernel(UNDEFINED.format(mask="p < 5"))).kernel(VALUES)
    np.testing.assert_array_equal(found, np.broadcast_to(VALUES.sum(1, keepdims=True), VALUES.shape))
    with pytest.raises(EmulationError) as caught:
        loaded(tmp_path, _kernel(UNDEFINED.format(mask="p < 6"))).kernel(np.pad(VALUES, ((0, 3), (0, 0))))
    assert caught.value.rule == "uninitialised"


@pytest.mark.parametrize("use", ["nl.store(y, value=kept[0])", "kept[0][...] = nl.load(a)"], ids=["read", "write"])
def test_tile_of_another_call(tmp_path, use: str):
    body = f"y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)\nkept.append(nl.load(a))\n{use}\n"
    kernel = loaded(tmp_path, _kernel(f"{body}nl.store(y, value=kept[-1])\nreturn y")).kernel
    np.testing.assert_array_equal(kernel(VALUES), VALUES)
    with pytest.raises(EmulationError) as caught:
        kernel(VALUES)
    assert caught.value.rule == "stale-tensor"


GRID = """y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
i, j = nl.program_id(0), nl.program_id(1)
nl.store(y[nl.ds(2 * i, 2), nl.ds(4 * j, 4)], value=nl.load(a[nl.ds(2 * i, 2), nl.ds(4 * j, 4)]) + nl.num_programs(1))
return y"""


def test_grid_shares_its_output(tmp_path):
    kernel = loaded(tmp_path, _kernel(GRID)).kernel
    np.testing.assert_array_equal(kernel[2, 2](VALUES[:4]), VALUES[:4] + 2)
    with pytest.raises(EmulationError, match="output-unwritten"):
        kernel[2, 1](VALUES[:4])


def test_results_stored_into_an_argument(tmp_path):
    module = loaded(tmp_path, _kernel("nl.store(y, value=nl.load(a) + a.shape[0])", "a, y"))
    y = np.zeros_like(VALUES)
    assert module.nki.simulate_kernel(module.kernel, VALUES, y) is None
    np.testing.assert_array_equal(y, VALUES + 5)


INSIDE = """import neuronxcc.nki.isa as engine
y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
nl.store(y, value=engine.tensor_copy(nl.load(a)))
return y"""


def test_import_inside_a_kernel(tmp_path):
    np.testing.assert_array_equal(loaded(tmp_path, _kernel(INSIDE)).kernel(VALUES), VALUES)


PROMOTED = """y = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.shared_hbm)
tile = nl.load(a)
assert (tile + 2).dtype == nl.bfloat16
assert (tile + 2.0).dtype == nl.float32
assert nl.add(tile, nl.copy(tile, dtype=nl.float16)).dtype == nl.float32
assert nl.add(nl.copy(tile, dtype=np.int8), nl.copy(tile, dtype=np.uint8)).dtype == nl.int16
nl.store(y, value=tile + 2.0)
return y"""


def test_types_of_results(tmp_path):
    found = loaded(tmp_path, _kernel(PROMOTED)).kernel(VALUES.astype(BFLOAT16))
    np.testing.assert_array_equal(found, VALUES + 2)


def test_counts(tmp_path):
    with counting() as counters:
        loaded(tmp_path, _kernel(MASKED_LOAD)).kernel(VALUES)
    assert (counters.dma_bytes_out, counters.instructions["load"], counters.instructions["store"]) == (256, 1, 1)
    with counting() as counters:
        load(STYLE / "beta_matmul.py").matmul(np.ones((200, 30), np.float32), np.ones((200, 600), np.float32))
    assert (counters.matmuls, counters.macs) == (4, 4 * 128 * 128 * 512)
