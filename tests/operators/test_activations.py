"""Sums with an activation: its values beside those of exact arithmetic, the definition, what kernels are told apart by,
and limits of what kernels lose."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance import Contract, Implementation
from conformance.execution.verify import verify
from conformance.operators import OPERATORS, GeometryError, parse
from conformance.operators.activation_geometry import ACTIVATIONS, SMOOTH
from conformance.operators.activations import BENT, STEEPEST, activated, slope, value
from conformance.operators.base import Arrays
from conformance.problems.parameters import geometry, parameters
from tests.kit import expectation, trial_of

CONV, MATMUL = "conv_activation", "matmul_activation"
PLACES = np.concatenate(
    [np.linspace(-12, 12, 97), [1e-30, -1e-30, 0.0, 8.5, -8.5, 38.5, -38.5, 200, -200, 1e30, -1e30]]
)


def exactly(activation: str, s: float) -> Any:
    """Return the activation of a number, by 300 bits."""
    mp = pytest.importorskip("mpmath").mp
    with mp.workprec(300):
        x = mp.mpf(s)
        if activation == "gelu":
            return x * mp.erfc(-x / mp.sqrt(2)) / 2
        if activation == "silu":
            return x / (1 + mp.exp(-x))
        inside = mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3)
        return x / (1 + mp.exp(-2 * inside))


@pytest.mark.parametrize("activation", SMOOTH)
def test_values_have_more_bits_than_float64(activation: str):
    mp = pytest.importorskip("mpmath").mp
    high, low = value(activation, (PLACES, np.zeros_like(PLACES)))
    np.testing.assert_array_equal(activated(activation, PLACES), high)
    with mp.workprec(300):
        for s, upper, lower in zip(PLACES.tolist(), high.tolist(), low.tolist(), strict=True):
            error = abs(mp.mpf(upper) + mp.mpf(lower) - exactly(activation, s))
            tail = abs(upper) * 2.0**-31 if abs(upper) < 1e-15 * abs(s) else 0.0
            assert error <= max(abs(s) * 2.0**-90, tail, 2.0**-1060)


@pytest.mark.parametrize("activation", SMOOTH)
def test_low_parts_of_sums_count(activation: str):
    s, low = np.array([0.7, -1.3]), np.array([3e-17, -8e-17])
    moved, whole = value(activation, (s, low)), value(activation, (s, np.zeros(2)))
    change = (moved[0] - whole[0]) + (moved[1] - whole[1])
    np.testing.assert_allclose(change, low * derivative(activation, s), rtol=1e-6)


def derivative(activation: str, s: np.ndarray) -> np.ndarray:
    step = 1e-5
    change: np.ndarray = (activated(activation, s + step) - activated(activation, s - step)) / (2 * step)
    return change


@pytest.mark.parametrize("activation", SMOOTH)
def test_slopes_and_bends_are_bounded(activation: str):
    s = np.linspace(-30, 30, 6001)
    slopes = slope(activation, s)
    np.testing.assert_allclose(slopes, np.abs(derivative(activation, s)), atol=1e-8)
    assert slopes.max() <= STEEPEST[activation]
    assert np.abs(np.diff(activated(activation, s), 2) / 0.01**2).max() <= BENT[activation] * (1 + 1e-8)


def test_activations_of_infinities_and_nan():
    ends = np.array([-math.inf, math.inf, math.nan])
    for activation, (low, high) in {
        "none": (-math.inf, math.inf),
        "relu": (0.0, math.inf),
        "relu6": (0.0, 6.0),
    }.items():
        np.testing.assert_array_equal(activated(activation, ends), [low, high, math.nan])
    for activation in SMOOTH:
        np.testing.assert_array_equal(activated(activation, ends)[1:], [math.inf, math.nan])


def relu(s: Any) -> Any:
    return np.maximum(s, np.float32(0))


def gelu(s: Any) -> Any:
    return np.array([0.5 * t * math.erfc(-t * math.sqrt(0.5)) for t in s.reshape(-1).tolist()]).reshape(s.shape)


def gelu_tanh(s: Any) -> Any:
    gate: np.ndarray = 1 + np.tanh(math.sqrt(2 / math.pi) * (s + 0.044715 * s**3))
    return 0.5 * s * gate


def silu(s: Any) -> Any:
    below: np.ndarray = 1 + np.exp(-s)
    return s / below


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda s: s,
    "relu": relu,
    "relu6": lambda s: np.clip(s, 0, 6),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("sizes", ["m3 n4 k5 bias1 res1", "b2 m3 n2 k4 res1", "m2 n3 k0"])
def test_a_product_is_the_activation_of_the_whole_sum(activation: str, sizes: str):
    g = parse(f"mact {sizes} act:{activation}")
    assert geometry(MATMUL, parameters(g)) == g == parse(g.descriptor)
    dice = np.random.default_rng(0)
    inputs: Arrays = {name: dice.uniform(-2, 2, t.shape) for name, t in OPERATORS[MATMUL].inputs(g).items()}
    y = OPERATORS[MATMUL].reference(g, inputs)["y"]
    terms = g.c // g.groups
    for m, n in np.ndindex(*y.shape):
        group = n // (g.k // g.groups)
        s = inputs["a"][m, group * terms : group * terms + terms] @ inputs["b"][n]
        s += inputs["bias"][n] if g.bias else 0
        s += inputs["residual"][m, n] if g.residual else 0
        assert y[m, n] == pytest.approx(FUNCTIONS[activation](np.array([s]))[0], rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_convolution_is_what_torch_computes(activation: str):
    torch = pytest.importorskip("torch")
    from torch.nn import functional

    functions = {
        "none": lambda s: s,
        "relu": functional.relu,
        "relu6": functional.relu6,
        "gelu": functional.gelu,
        "gelu_tanh": lambda s: functional.gelu(s, approximate="tanh"),
        "silu": functional.silu,
    }
    expected = expectation(CONV, f"cact n2 c6 h7 w5 k4 r3 s2 u2x1 p1 g2 b1 act:{activation} res1", "fp64", "bent")
    x, w, bias, residual = (torch.from_numpy(expected.inputs[name]) for name in ("x", "w", "bias", "residual"))
    s = torch.nn.functional.conv2d(x, w, bias, (2, 1), 1, 1, 2) + residual
    np.testing.assert_allclose(expected.reference["y"], functions[activation](s).numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("activation", SMOOTH)
@pytest.mark.parametrize("operator", [CONV, MATMUL])
def test_bent_sums_lie_where_activations_bend(operator: str, activation: str):
    word = {CONV: "cact n2 c8 h9 w7 k12 r3 s3 p1 b1", MATMUL: "mact m20 n16 k300 bias1"}[operator]
    expected = expectation(operator, f"{word} act:{activation} res1", "fp32", "bent")
    s = expected.magnitude["sums"]
    assert (np.abs(s) < 3).mean() > 0.5 < (np.abs(s) < 6).mean()
    assert min((s > 0.1).mean(), (s < -0.1).mean()) > 0.25
    assert (s > 6).any()


def kernel(order: Callable[..., np.ndarray], **functions: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Any]:
    """Return a product that adds and activates its parts in some order."""

    def run(a: Any, b: Any, bias: Any, residual: Any, activation: str) -> Any:
        act = (FUNCTIONS | functions)[activation]
        parts = (0 if part is None else part for part in (bias, residual))
        with np.errstate(invalid="ignore"):
            return np.asarray(order(act, a @ b, *parts), np.float32)

    return run


def whole(act: Any, s: Any, bias: Any, residual: Any) -> Any:
    return act(s + bias + residual)


@pytest.mark.parametrize(
    ("run", "text", "status"),
    [
        *((kernel(whole), f"mact m8 n9 k10 bias1 act:{activation} res1", "pass") for activation in ACTIVATIONS),
        (kernel(whole, gelu=gelu_tanh), "mact m8 n9 k10 act:gelu", "fail"),
        (kernel(whole, gelu_tanh=gelu), "mact m8 n9 k10 act:gelu_tanh", "fail"),
        (kernel(whole, gelu=lambda s: s / (1 + np.exp(-1.702 * s))), "mact m8 n9 k10 act:gelu", "fail"),
        (kernel(whole, silu=gelu), "mact m8 n9 k10 act:silu", "fail"),
        (kernel(whole, relu=lambda s: np.clip(s, 0, 6)), "mact m8 n16 k64 bias1 act:relu", "fail"),
        (kernel(lambda act, s, bias, rest: act(s + bias) + rest), "mact m8 n9 k10 bias1 act:relu res1", "fail"),
        (kernel(lambda act, s, bias, rest: act(s + rest) + bias), "mact m8 n9 k10 bias1 act:silu res1", "fail"),
        (kernel(lambda act, s, bias, rest: act(s + bias - rest)), "mact m8 n9 k10 bias1 act:gelu res1", "fail"),
    ],
)
def test_kernels_are_told_apart_by_their_activation(run: Any, text: str, status: str):
    assert verify(trial_of(run, text, MATMUL, distribution="bent")).status == status


def test_a_relu_of_nan_is_nan():
    loses = kernel(whole, relu=lambda s: np.where(s > 0, s, 0))
    for run, status in ((kernel(whole), "pass"), (loses, "fail")):
        assert verify(trial_of(run, "mact m8 n9 k10 act:relu res1", MATMUL, distribution="special")).status == status


@pytest.mark.parametrize("activation", ["gelu", "silu", "relu"])
def test_sums_in_storage_are_a_contract(activation: str):
    """A sum that is rounded to bf16 before the residual and before the activation is told from one that is not."""
    import ml_dtypes

    def run(a: Any, b: Any, bias: Any, residual: Any, activation: str) -> Any:
        stored = (a.astype(np.float32) @ b.astype(np.float32) + bias.astype(np.float32)).astype(ml_dtypes.bfloat16)
        s = (stored.astype(np.float32) + residual.astype(np.float32)).astype(ml_dtypes.bfloat16)
        return FUNCTIONS[activation](s.astype(np.float32)).astype(np.float32).astype(ml_dtypes.bfloat16)

    text = f"mact m30 n40 k12 bias1 act:{activation} res1"
    for contract, status in ((Contract(), "fail"), (Contract(between="storage"), "pass")):
        acme = Implementation("acme")
        acme.implements(MATMUL, dtypes=("bf16",), layouts=("nn",), contract=contract)(run)
        assert verify(trial_of(acme, text, MATMUL, dtype="bf16", distribution="bent")).status == status


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mact m2 n2 k2 act:swish", "field 'act:swish' must be one of act:none, act:relu"),
        ("cact n1 c1 h2 w2 k1 r1 s1 act1", "field 'act1' must be one of act:none, act:relu"),
        ("mact b2 m2 n2 k2 bias1 act:relu", "a batch of products has no bias"),
        ("mact m2 n2 k2 res2", "field 'res2' must be res0 or res1"),
    ],
)
def test_what_has_no_meaning_is_refused(text: str, said: str):
    with pytest.raises(GeometryError, match=said):
        parse(text)
