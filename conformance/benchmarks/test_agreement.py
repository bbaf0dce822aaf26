"""The lane's clock beside torch's own: the same kernel on the same problem in the same run, in turn.

Target: within 5% on a machine that does nothing else. Printed, not asserted. torch's timer loops over buffers that
rotate as the lane's do. Beside it stands what it says of one set of inputs, which stays in the cache as far as it fits.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
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
LAYERS = ("unet-twin.64x64", "resnet50.conv5.3x3", "resnet50.conv2.3x3@56")
PLACES = (*product(LAYERS, CONVOLUTIONS), ("unet.512x512@64", "conv_forward"))
TURNS = 5
SECONDS, CALLS = 0.3, 7
"""Least time and least number of calls of torch's timer in a turn."""
TOGETHER = min(MAX_FLOOD, int(FLOOD_FACTOR * (last_level_cache("cpu") or 0)))
"""Bytes of buffers that it rotates through."""


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
    count = 1 + TOGETHER // case.operator.bytes(problem.geometry, 4)
    calls = cycle([first, *(prepare() for _ in range(count))])
    timers = [
        utilities.Timer("next(calls)()", globals={"calls": some}, num_threads=torch.get_num_threads())
        for some in (calls, cycle([first]))
    ]
    turns = [_turn(rotate(case, 0.0).median, timers) for _ in range(TURNS)]
    ratios = sorted(lane / own for lane, own, _ in turns)
    benchmark.extra_info["lane_over_torch"] = ratios
    benchmark.pedantic(first, rounds=TURNS)
    lane, own, cached = (statistics.median(found) * 1e3 for found in zip(*turns, strict=True))
    with capsys.disabled():
        print(
            f"\n{operator} {name}: lane {lane:.3g} ms, torch.utils.benchmark {own:.3g} ms, on one set of inputs "
            f"{cached:.3g} ms; paired ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )


def _turn(lane: float, timers: Iterable[Any]) -> tuple[float, ...]:
    """Median seconds by the lane and by torch's timers."""
    return lane, *(timer.blocked_autorange(min_run_time=max(SECONDS, CALLS * lane)).median for timer in timers)
