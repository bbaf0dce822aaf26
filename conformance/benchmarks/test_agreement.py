"""The benchmark suite's clock beside torch's own: the same kernel on the same problem in the same run, in turn.

Target: within 5% on a machine that does nothing else. Printed, not asserted. torch's timer loops over buffers that
rotate as the suite's do. Beside it stands what it measures on one set of inputs, which stays in the cache as far as it
fits.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import cycle, product
from typing import Any

import pytest

from conformance.execution.case import Case
from conformance.inputs import expectation
from conformance.operators import CONVOLUTIONS, OPERATORS
from conformance.problems import PROBLEMS, Variant
from conformance.timing import machine
from conformance.timing.memory import MAX_FLOOD, last_level_cache
from conformance.timing.rotation import FLOOD_FACTOR, rotate

torch = pytest.importorskip("torch")
LAYERS = ("unet-reduced.64x64", "resnet50.conv5.3x3", "resnet50.conv2.3x3@56")
PLACES = (*product(LAYERS, CONVOLUTIONS), ("unet.512x512@64", "conv_forward"))
TURNS = 5
SECONDS, CALLS = 0.3, 7
"""Least time and least number of calls of torch's timer in a turn."""
ROTATED = min(MAX_FLOOD, int(FLOOD_FACTOR * (last_level_cache("cpu") or 0)))
"""Bytes of buffers that torch's timer rotates through."""


@pytest.mark.parametrize(("name", "operator"), PLACES)
def test_agreement_with_torch(
    name: str, operator: str, request: pytest.FixtureRequest, benchmark, capsys: pytest.CaptureFixture[str]
):
    """Ratios of medians, one a turn, and their median; in the file of pytest-benchmark as well."""
    utilities = import_module("torch.utils.benchmark")
    machine.share_threads()
    session: Any = request.config.pluginmanager.get_plugin("conformance-session")
    implementation = session.plan.registry.implementations.get("torch-cpu")
    if implementation is None:
        pytest.skip("torch-cpu is not selected")
    problem = next(problem for problem in PROBLEMS if problem.name == name)
    case = Case(implementation, OPERATORS[operator], problem, Variant("fp32", "nchw", "fixed"), 0)
    invocation = case.invocation()

    def prepare() -> Callable[[], Any]:
        return partial(invocation.call, invocation.to_device(expectation(case.recipe).inputs))

    first = prepare()
    count = 1 + ROTATED // case.operator.bytes(problem.geometry, 4)
    rotated = cycle([first, *(prepare() for _ in range(count))])
    timers = [
        utilities.Timer("next(calls)()", globals={"calls": calls}, num_threads=torch.get_num_threads())
        for calls in (rotated, cycle([first]))
    ]
    turns = []
    for _ in range(TURNS):
        own = rotate(case, 0.0).median
        seconds = max(SECONDS, CALLS * own)
        turns.append((own, *(timer.blocked_autorange(min_run_time=seconds).median for timer in timers)))
    ratios = sorted(own / by_torch for own, by_torch, _ in turns)
    benchmark.extra_info["suite_over_torch"] = ratios
    benchmark.pedantic(first, rounds=TURNS)
    own, by_torch, cached = (statistics.median(medians) * 1e3 for medians in zip(*turns, strict=True))
    with capsys.disabled():
        print(
            f"\n{operator} {name}: benchmark suite {own:.3g} ms, torch.utils.benchmark {by_torch:.3g} ms, on one set "
            f"of inputs {cached:.3g} ms; paired ratio {statistics.median(ratios):.3f} "
            f"({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )
