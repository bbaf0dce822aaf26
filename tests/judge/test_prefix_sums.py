"""Average pooling by running sums and by summed-area tables: right under their contracts, and not without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance import Contract, Implementation
from conformance.contract import PREFIX_SUMS
from conformance.dtypes import STORAGE
from conformance.implementations.implementation import ImplementationError
from conformance.inputs import Expectation, Recipe
from conformance.judge import Exact
from conformance.operators import OPERATORS, parse

Scan = Callable[[np.ndarray, Any], np.ndarray]
PROBLEMS = (
    "pool n2 c5 h11 w12 r3 s3 u2 p1",
    "pool n1 c2 h38 w38 r4 s4 u1",
    "pool n2 c3 w300 s2",
    "pool n2 c3 d6 h7 w8 t2 r3 s2 u1",
)


def in_turn(lines: np.ndarray, format: Any) -> np.ndarray:
    """Prefix sums along the first axis, each of the one before."""
    sums = lines.astype(format)
    for place in range(1, len(sums)):
        sums[place] += sums[place - 1]
    return sums


def in_a_tree(lines: np.ndarray, format: Any) -> np.ndarray:
    """Prefix sums along the first axis, of stretches that double (Hillis and Steele 1986)."""
    sums, length = lines.astype(format), 1
    while length < len(sums):
        sums = np.concatenate([sums[:length], sums[length:] + sums[:-length]])
        length *= 2
    return sums


def prefixes(values: np.ndarray, axis: int, scan: Scan, format: Any) -> np.ndarray:
    sums = scan(np.moveaxis(values, axis, 0), format)
    return np.moveaxis(np.concatenate([np.zeros_like(sums[:1]), sums]), 0, axis)


def pooled(case: Exact, contract: str, scan: Scan = in_turn, format: Any = np.float32) -> dict[str, np.ndarray]:
    """Averages in fp32: along each axis in turn, or of a table of sums along all axes."""
    geometry, axes = case.recipe.workload.geometry, range(-case.recipe.workload.geometry.rank, 0)
    sums = np.pad(case.inputs["x"].astype(np.float32), ((0, 0), (0, 0), *geometry.overhang))
    if contract == "summed-area":
        for axis in axes:
            sums = prefixes(sums, axis, scan, format)
    for axis in axes:
        if contract == "running-sums":
            sums = prefixes(sums, axis, scan, format)
        starts = np.arange(geometry.output_size[axis]) * geometry.stride[axis]
        sums = np.take(sums, starts + geometry.window[axis], axis) - np.take(sums, starts, axis)
    y = sums.astype(np.float32) * (1 / geometry.divisors.astype(np.float32))
    return {"y": y.astype(STORAGE[case.recipe.dtype])}


def expected(problem: str, dtype: str, distribution: str, operator: str = "avg_pool_forward") -> Exact:
    return Exact(Expectation(Recipe(OPERATORS[operator].on(parse(problem)), dtype, distribution, 0)))


@pytest.mark.parametrize("scan", [in_turn, in_a_tree])
@pytest.mark.parametrize("algorithm", PREFIX_SUMS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_differences_of_prefix_sums_are_right_under_their_contract_alone(problem: str, algorithm: str, scan: Scan):
    contract, defaults = Contract(algorithm=algorithm), []
    for dtype, distribution in (("fp32", "fixed"), ("fp32", "natural"), ("bf16", "natural"), ("fp16", "integer")):
        case = expected(problem, dtype, distribution)
        outputs = pooled(case, algorithm, scan)
        (judgement,) = case.judge(outputs, contract)
        assert judgement.passed, judgement.explain()
        assert not judgement.says_nothing
        defaults.append(case.passes(outputs, Contract()))
    assert not all(defaults)


@pytest.mark.parametrize("format", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("algorithm", PREFIX_SUMS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_prefix_sums_in_16_bits_are_wrong(problem: str, algorithm: str, format: Any):
    case = expected(problem, "fp32", "fixed")
    assert not case.passes(pooled(case, algorithm, format=format), Contract(algorithm=algorithm))


@pytest.mark.parametrize("algorithm", PREFIX_SUMS)
def test_a_gradient_of_running_sums_is_right(algorithm: str):
    """Windows of stride 1 without padding: a gradient sums the windows that hold it, which are a window of dy."""
    case = expected("pool n2 c3 h30 w20 r3 s4 u1", "fp32", "natural", "avg_pool_backward")
    dy = np.pad(case.inputs["dy"].astype(np.float32) / np.float32(12), ((0, 0), (0, 0), (2, 2), (3, 3)))
    for axis, window in ((2, 3), (3, 4)):
        sums = prefixes(dy, axis, in_turn, np.float32)
        starts = np.arange(sums.shape[axis] - window)
        dy = np.take(sums, starts + window, axis) - np.take(sums, starts, axis)
    assert case.passes({"dx": dy}, Contract(algorithm=algorithm))
    assert not case.passes({"dx": dy}, Contract())


@pytest.mark.parametrize("algorithm", PREFIX_SUMS)
def test_no_other_operator_has_prefix_sums(algorithm: str):
    contract = Contract(algorithm=algorithm)
    assert contract.without_effect(["conv_forward", "max_pool_forward"]) == ["algorithm"]
    assert contract.without_effect(["conv_forward", "avg_pool_backward"]) == []
    assert contract.on(parse("n1 c1 h5 w5 k1 r3 s3"), "fp32") == Contract()
    acme = Implementation("acme", contract=contract)
    acme.implements("conv_forward")(lambda *operands: None)
    with pytest.raises(ImplementationError, match="algorithm has no effect on conv_forward"):
        acme.require_effect()
