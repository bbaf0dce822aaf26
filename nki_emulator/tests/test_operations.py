"""Arithmetic of every operation of the NKI emulator against float64 with the documented roundings; views; modes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from nki_emulator import operations
from nki_emulator.tests.documented import ROWS
from nki_emulator.tests.operations import BETA_OPERATIONS, OPERATIONS, BetaOperation, Operation, spec
from nki_emulator.tests.sources import BFLOAT16, DTYPES, HEADER, indented, loaded, wide


def _identified(operation: Operation) -> str:
    position = [other for other in OPERATIONS if other.name == operation.name].index(operation)
    return f"{operation.name}-{position}"


@pytest.mark.parametrize("operation", OPERATIONS, ids=_identified)
def test_operation(tmp_path, operation: Operation):
    arguments = operation.arguments()
    found = loaded(tmp_path, operation.source, target=operation.target).kernel(*arguments)
    shape, dtype = spec(operation.result)
    assert (found.shape, found.dtype) == (shape, DTYPES[dtype][0])
    expected = operation.expected(arguments)
    if operation.within:
        assert (np.abs(wide(found) - expected) <= operation.allowed(arguments)).all()
    else:
        np.testing.assert_array_equal(found, _stored(expected, found.dtype))


def _stored(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Of results in float64: integers are exact, floats are rounded to float32 and then to the dtype."""
    return values.astype(dtype) if dtype.kind in "iu" else values.astype(np.float32).astype(dtype)


@pytest.mark.parametrize("operation", BETA_OPERATIONS, ids=lambda operation: operation.name)
def test_operation_of_the_first_generation(tmp_path, operation: BetaOperation):
    arguments = operation.arguments()
    found = wide(loaded(tmp_path, operation.source).kernel(*arguments))
    expected = operation.expected(arguments)
    assert found.shape == expected.shape
    assert (np.abs(found - expected) <= operation.allowed(arguments)).all()


VIEWS = {
    "a[3]": lambda a: a[3],
    "a[3, 2, 1]": lambda a: a[3, 2, 1].reshape(1),
    "a[-1, :, -5:]": lambda a: a[-1, :, -5:],
    "a[..., 2]": lambda a: a[..., 2],
    "a[2:12:3, ::2, 1:4]": lambda a: a[2:12:3, ::2, 1:4],
    "a[nl.ds(4, 8), :, nl.ds(1, 2)]": lambda a: a[4:12, :, 1:3],
    "a.permute((2, 0, 1))": lambda a: a.transpose(2, 0, 1),
    "a.reshape((4, 4, 30))": lambda a: a.reshape(4, 4, 30),
    "a[:, :, 1:3].reshape((4, 24, 2))": lambda a: a[:, :, 1:3].reshape(4, 24, 2),
    "a.select(0, 5)": lambda a: a[5],
    "a.flatten_dims(0, 1)": lambda a: a.reshape(96, 5),
    "a.ap([[1, 5], [30, 16], [5, 6]])": lambda a: a.transpose(2, 0, 1),
    "a.ap([[5, 10], [1, 9]], offset=7)": lambda a: np.stack([a.reshape(-1)[7 + 5 * i :][:9] for i in range(10)]),
    "a[4].ap([[5, 2], [1, 3]])": lambda a: a[4, :2, :3],
    "a.select(0, nl.full((1, 1), 3, dtype=nl.int32))": lambda a: a[3],
    "a.expand_dim(0)": lambda a: a[None],
    "x[:, 2]": lambda a: a[:, 2],
    "x[3]": lambda a: a[3:4],
    "x[0, 0, 4]": lambda a: a[:1, 0, 4:5],
    "x[:, 1, 4]": lambda a: a[:, 1, 4:5],
    "x[2:9, 1:6:2, ::3]": lambda a: a[2:9, 1:6:2, ::3],
    "x[:, ...]": lambda a: a,
    "x.slice(2, 1, 5, 2)": lambda a: a[:, :, 1:5:2],
    "x.slice(0, 3, 8)": lambda a: a[3:8],
    "x.permute((0, 2, 1))": lambda a: a.transpose(0, 2, 1),
    "x.reshape((16, 30))": lambda a: a.reshape(16, 30),
    "x.reshape((16, 2, 3, 5))": lambda a: a.reshape(16, 2, 3, 5),
    "x.reshape((16, 3, 1, 10))": lambda a: a.reshape(16, 3, 1, 10),
    "x[:, 2:4].reshape((16, 10))": lambda a: a[:, 2:4].reshape(16, 10),
    "x.reshape_dim(1, (3, -1))": lambda a: a.reshape(16, 3, 2, 5),
    "x.flatten_dims(1, 2)": lambda a: a.reshape(16, 30),
    "x[:, 2:3].broadcast(1, 4)": lambda a: np.repeat(a[:, 2:3], 4, axis=1),
    "x.expand_dim(1).squeeze_dim(1)": lambda a: a,
    "x.expand_dim(3)": lambda a: a[..., None],
    "nl.expand_dims(x, -1)": lambda a: a[..., None],
    "x.select(1, 3)": lambda a: a[:, 3],
    "x.ap([[30, 4], [5, 3], [1, 4]], offset=61)": lambda a: np.stack(
        [a.reshape(-1)[61 + 30 * p :][:14] for p in range(4)]
    )[:, [[5 * i + j for j in range(4)] for i in range(3)]],
    "x.ap([[30, 16], [0, 7], [2, 15]])": lambda a: np.repeat(a.reshape(16, 1, 30)[:, :, ::2], 7, axis=1),
    "x.ap(x.get_pattern())": lambda a: a,
    "x.view(nl.int32).view(nl.float32)": lambda a: a,
    "x.ap([[30, 16], [1, 30]], dtype=nl.uint32).view(nl.float32)": lambda a: a.reshape(16, 30),
    "a[nl.program_id(0):nl.num_programs(0)]": lambda a: a[:1],
    "a[nl.program_ndim()]": lambda a: a[0],
}
"""Views of the argument a[16, 6, 5] in HBM, or of the tile x with the same elements."""


@pytest.mark.parametrize("view", VIEWS)
def test_view(tmp_path, view):
    values = np.arange(480, dtype=np.float32).reshape(16, 6, 5)
    expected = VIEWS[view](values)
    body = f"""x = nl.load(a)
    out = nl.ndarray({expected.shape}, dtype=nl.float32, buffer=nl.shared_hbm)
    v = {view}
    assert v.shape == {expected.shape}
    assert v.ndim == {expected.ndim}
    assert v.size == {expected.size}
    nisa.dma_copy(dst=out, src=v)
    return out"""
    found = loaded(tmp_path, f"{HEADER}def kernel(a):\n    {body}\n").kernel(values)
    np.testing.assert_array_equal(found, expected)


def _elements(view: str) -> np.ndarray:
    """Which elements of x a view shows."""
    return np.asarray(VIEWS[view](np.arange(480).reshape(16, 6, 5)).astype(int))


def _writable(view: str) -> bool:
    elements = _elements(view)
    return view.startswith("x") and np.unique(elements).size == elements.size


@pytest.mark.parametrize("view", [view for view in VIEWS if _writable(view)])
def test_writing_through_a_view_reaches_its_elements_alone(tmp_path, view):
    chosen = _elements(view)
    body = f"""x = nl.load(a)
    out = nl.ndarray((16, 6, 5), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst={view}, src=b)
    nl.store(out, x)
    return out"""
    new = 1 + np.arange(chosen.size, dtype=np.float32)
    found = loaded(tmp_path, f"{HEADER}def kernel(a, b):\n    {body}\n").kernel(np.zeros((16, 6, 5), np.float32), new)
    expected = np.zeros(480)
    expected[chosen.reshape(-1)] = new
    np.testing.assert_array_equal(found, expected.reshape(16, 6, 5))


ATTRIBUTES = """t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, name="mine")
u = t.slice(1, 8, 24)
assert u.get_pattern() == [[64, 128], [1, 16]]
assert u.offset == 8
assert u.strides == (64, 1)
assert u.name == "mine"
assert t.is_contiguous() and u.is_contiguous() and not t[:, ::2].is_contiguous() and not t.is_indirect()
assert t.dtype == nl.float32 and t.buffer == nl.sbuf
assert nl.is_sbuf(t.buffer) and nl.is_on_chip(t.buffer) and not nl.is_psum(t.buffer) and nl.is_hbm(a.buffer)
assert nl.tile_size.pmax == 128 and nl.tile_size.psum_bank_fmax == 512 and nl.tile_size.gemm_moving_fmax == 512
assert nisa.get_nc_version() == nisa.nc_version.gen3
with nl.no_reorder():
    x = nl.load(a)
nl.device_print("x is", x)
out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
for i in nl.affine_range(2):
    for j in nl.static_range(1, 3):
        for k in nl.sequential_range(0, 2, 2):
            nisa.dma_copy(dst=out[2 * i:2 * i + 2, j - 1:j], src=x[2 * i:2 * i + 2, j - 1:j]).depends_on()
return out"""


def test_attributes_of_views(tmp_path, capsys):
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    found = loaded(tmp_path, f"{HEADER}def kernel(a):\n{indented(ATTRIBUTES)}", target="gen3").kernel(values)
    np.testing.assert_array_equal(found, values)
    assert capsys.readouterr().out.startswith("x is")


def test_every_operation_is_tried():
    rows = [row.keeps for row in ROWS if row.gives]
    text = "\n".join([*(operation.source for operation in OPERATIONS), *VIEWS, ATTRIBUTES, *rows])
    assert sorted(set(operations()) - set(re.findall(r"(?:nl|nisa)\.\w+", text))) == []


def test_low_precision_is_kept_until_the_result_when_not_precise(tmp_path):
    body = """x = nl.load(a)
y = nl.multiply(x, 1.001)
y = nl.multiply(y, 1.001)
out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
nl.store(out, y)
return out"""
    source = f"{HEADER}def kernel(a):\n{indented(body)}"
    values = np.linspace(1, 2, 128, dtype=np.float32).reshape(2, 64).astype(BFLOAT16)
    step = np.float32(1.001)
    kept = (wide(values).astype(np.float32) * step * step).astype(BFLOAT16)
    once = (wide(values).astype(np.float32) * step).astype(BFLOAT16)
    stepwise = (once.astype(np.float32) * step).astype(BFLOAT16)
    assert (kept != stepwise).any()
    np.testing.assert_array_equal(loaded(tmp_path, source, precise=False).kernel(values), kept)
    np.testing.assert_array_equal(loaded(tmp_path, source).kernel(values), stepwise)


def test_half_precision_rounds_in_both_modes(tmp_path):
    source = f"{HEADER}def kernel(a):\n" + indented(
        "out = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.shared_hbm)\n"
        "nl.store(out, nl.copy(nl.load(a, dtype=nl.float16), dtype=nl.float32))\nreturn out"
    )
    values = np.full((2, 2), 1 + 2.0**-14, np.float32)
    np.testing.assert_array_equal(loaded(tmp_path, source, precise=False).kernel(values), np.ones((2, 2)))


TRANSPOSE = """p = nl.ndarray((3, 2), dtype=nl.float32, buffer=nl.psum)
nisa.nc_transpose(dst=p, data=nl.load(a), engine=nisa.engine.tensor)
t = nl.copy(p)
out = nl.ndarray((3, 2), dtype=nl.float32, buffer=nl.shared_hbm)
nl.store(out, t)
return out"""


def test_a_transpose_on_gen2_spreads_a_nan_over_its_row(tmp_path):
    source = f"{HEADER}def kernel(a):\n{indented(TRANSPOSE)}"
    values = np.array([[1, np.nan, 3], [4, 5, 6]], np.float32)
    np.testing.assert_array_equal(loaded(tmp_path, source, target="gen3").kernel(values), values.T)
    spoiled = np.array([[1, 4], [np.nan, np.nan], [3, 6]], np.float32)
    np.testing.assert_array_equal(loaded(tmp_path, source).kernel(values), spoiled)


def test_nan_passes_activation_ranges_and_reductions(tmp_path):
    body = """x = nl.rsqrt(nl.load(a))
out = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.shared_hbm)
nl.store(out, nl.sum(x, axis=1))
return out"""
    source = f"{HEADER}def kernel(a):\n{indented(body)}"
    assert np.isnan(loaded(tmp_path, source).kernel(np.array([[4, np.nan]], np.float32))).all()


def test_the_sum_of_bf16_is_rounded_before_it_is_scaled(tmp_path):
    """The trap of the public average-pool tutorial."""
    body = """total = nl.sum(nl.load(a), axis=1)
t = nl.ndarray(total.shape, dtype=total.dtype)
nisa.tensor_scalar(dst=t, data=total, op0=nl.multiply, operand0=1.0 / 9)
out = nl.ndarray(total.shape, dtype=total.dtype, buffer=nl.shared_hbm)
nl.store(out, t)
return out"""
    source = f"{HEADER}def kernel(a):\n{indented(body)}"
    values = np.random.default_rng(5).standard_normal((128, 9)).astype(BFLOAT16)
    found = loaded(tmp_path, source).kernel(values)
    sums = wide(values).sum(axis=1, keepdims=True).astype(np.float32).astype(BFLOAT16)
    np.testing.assert_array_equal(found, (sums.astype(np.float32) * np.float32(1 / 9)).astype(BFLOAT16))
    assert (found != wide(values).mean(axis=1, keepdims=True).astype(np.float32).astype(BFLOAT16)).any()
