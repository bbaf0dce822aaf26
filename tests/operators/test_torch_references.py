"""The reference of every family against torch's in float64, on every standard problem that torch has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from conformance.inputs import Expectation, Recipe
from conformance.operators import FAMILIES, Arrays
from conformance.problems import PROBLEMS, Problem

torch = pytest.importorskip("torch")

COMPARED = 10_000
"""Images and groups of transposed convolutions that torch computes in less than a second: longer axes are there for
kernels."""


def in_torch(g: Any) -> bool:
    """Whether torch has this problem. Its poolings have the padding of one side, at most half of the window; averages
    are without a divisor in 1-D, and in 3-D refuse an unpadded image smaller than the window."""
    if g.family in ("avg_pool", "max_pool"):
        same = all(a == b and 2 * a <= taps for (a, b), taps in zip(g.padding, g.window, strict=True))
        fits = all(size >= taps for size, taps in zip(g.size, g.window, strict=True))
        return same and bool(g.family == "max_pool" or g.rank == 2 or (g.rank == 3 and fits))
    return g.family == "conv" or bool(g.family == "conv_transpose" and max(g.n, g.groups) < COMPARED)


def dtypes(problem: Problem) -> list[str]:
    """Those of the problem's fixed inputs, whose reference in float64 is exact. Averages are divided; the few values of
    bf16 tie."""
    only = {"avg_pool": ["fp32"], "max_pool": ["bf16"]}
    run = sorted({v.dtype for v in problem.variants if v.distribution == "fixed"})
    return only.get(problem.geometry.family, run)


STANDARD = [p for p in PROBLEMS if p.level == "standard" and in_torch(p.geometry) and dtypes(p)]
CASES = [(problem, dtypes(problem)[turn % len(dtypes(problem))]) for turn, problem in enumerate(STANDARD)]


def forward(g: Any, x: Any, w: Any, bias: Any) -> Any:
    """y by torch's own functions; padding of two sides, and output padding, by adding zeros or cropping."""
    functional, own = torch.nn.functional, tuple(before for before, _ in g.padding)
    if g.family == "max_pool":
        return getattr(functional, f"max_pool{g.rank}d")(x, g.window, g.stride, own, g.dilation, g.ceil_mode)
    if g.family == "avg_pool":
        pool = getattr(functional, f"avg_pool{g.rank}d")
        return pool(x, g.window, g.stride, own, g.ceil_mode, g.count_include_pad, g.divisor_override)
    sides = [side for sides in reversed(g.padding) for side in sides]
    if g.family == "conv":
        padded = functional.pad(x, sides)
        return getattr(functional, f"conv{g.rank}d")(padded, w, bias, g.stride, 0, g.dilation, g.groups)
    whole = getattr(functional, f"conv_transpose{g.rank}d")(x, w, None, g.stride, 0, 0, g.groups, g.dilation)
    more = [extra for extra in reversed(g.output_padding) for extra in (0, extra)]
    y = functional.pad(whole, [extra - side for extra, side in zip(more, sides, strict=True)])
    return y + bias.view(-1, *[1] * g.rank)


def by_torch(g: Any, names: Iterable[str], inputs: Arrays) -> Arrays:
    """Outputs by their names; gradients by torch's autograd."""
    shapes = {"x": g.x.shape} | ({} if "pool" in g.family else {"w": g.filter.shape, "bias": (g.k,)})
    given = {key: torch.from_numpy(array.astype(np.float64)) for key, array in inputs.items()}
    leaves = {key: given.get(key, torch.zeros(shape, dtype=torch.float64)) for key, shape in shapes.items()}
    wanted = {name: leaves[name.removeprefix("d")].requires_grad_() for name in names if name != "y"}
    y = forward(g, leaves["x"], leaves.get("w"), leaves.get("bias"))
    found = torch.autograd.grad(y, [*wanted.values()], given["dy"]) if wanted else [y]
    return {name: array.numpy() for name, array in zip(names, found, strict=True)}


@pytest.mark.parametrize(
    ("problem", "dtype"), CASES, ids=[f"{p.geometry.family}-{p.name}-{dtype}" for p, dtype in CASES]
)
def test_reference_equals_torch_float64(problem: Problem, dtype: str):
    """Bit for bit, but that torch rounds every share of the gradient of an average, and their sum as often."""
    g = problem.geometry
    if not g.x.size and g.n:
        pytest.skip("of an image without channels torch returns one without channels, too, where there are filters")
    for operator in FAMILIES[g.family].operators:
        expected = Expectation(Recipe(operator.on(g), dtype, "fixed", 2))
        found = by_torch(g, expected.reference, expected.inputs)
        for name, exact in expected.reference.items():
            allowed: Any = 0.0
            if operator.name == "avg_pool_backward":
                sizes = operator.reference(g, {"dy": np.abs(expected.inputs["dy"])})["dx"]
                allowed = 2 * operator.errors(g).terms["dx"] * 2.0**-53 * sizes
            assert found[name].shape == exact.shape
            assert np.all(np.abs(found[name] - exact) <= allowed), f"{name} of {operator.name}"
