"""Probes at full UNet size: what they cost beside torch's own kernel, and what they detect."""

from __future__ import annotations

import os
import statistics
import tracemalloc
from collections.abc import Callable
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from conformance.calibration.known_kernels import judged_by_probes
from conformance.inputs import Expectation, Recipe
from conformance.operators import CONVOLUTIONS, OPERATORS, ConvGeometry

LAYER = ConvGeometry.parse("n4 c64 h512 w512 k64 r3 s3 p1 b1")
"""67,108,864 outputs."""
ROUNDS = 5


@lru_cache(maxsize=1)
def expectation(operator: str) -> Expectation:
    return Expectation(Recipe(OPERATORS[operator], LAYER, "fp32", "fixed", 0))


def clocked(call: Callable[..., Any], *given: Any) -> float:
    start = perf_counter()
    call(*given)
    return perf_counter() - start


def by_torch(known: Expectation) -> Callable[[], np.ndarray]:
    """torch's kernel on the same inputs. It is loaded where it is needed, not where these tests are collected."""
    torch = pytest.importorskip("torch")
    g, given = known.recipe.geometry, {name: torch.from_numpy(array) for name, array in known.inputs.items()}
    if known.recipe.operator.name == "conv_forward":
        return lambda: torch.nn.functional.conv2d(given["x"], given["w"], given["bias"], padding=1).numpy()
    wanted = (False, True, False) if known.recipe.operator.name == "conv_backward_weight" else (True, False, False)
    x, w = given.get("x", torch.empty(g.x.shape)), given.get("w", torch.empty(g.filter.shape))
    arguments = (given["dy"], x, w, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, wanted)
    return lambda: torch.ops.aten.convolution_backward(*arguments)[wanted.index(True)].numpy()


@pytest.mark.parametrize("operator", CONVOLUTIONS)
def test_cost_beside_torch(operator: str, capsys: pytest.CaptureFixture[str]):
    known = expectation(operator)
    kernel = by_torch(known)
    actual = kernel()
    tracemalloc.start()
    assert judged_by_probes(known, actual).passed
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    pairs = [(clocked(judged_by_probes, known, actual), clocked(kernel)) for _ in range(ROUNDS)]
    probes, own = zip(*pairs, strict=True)
    ratio = statistics.median(probe / kernels for probe, kernels in pairs)
    with capsys.disabled():
        print(
            f"\n{operator}: probes {statistics.median(probes) * 1e3:.0f} ms, torch {statistics.median(own) * 1e3:.0f} "
            f"ms, ratio {ratio:.2f} (target 0.5); {peak / 2**30:.2f} GiB beside the tensors; {os.cpu_count()} cores"
        )


@pytest.mark.parametrize("operator", CONVOLUTIONS)
def test_one_element_among_millions(operator: str):
    known = expectation(operator)
    wrong = by_torch(known)().copy()
    flat = wrong.reshape(-1)
    places = np.argsort(np.abs(np.abs(flat[:100_000]) - np.sqrt(np.mean(np.square(flat[:100_000])))))[:5]
    for place in places:
        right = flat[place]
        flat[place] = right * np.float32(1.004)
        assert not judged_by_probes(known, wrong).passed, f"{operator}: element {place} off by 0.4% survives"
        flat[place] = right
    assert judged_by_probes(known, wrong).passed
