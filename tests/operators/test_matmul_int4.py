"""Products with weights of 4 bits: the definition in exact arithmetic, bytes of two numbers, data, and `when=`."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import Contract, Implementation
from conformance.dtypes import FORMATS, STORAGE, packed
from conformance.execution.verify import verify
from conformance.inputs import Expectation, Recipe
from conformance.operators import OPERATORS, GeometryError, parse
from conformance.operators.matmul_int4.operators import weights
from conformance.problems.parameters import geometry, parameters
from tests.kit import trial_of

INT4 = OPERATORS["matmul_int4"]
RAGGED = "int4 m5 n7 k75 bias1 zp1 block16"
Arrays = dict[str, np.ndarray]


def drawn(text: str, dtype: str, distribution: str) -> Arrays:
    return Expectation(Recipe(INT4.on(parse(text)), dtype, distribution, 0)).inputs


@given(sizes=st.fixed_dictionaries({
    "n": st.integers(0, 3), "k": st.integers(1, 3), "c": st.integers(1, 40), "b": st.integers(0, 1),
    "zp": st.integers(0, 1), "block": st.sampled_from([0, 16, 32]),
}))  # fmt: skip
def test_the_reference_is_the_definition(sizes: dict[str, int]):
    g = geometry("matmul_int4", sizes)
    assert parameters(g) == sizes
    assert parse(g.descriptor) == g
    dice = np.random.default_rng(0)
    inputs = {name: dice.integers(1, 9, tensor.shape) / 4 for name, tensor in INT4.inputs(g).items()}

    def term(m: int, n: int, k: int) -> Fraction:
        block = k // (sizes["block"] or 99)
        zero = Fraction(float(inputs["zero_point"][n, block])) if g.has_zero_points else Fraction(8)
        weight = (Fraction(float(inputs["b"][n, k])) - zero) * Fraction(float(inputs["scale"][n, block]))
        return Fraction(float(inputs["a"][m, k])) * weight

    y = INT4.reference(g, inputs)["y"]
    for m, n in np.ndindex(*y.shape):
        bias = Fraction(float(inputs["bias"][n])) if g.bias else Fraction()
        assert Fraction(float(y[m, n])) == bias + sum(term(m, n, k) for k in range(sizes["c"]))


@pytest.mark.parametrize(("text", "message"), {
    "int4 m2 n3 k0": "k is 0; it must be at least 1",
    "int4 m2 n3 k4 block24": "block is 24; it must be a power of two from 16, or 0 for all",
    "int4 m2 n3 k4 block8": "block is 8; it must be a power of two from 16, or 0 for all",
    "int4 m2 n3 k4 b2": "field 'b2' is not understood",
}.items())  # fmt: skip
def test_a_problem_without_a_result_is_refused_by_name(text: str, message: str):
    with pytest.raises(GeometryError, match=message):
        parse(text)


def test_a_predicate_gets_the_block_and_whether_there_are_zero_points():
    assert parse(RAGGED).described._asdict() == {
        "m": 5, "n": 7, "k": 75, "bias": True, "zero_points": True, "block": 16,
    }  # fmt: skip


def test_two_numbers_lie_in_a_byte_the_first_one_in_the_low_half():
    numbers = np.array([[1, 2, 15], [8, 0, 3]]).astype(STORAGE["uint4"])
    np.testing.assert_array_equal(packed(numbers), np.array([[0x21, 0x0F], [0x08, 0x03]], np.uint8))


@pytest.mark.parametrize("text", [RAGGED, "int4 m5 n7 k64 block32"])
def test_a_kernel_gets_bytes(text: str):
    seen: dict[str, Any] = {}

    def kernel(a: Any, b: Any, scale: Any, zero_point: Any, bias: Any, *, block: int) -> Any:
        seen.update(b=b, zero_point=zero_point, block=block)
        return np.zeros((len(a), len(b)), a.dtype)

    trial = trial_of(kernel, text, "matmul_int4", dtype="fp16", distribution="integer")
    assert verify(trial).status == "fail"
    g = parse(text)
    assert (seen["b"].dtype, seen["b"].shape) == (np.uint8, (7, -(-g.c // 2)))
    assert seen["block"] == g.block
    if not g.has_zero_points:
        assert seen["zero_point"] is None
        return
    assert seen["zero_point"].shape == (7, -(-g.scale.shape[1] // 2))
    assert not (seen["b"][:, -1] >> 4).any(), "half a byte that is left over is 0"
    assert not (seen["zero_point"][:, -1] >> 4).any()


def unpacked(both: np.ndarray, count: int) -> np.ndarray:
    return np.stack([both & 15, both >> 4], axis=-1).reshape(len(both), -1)[:, :count].astype(np.float32)


def weighed(stored: str, *, swaps: bool = False) -> Any:
    """Return a kernel that rounds weights to a format; `swaps` exchanges the halves of a byte."""

    def kernel(a: Any, b: Any, scale: Any, zero_point: Any, bias: Any, *, block: int) -> Any:
        k, both = a.shape[1], (b << 4 | b >> 4) if swaps else b
        zero = np.full(scale.shape, 8) if zero_point is None else unpacked(zero_point, scale.shape[1])
        zero, wide = (np.repeat(part.astype(np.float32), block or k, axis=1)[:, :k] for part in (zero, scale))
        values = ((unpacked(both, k) - zero) * wide).astype(STORAGE[stored]).astype(np.float32)
        y = a.astype(np.float32) @ values.T
        return (y if bias is None else y + bias.astype(np.float32)).astype(a.dtype)

    return kernel


@pytest.mark.parametrize("distribution", ["integer", "fixed", "natural", "wide"])
@pytest.mark.parametrize("dtype", INT4.dtypes)
def test_the_order_of_halves_is_seen(dtype: str, distribution: str):
    for swaps, status in ((False, "pass"), (True, "fail")):
        kernel = weighed("fp32", swaps=swaps)
        assert verify(trial_of(kernel, RAGGED, "matmul_int4", dtype=dtype, distribution=distribution)).status == status


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_weights_of_16_bits_are_declared_and_seen_on_natural_data_alone(dtype: str):
    """On all other data they are exact in the dtype."""
    statuses = {}
    for distribution, contract in product(("fixed", "natural"), (Contract(), Contract(inputs=dtype))):
        acme = Implementation("acme", contract=contract)
        acme.implements("matmul_int4", dtypes=(dtype,), layouts=("nn",))(weighed(dtype))
        trial = trial_of(acme, RAGGED, "matmul_int4", dtype=dtype, distribution=distribution)
        statuses[distribution, contract.inputs] = verify(trial).status
    assert statuses == {
        ("fixed", "exact"): "pass", ("fixed", dtype): "pass", ("natural", "exact"): "fail", ("natural", dtype): "pass",
    }  # fmt: skip


@pytest.mark.parametrize("dtype", INT4.dtypes)
@pytest.mark.parametrize("distribution", ["integer", "fixed", "impulse", "wide"])
@pytest.mark.parametrize("text", [RAGGED, "int4 m4 n6 k300"])
def test_weights_and_their_parts_are_numbers_of_the_dtype(text: str, distribution: str, dtype: str):
    parts = weights(parse(text), drawn(text, dtype, distribution))
    for values in (parts.values, parts.numbers * parts.scale, parts.zero * parts.scale):
        np.testing.assert_array_equal(values.astype(np.float32).astype(STORAGE[dtype]).astype(np.float64), values)


@pytest.mark.parametrize("dtype", INT4.dtypes)
@pytest.mark.parametrize("text", [RAGGED, "int4 m3 n4 k1056 bias1 block32", "int4 m3 n4 k1 zp1"])
def test_sums_of_integers_are_exact_in_every_order(text: str, dtype: str):
    """Also those of numbers and of zero points by themselves, in units of the smallest scale."""
    g, inputs = parse(text), drawn(text, dtype, "integer")
    numbers, scale, zero = weights(g, inputs)
    for values in (numbers, zero):
        sums = np.abs(inputs["a"].astype(np.float64)) @ (values * scale).T
        sums += np.abs(inputs["bias"].astype(np.float64)) if g.bias else 0
        assert sums.max() / 0.5 <= 1 << FORMATS[dtype].precision


@pytest.mark.parametrize("distribution", ["integer", "fixed", "natural", "wide", "impulse"])
def test_no_scale_is_1_or_that_of_the_block_beside_it(distribution: str):
    inputs = drawn("int4 m3 n9 k160 zp1 block16", "bf16", distribution)
    scale = inputs["scale"].astype(np.float64)
    assert (scale > 0).all()
    assert not (scale == 1).any()
    assert not any((np.diff(scale, axis=axis) == 0).any() for axis in (0, 1))
    assert set(np.unique(inputs["b"].astype(int))) == {*range(16)}


def test_torch_multiplies_alike():
    torch = pytest.importorskip("torch")
    expected = Expectation(Recipe(INT4.on(parse("int4 m5 n16 k64 zp1 block32")), "bf16", "fixed", 0))
    inputs = {name: array.astype(np.float32) for name, array in expected.inputs.items()}
    numbers = torch.from_numpy(inputs["b"]).to(torch.int32)
    scale, zero = (torch.from_numpy(inputs[name]) for name in ("scale", "zero_point"))
    both = torch.stack([scale.T, ((8 - zero) * scale).T], dim=-1).to(torch.bfloat16).contiguous()
    b = torch._convert_weight_to_int4pack_for_cpu(numbers, 1)
    y = torch._weight_int4pack_mm_for_cpu(torch.from_numpy(inputs["a"]).to(torch.bfloat16), b, 32, both)
    np.testing.assert_allclose(y.float().numpy(), expected.reference["y"], rtol=2**-7, atol=2**-7)
