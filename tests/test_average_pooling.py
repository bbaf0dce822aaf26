"""Average pooling of the plain implementations against the definition as a matrix of fractions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance import Implementation
from conformance.execution.invocation import Invocation
from conformance.implementations.registry import load
from conformance.operators import OPERATORS, PoolGeometry

IMPLS = Path(__file__).parents[1] / "impls"
CASES = {
    "plain": "pool n1 c1 h6 w4 r2 s2",
    "overlap": "pool n1 c1 h5 w6 r3 s2 u1 p1",
    "remainder": "pool n1 c1 h7 w5 r3 s2",
    "ceil": "pool n1 c1 h7 w6 r3 s3 u2x3 ceil1",
    "ceil, padded": "pool n1 c1 h5 w6 r2 s3 u2 p1 ceil1",
    "ceil drops a window": "pool n1 c1 h4 w5 r2 s3 u3x2 p1 ceil1",
    "valid": "pool n1 c1 h5 w5 r3 s3 u2 p1 valid1",
    "ceil, valid": "pool n1 c1 h6 w5 r3 s4 u2x3 p1 ceil1 valid1",
    "asymmetric": "pool n1 c1 h5 w6 r3 s4 u2x1 p0:2x3:1",
    "asymmetric, ceil, valid": "pool n1 c1 h6 w5 r4 s3 u3x2 p1:2x0:1 ceil1 valid1",
    "divisor": "pool n1 c1 h5 w5 r3 s3 u2 p1 div7",
    "gaps": "pool n1 c1 h7 w8 r2 s1 u3",
    "window beyond the image": "pool n1 c1 h2 w2 r3 s3 u1 p1",
}


@pytest.fixture(scope="module", params=["jax_native", "numpy_direct"])
def implementation(request: pytest.FixtureRequest) -> Implementation:
    """The CPU's, loaded as the suite loads it."""
    registry = load([IMPLS / request.param])
    assert registry.broken == {}
    found = [one for one in registry.implementations.values() if one.device == "cpu"]
    return found[0] if found else pytest.skip(registry.unavailable[request.param])


def seen(g: PoolGeometry, axis: int) -> Iterator[tuple[int, list[int]]]:
    """For every window of an axis: its positions inside the padded image, counted from the image's first row."""
    size, window = ((g.h, g.r), (g.w, g.s))[axis]
    (before, after), stride = g.padding[axis], g.stride[axis]
    for index, start in enumerate(range(-before, size + after, stride)):
        whole = start + window <= size + after
        if whole or (g.ceil_mode and start < size and start - stride + window < size + after):
            yield index, [position for position in range(start, start + window) if position < size + after]


def matrix(g: PoolGeometry) -> tuple[tuple[int, int], dict[tuple[int, int, int, int], Fraction]]:
    """(P, Q), and what each output takes of each input: y[p,q] = sum of share[p,q,h,w] * x[h,w]."""
    shares: dict[tuple[int, int, int, int], Fraction] = {}
    for (p, rows), (q, columns) in itertools.product(seen(g, 0), seen(g, 1)):
        inside = [(h, w) for h, w in itertools.product(rows, columns) if 0 <= h < g.h and 0 <= w < g.w]
        counted = len(rows) * len(columns) if g.count_include_pad else len(inside)
        shares |= {(p, q, h, w): Fraction(1, g.divisor_override or counted) for h, w in inside}
    return (1 + max(p for p, *_ in shares), 1 + max(q for _, q, *_ in shares)), shares


def numbers(shape: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def call(implementation: Implementation, operator: str, g: PoolGeometry, array: np.ndarray) -> np.ndarray:
    kernel = implementation.find(operator, g, "fp64", "nchw")
    invocation = Invocation(kernel, implementation.arrays, OPERATORS[operator], g, "fp64", "nchw")
    (name,) = OPERATORS[operator].inputs(g)
    (found,) = invocation.outputs(invocation.call(invocation.to_device({name: array[None, None]}))).values()
    return np.asarray(found[0, 0])


def require_near(found: np.ndarray, terms: dict[tuple[int, int], list[Fraction]]) -> None:
    """Each term may be rounded twice (reciprocal and product), each addition once; first-order bound plus one spare."""
    for index, value in np.ndenumerate(found):
        exact = terms.get(index, [])
        error = abs(Fraction(float(value)) - sum(exact, Fraction(0)))
        assert error <= (len(exact) + 3) * Fraction(1, 1 << 53) * sum(map(abs, exact), Fraction(0)), index


@pytest.mark.parametrize("text", CASES.values(), ids=list(CASES))
def test_forward_is_the_definition(implementation: Implementation, text: str):
    g = PoolGeometry.parse(text)
    x, (size, shares) = numbers((g.h, g.w)), matrix(g)
    terms: dict[tuple[int, int], list[Fraction]] = {}
    for (p, q, h, w), share in shares.items():
        terms.setdefault((p, q), []).append(Fraction(float(x[h, w])) * share)
    y = call(implementation, "avg_pool_forward", g, x)
    assert y.shape == size
    require_near(y, terms)


@pytest.mark.parametrize("text", CASES.values(), ids=list(CASES))
def test_backward_is_its_transpose(implementation: Implementation, text: str):
    g = PoolGeometry.parse(text)
    size, shares = matrix(g)
    dy = numbers(size)
    terms: dict[tuple[int, int], list[Fraction]] = {}
    for (p, q, h, w), share in shares.items():
        terms.setdefault((h, w), []).append(Fraction(float(dy[p, q])) * share)
    dx = call(implementation, "avg_pool_backward", g, dy)
    assert dx.shape == (g.h, g.w)
    require_near(dx, terms)


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "window": ({"kernel_size": (6, 2)}, ValueError, "spans 6 on the height, more than the padded image's 5"),
    "empty window": ({"kernel_size": (0, 2)}, ValueError, r"kernel_size=\(0, 2\): must be at least 1"),
    "stride": ({"stride": (1, 0)}, ValueError, r"stride=\(1, 0\): must be at least 1"),
    "padding": ({"padding": ((0, 0), (2, 0))}, ValueError, r"padding \(2, 0\) fills a window of 2: must be smaller"),
    "negative padding": ({"padding": ((0, -1), (0, 0))}, ValueError, "padding=.*: must be at least 0"),
    "divisor": ({"divisor_override": 0}, ValueError, r"divisor_override=\(0,\): must be at least 1"),
    "axes": ({"shape": (5, 5)}, ValueError, r"has shape \(5, 5\): must have 4 axes"),
    "integers": ({"dtype": "int32"}, TypeError, "is int32: must be of a floating-point dtype"),
}


@pytest.mark.parametrize(("change", "error", "message"), WRONG.values(), ids=list(WRONG))
@pytest.mark.parametrize("operator", ["avg_pool_forward", "avg_pool_backward"])
def test_jax_refuses_by_name(operator: str, change: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        call_with(operator, change)


def test_jax_refuses_a_gradient_of_another_shape():
    with pytest.raises(ValueError, match=r"dy has shape \(1, 2, 5, 5\): must be \(1, 2, 4, 4\)"):
        call_with("avg_pool_backward", {})


def test_jax_computes_without_changes():
    """The call that the errors above change in one place."""
    assert call_with("avg_pool_forward", {}).shape == (1, 2, 4, 4)


def call_with(operator: str, change: dict[str, Any]) -> Any:
    jnp = pytest.importorskip("jax.numpy")
    g = PoolGeometry.parse("pool n1 c2 h5 w5 r2 s2 u1")
    kernel = load([IMPLS / "jax_native"]).implementations["jax-cpu"].find(operator, g, "fp32", "nchw")
    array = jnp.ones(change.get("shape", (1, 2, 5, 5)), change.get("dtype", "float32"))
    usual = {**OPERATORS[operator].parameters(g), "layout": "nchw"}
    return kernel.function(array, **{name: change.get(name, value) for name, value in usual.items()})
