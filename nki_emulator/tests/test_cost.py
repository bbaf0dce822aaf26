"""The model of time: formulas, transfers, order. What it is compared with stands in `nki_emulator.tests.measured`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nki_emulator import EmulationError, Modelled, counting, modelling
from nki_emulator.cost import Memory
from nki_emulator.cost_cycles import CLOCKS
from nki_emulator.cost_transfers import BANDWIDTH, EFFICIENCY, LATENCY, occupied
from nki_emulator.tests.measured.publications import PUBLISHED, Published
from nki_emulator.tests.sources import BFLOAT16, HEADER, indented, loaded

TILES = """
x = nl.ndarray(({p}, {n}), dtype=nl.{dtype}, buffer=nl.{memory})
y = nl.ndarray(({p}, {n}), dtype=nl.{dtype}, buffer=nl.sbuf)
z = nl.ndarray(({p}, {n}), dtype=nl.{dtype}, buffer=nl.sbuf)
one = nl.ndarray(({p}, 1), dtype=nl.float32, buffer=nl.sbuf)
"""
OUTPUT = """
out = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=one[0:1, 0:1])
return out"""


def _modelled(folder: Path, body: str, *arguments: Any, target: str = "gen2", computes: bool = False) -> Modelled:
    """Of a kernel with this body and arguments a, b, ..."""
    names = ", ".join("abcdef"[: len(arguments)])
    module = loaded(folder, f"{HEADER}def kernel({names}):\n{indented(body)}", target=target)
    with modelling(arithmetic=computes) as found:
        module.kernel(*arguments)
    return found


def _cycles(folder: Path, line: str, target: str = "gen2", **shape: Any) -> tuple[str, float]:
    """The engine that a line on the tiles x, y, z and one uses, and for how many cycles."""
    body = TILES.format(**{"p": 128, "n": 200, "dtype": "float32", "memory": "sbuf"} | shape) + line + OUTPUT
    (found,) = ((name, load) for name, load in _modelled(folder, body, target=target).engines.items() if name != "dma")
    clock = CLOCKS[int(target[-1])].of(found[0])
    assert found[1].us == pytest.approx(found[1].cycles / clock / 1e3)
    return found[0], found[1].cycles


BF16, PSUM = {"dtype": "bfloat16"}, {"memory": "psum"}
FORMULAS = [
    ("nisa.tensor_copy(dst=y, src=x)", {}, "vector", 200),
    ("nisa.tensor_copy(dst=y[0:128, 0:7], src=x[0:128, 0:7])", {}, "vector", 64),
    ("nisa.tensor_copy(dst=y, src=x, engine=nisa.engine.gpsimd)", {}, "gpsimd", 350),
    ("nisa.tensor_scalar(dst=y, data=x, op0=nl.add, operand0=1.0)", {}, "vector", 200),
    ("nisa.tensor_tensor(dst=z, data1=x, data2=y, op=nl.add)", {}, "vector", 400),
    ("nisa.tensor_tensor(dst=z, data1=x, data2=y, op=nl.add)", PSUM, "vector", 200),
    ("nisa.tensor_tensor(dst=z, data1=x, data2=y, op=nl.add)", BF16, "vector", 200),
    ("nisa.tensor_tensor(dst=z, data1=x, data2=y, op=nl.maximum)", BF16, "vector", 400),
    ("nisa.scalar_tensor_tensor(dst=z, data=x, op0=nl.subtract, operand0=1.0, op1=nl.multiply, operand1=y)", BF16,
     "vector", 200),
    ("nisa.scalar_tensor_tensor(dst=z, data=x, op0=nl.multiply, operand0=1.0, op1=nl.add, operand1=y)", BF16,
     "vector", 400),
    ("nisa.tensor_reduce(dst=one, op=nl.add, data=x, axis=1)", {}, "vector", 200),
    ("nisa.tensor_reduce(dst=z[0:128, 0:1], op=nl.add, data=x, axis=1)", BF16, "vector", 100),
    ("nisa.tensor_scalar_reduce(dst=y, data=x, op0=nl.add, operand0=1.0, reduce_op=nl.add, reduce_res=one)", {},
     "vector", 264),
    ("nisa.reciprocal(dst=y, data=x)", {}, "vector", 1600),
    ("nisa.bn_stats(dst=y[0:128, 0:6], data=x)", {}, "vector", 200),
    ("nisa.bn_aggr(dst=y[0:128, 0:2], data=x[0:128, 0:60])", {}, "vector", 260),
    ("nisa.activation(dst=y, op=nl.exp, data=x)", {}, "scalar", 200),
    ("nisa.activation_reduce(dst=y, op=nl.exp, data=x, reduce_op=nl.add, reduce_res=one)", {}, "scalar", 264),
    ("nisa.tensor_tensor_scan(dst=z, data0=x, data1=y, initial=0.0, op0=nl.multiply, op1=nl.add)", {}, "vector", 400),
    ("nisa.memset(dst=x, value=0.0)", {}, "vector", 200),
    ("nisa.memset(dst=x, value=0.0)", BF16, "vector", 100),
    ("nisa.memset(dst=x, value=1.0)", BF16, "vector", 200),
    ("nisa.iota(dst=x, pattern=[[1, 200]])", {}, "gpsimd", 350),
    ("nisa.nc_transpose(dst=z[0:32, 0:32], data=y[0:32, 0:32], engine=nisa.engine.vector)", {}, "vector", 64),
    ("nisa.nc_transpose(dst=x[0:100, 0:128], data=y[0:128, 0:100])", PSUM, "tensor", 128),
    ("nisa.nc_transpose(dst=x[0:100, 0:20], data=y[0:20, 0:100])", PSUM, "tensor", 64),
    ("nisa.nc_matmul(dst=x[0:30, 0:200], stationary=y[0:128, 0:30], moving=z)", PSUM, "tensor", 800),
    ("nisa.nc_matmul(dst=x[0:30, 0:7], stationary=y[0:128, 0:30], moving=z[0:128, 0:7])", PSUM, "tensor", 120),
    ("nisa.nc_matmul(dst=x[0:100, 0:7], stationary=y[0:128, 0:100], moving=z[0:128, 0:7])", PSUM, "tensor", 256),
    ("nisa.nc_matmul(dst=x, stationary=y[0:128, 0:128], moving=z, is_moving_onezero=True)", PSUM, "tensor", 400),
    # elements further apart than 16 bytes
    ("nisa.tensor_copy(dst=y[0:128, 0:100], src=x[0:128, 0:200:2])", {}, "vector", 100),
    ("nisa.tensor_copy(dst=y[0:128, 0:40], src=x[0:128, 0:200:5])", {}, "vector", 80),
    ("nisa.tensor_copy(dst=y[0:128, 0:100], src=x[0:128, 0:200:2])", BF16, "vector", 100),
    ("nisa.nc_matmul(dst=x[0:128, 0:40], stationary=y[0:128, 0:128], moving=z[0:128, 0:200:5])", PSUM, "tensor", 320),
]  # fmt: skip


FASTER_IN_16_BITS = [
    ("nisa.tensor_copy(dst=y, src=x)", {}, "vector", 200),
    ("nisa.tensor_copy(dst=y, src=x)", BF16 | {"n": 512}, "vector", 128),
    ("nisa.tensor_copy(dst=y, src=x)", BF16 | PSUM | {"n": 512}, "vector", 256),
    ("nisa.tensor_copy(dst=y[0:128, 0:256], src=x[0:128, 0:512:2])", BF16 | {"n": 512}, "vector", 128),
    ("nisa.tensor_copy(dst=y, src=x, engine=nisa.engine.scalar)", BF16 | {"n": 512}, "scalar", 512),
    ("nisa.tensor_scalar(dst=y, data=x, op0=nl.add, operand0=1.0)", BF16 | {"n": 512}, "vector", 128),
    ("nisa.tensor_tensor(dst=z, data1=x, data2=y, op=nl.maximum)", BF16, "vector", 200),
    ("nisa.tensor_tensor(dst=z, data1=x, data2=y, op=nl.maximum)", {}, "vector", 400),
]
"""On gen3."""


@pytest.mark.parametrize(
    ("target", "line", "shape", "engine", "cycles"),
    [*(("gen2", *row) for row in FORMULAS), *(("gen3", *row) for row in FASTER_IN_16_BITS)],
)
def test_cycles_of_the_vendors_pages(tmp_path, target, line, shape, engine, cycles):
    assert _cycles(tmp_path, line, target, **shape) == (engine, cycles)


def test_a_product_in_16_bits_takes_a_quarter(tmp_path):
    body = """x = nl.ndarray((128, 128), dtype=nl.bfloat16, buffer=nl.sbuf)
y = nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.sbuf)
sums = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
one = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
for k in range(3):
    nisa.nc_matmul(dst=sums, stationary=x, moving=y, accumulate=(k > 0))"""
    found = _modelled(tmp_path, body + OUTPUT)
    assert (found.engines["tensor"].instructions, found.engines["tensor"].cycles) == (3, 3 * 512)
    assert found.engines["tensor"].us == pytest.approx(3 * 512 / 2.8 / 1e3)


def test_the_curve_goes_through_its_points_and_time_does_not_fall():
    """But for what the figure cannot be read to."""
    for run, share in EFFICIENCY.items():
        assert run / occupied(run) == pytest.approx(share)
    times = [occupied(run) for run in range(1, 40000, 7)]
    assert all(b >= 0.95 * a for a, b in zip(itertools.accumulate(times, max), times, strict=True))
    assert occupied(1) == occupied(32)
    assert occupied(3072) == pytest.approx((2048 / 0.81 + 4096 / 0.97) / 2)
    assert occupied(100_000) == 100_000


LOAD = """t = nl.ndarray({tile}, dtype=a.dtype, buffer=nl.sbuf)
nisa.dma_copy(dst=t{part}, src={source})
one = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)"""
RUNS = [
    ("(64, 512)", "", "a.reshape((64, 512))", 64 * 512 * 4, 64),
    ("(64, 8, 64)", "", "a.reshape((64, 8, 64))", 64 * 512 * 4, 64),
    ("(64, 100)", "", "a.reshape((64, 512))[0:64, 0:100]", 400, 64),
    ("(64, 8, 10)", "", "a.reshape((64, 8, 64))[0:64, 0:8, 0:10]", 40, 64 * 8),
    ("(64, 256)", "", "a.reshape((64, 512))[0:64, 0:512:2]", 4, 64 * 256),
    ("(64, 9)", "", "a.ap([[1, 64], [64, 9]])", 4, 64 * 9),
    ("(64, 600)", "[0:64, 0:512]", "a.reshape((64, 512))", 64 * 512 * 4, 64),
    ("(64, 8, 70)", "[0:64, 0:8, 0:64]", "a.reshape((64, 8, 64))", 64 * 512 * 4, 64 * 8),
    ("(64, 6)", "", "a.ap([[0, 64], [1, 6]])", 24, 64),
    ("(1, 32768)", "", "a.reshape((1, 32768))", 64 * 512 * 4, 1),
]


@pytest.mark.parametrize(("tile", "part", "source", "run", "pieces"), RUNS)
def test_runs_and_pieces_of_a_load(tmp_path, tile, part, source, run, pieces):
    body = LOAD.format(tile=tile, part=part, source=source)
    found = _modelled(tmp_path, body + OUTPUT, np.zeros(32768, np.float32))
    assert found.transfers == 2
    assert found.descriptors == pieces + 1
    assert set(found.runs) == {run, 4}


def test_pieces_end_where_either_side_does(tmp_path):
    """Runs of 6 in HBM and of 4 in SBUF: 4, 2, 2, 4. And one element at the end."""
    body = """t = nl.ndarray((3, 4), dtype=a.dtype, buffer=nl.sbuf)
nisa.dma_copy(dst=t, src=a[0:2, 0:6])
one = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)"""
    found = _modelled(tmp_path, body + OUTPUT, np.zeros((2, 9), np.float32))
    assert found.descriptors == 4 + 1
    assert (found.runs, found.sbuf_runs) == ({24: 48, 4: 4}, {16: 48, 4: 4})


@pytest.mark.parametrize(("target", "pieces"), [("gen2", 128 * 64), ("gen3", 64)])
def test_a_transpose_by_dma_is_by_element_on_gen2_only(tmp_path, target, pieces):
    body = """t = nl.ndarray((128, 64), dtype=a.dtype, buffer=nl.sbuf)
nisa.dma_transpose(dst=t, src=a[0:64, 0:128])
one = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)"""
    found = _modelled(tmp_path, body + OUTPUT, np.zeros((64, 256), np.float16), target=target)
    assert found.descriptors == pieces + 1


def test_instructions_that_wait_and_that_do_not(tmp_path):
    """A chain of two engines takes the sum, two independent ones the longer."""
    chain = "nisa.tensor_copy(dst=y, src=x)\nnisa.activation(dst=z, op=nl.exp, data=y)"
    apart = "nisa.tensor_copy(dst=y, src=x)\nnisa.activation(dst=z, op=nl.exp, data=x)"
    vector, scalar = (20000 + 100) / 1.12 / 1e3, (20000 + 100) / 1.4 / 1e3
    shape = {"p": 128, "n": 20000, "dtype": "bfloat16", "memory": "sbuf"}
    first, second = (_modelled(tmp_path, TILES.format(**shape) + body + OUTPUT) for body in (chain, apart))
    assert first.scheduled_us == pytest.approx(vector + scalar)
    assert second.scheduled_us == pytest.approx(vector)
    assert first.lower_us == second.lower_us == pytest.approx(20000 / 1.12 / 1e3)
    assert first.upper_us == second.upper_us > vector + scalar
    assert first.limit == "vector"


def test_what_is_overwritten_has_been_read(tmp_path):
    """The second activation writes y, which the copy before it reads."""
    shape = {"p": 128, "n": 20000, "dtype": "bfloat16", "memory": "sbuf"}
    body = "nisa.tensor_copy(dst=z, src=y)\nnisa.activation(dst={}, op=nl.exp, data=x)"
    late, early = (_modelled(tmp_path, TILES.format(**shape) + body.format(at) + OUTPUT) for at in ("y", "x"))
    assert late.scheduled_us == pytest.approx((20000 / 1.12 + (20000 + 100) / 1.4) / 1e3)
    assert early.scheduled_us < late.scheduled_us


def test_memory_that_was_given_back_is_taken_in_order():
    memory = Memory(8)
    assert [memory.reserve(3), memory.reserve(5)] == [0.0, 0.0]
    memory.release(2, 40.0)
    memory.release(3, 10.0)
    assert [memory.reserve(3), memory.reserve(1), memory.reserve(1)] == [10.0, 40.0, 40.0]


def test_a_ninth_bank_waits_for_the_first(tmp_path):
    """The last of 40 products waits until 32 others have been copied out, and a long instruction waits for it."""
    body = """w = nl.ndarray((128, 128), dtype=nl.bfloat16, buffer=nl.sbuf)
m = nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.sbuf)
one = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
long = nl.ndarray((128, 20000), dtype=nl.bfloat16, buffer=nl.sbuf)
for step in range(40):
    sums = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=sums, stationary=w, moving=m, accumulate=False)
    kept = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=kept, src=sums)
nisa.activation(dst=one, op=nl.exp, data=sums[0:128, 0:1])
nisa.activation(dst=long, op=nl.exp, data=long, bias=one)
out = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=kept[0:1, 0:1])
return out"""
    product, copied = (512 + 100) / 2.8, 512 / 1.12
    after = (64 + 100 + 20000 + 100) / 1.4
    assert _modelled(tmp_path, body).scheduled_us == pytest.approx((2 * product + 32 * copied + after) / 1e3)


def test_modelling_changes_neither_results_nor_counts(tmp_path):
    """Nor peaks: the model holds no tensor for longer than the kernel does."""
    body = """out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
for row in range(4):
    x = nl.load(a)
    sums = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=sums, stationary=x, moving=x, accumulate=False)
    y = nl.copy(sums)
nl.store(out[0:64, 0:64], y)
nl.store(out[64:128, 0:64], nl.exp(y))
return out"""
    module = loaded(tmp_path, f"{HEADER}def kernel(a):\n{indented(body)}")
    values = np.linspace(-1, 1, 128 * 64, dtype=np.float32).reshape(128, 64)
    with counting() as plain:
        expected = module.kernel(values)
    with counting() as counted, modelling() as with_values:
        np.testing.assert_array_equal(module.kernel(values), expected)
    with counting() as issued, modelling(arithmetic=False) as without:
        assert module.kernel(values).shape == expected.shape
    assert plain == counted == issued
    assert with_values == without
    assert module.kernel(values).any(), "arithmetic is back"


def test_the_model_holds_no_tensor_beyond_its_instruction(tmp_path):
    body = """one = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
x = nl.ndarray((128, 1000), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=x, value=0.0)
x = nl.ndarray((128, 1000), dtype=nl.float32, buffer=nl.sbuf)
x = nl.ndarray((128, 1000), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=one, value=0.0)"""
    with counting() as counters:
        _modelled(tmp_path, body + OUTPUT)
    assert counters.sbuf_peak == 2 * 4000 + 4


def test_a_store_that_waits_holds_up_no_load(tmp_path):
    body = """out = nl.ndarray((128, 20000), dtype=nl.bfloat16, buffer=nl.shared_hbm)
for half in range(2):
    x = nl.ndarray((128, 10000), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=x, src=a[0:128, half * 10000 : (half + 1) * 10000])
    y = nl.ndarray((128, 10000), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.activation(dst=y, op=nl.exp, data=x)
    nisa.dma_copy(dst=out[0:128, half * 10000 : (half + 1) * 10000], src=y)
return out"""
    found = _modelled(tmp_path, body, np.zeros((128, 20000), np.float16).astype(BFLOAT16))
    moved = 128 * occupied(20000) / BANDWIDTH[2]
    loaded_us, second = moved + LATENCY, max(10000 / 1.4, moved)
    assert found.scheduled_us == pytest.approx((loaded_us + second + 10100 / 1.4 + moved + LATENCY) / 1e3)


@pytest.mark.parametrize(("partitions", "engines"), [(1, 1), (8, 1), (9, 2), (64, 8), (128, 16)])
def test_a_transfer_uses_the_engines_of_its_partitions(tmp_path, partitions, engines):
    """In the schedule; `lower` has all of them busy."""
    body = f"""out = nl.ndarray(({partitions}, 8192), dtype=nl.float32, buffer=nl.shared_hbm)
t = nl.ndarray(({partitions}, 8192), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=t, src=a)
nisa.dma_copy(dst=out, src=t)
return out"""
    found = _modelled(tmp_path, body, np.zeros((partitions, 8192), np.float32))
    moved = partitions * 32768 / BANDWIDTH[2] / 1e3
    assert found.lower_us == pytest.approx(2 * moved)
    assert found.scheduled_us == found.upper_us == pytest.approx(2 * (moved * 16 / engines + LATENCY / 1e3))


def test_blocks_nest_and_add_up(tmp_path):
    body = TILES.format(p=128, n=200, dtype="float32", memory="sbuf") + "nisa.memset(dst=x, value=0.0)\n"
    body += "nisa.memset(dst=one, value=0.0)" + OUTPUT
    module = loaded(tmp_path, f"{HEADER}def kernel():\n{indented(body)}")
    with modelling() as outer:
        with modelling() as inner:
            module.kernel()
        module.kernel()
    assert outer.scheduled_us == pytest.approx(2 * inner.scheduled_us)
    assert outer.engines["vector"].instructions == 2 * inner.engines["vector"].instructions == 4
    assert outer.bytes == 8


BETA = """import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def kernel(a):
    return a
"""
REFUSED = [
    (f"{HEADER}def kernel(a):\n    return a\n", "gen4", "the time of a kernel on gen4"),
    (BETA, "gen2", "written for neuronxcc.nki"),
    (
        f"{HEADER}def kernel(a):\n    t = nl.load(a)\n    r = nisa.register_alloc(0)\n    nisa.register_load(r, t)\n",
        "gen2", "without arithmetic",
    ),
    (f"{HEADER}def kernel(a):\n    t = nl.load(a)\n    nisa.memset(dst=t[0:1, t], value=0)\n", "gen2",
     "without arithmetic"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target", "message"), REFUSED)
def test_what_cannot_be_modelled_is_refused(tmp_path, source, target, message):
    module = loaded(tmp_path, source, target=target)
    with modelling(arithmetic=False), pytest.raises(EmulationError, match=message) as caught:
        module.kernel(np.ones((1, 1), np.int32))
    assert caught.value.rule == "not-implemented"


def test_the_roofline_is_the_larger_of_both():
    found = Modelled("gen2")
    assert found.roofline_us("bf16", 92 * 10**6, 272_000 * 3) == pytest.approx(3)
    assert found.roofline_us("fp32", 92 * 10**6, 272_000 * 3) == pytest.approx(4)
    assert Modelled("gen3").roofline_us("fp16", 79 * 10**7, 368_000) == pytest.approx(10)


def test_the_share_of_short_runs():
    found = Modelled()
    assert (found.share_below(512), found.shortest_run, found.limit) == (0.0, 0, "none")
    found.runs.update({36: 10, 512: 30})
    assert (found.share_below(512), found.shortest_run) == (0.25, 36)


@pytest.mark.parametrize("row", [row for row in PUBLISHED if row.long_runs], ids=lambda row: row.what)
def test_kernels_that_long_runs_limit_are_within_a_tenth_of_what_was_measured(row: Published):
    found = row.modelled()
    assert found.limit == "dma"
    assert found.shortest_run >= 2048
    assert found.lower_us == pytest.approx(row.us, rel=0.1)
    assert found.scheduled_us == pytest.approx(row.us, rel=0.1)


@pytest.mark.parametrize("row", PUBLISHED[:9], ids=lambda row: f"{row.what} {row.source.name} {row.us}")
def test_bounds_are_in_order(row: Published):
    found = row.modelled()
    assert 0 < found.lower_us <= found.scheduled_us <= found.upper_us
