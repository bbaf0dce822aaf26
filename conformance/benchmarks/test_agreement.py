"""The benchmark suite's clock beside torch's own: the same kernel on the same problem in the same run, in turn.

Target: within 5% on a machine that does nothing else. Printed, not asserted. torch's timer loops over buffers that
rotate as the suite's do. Beside it stands what it measures on one set of inputs, which stays in the cache as far as it
fits. It runs in a process of its own.
"""

from __future__ import annotations

import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, cycle, product
from typing import Any

import pytest

from conformance.execution.case import Case, absence_reason
from conformance.implementations import registry
from conformance.inputs import expectation
from conformance.operators import CONVOLUTIONS, OPERATORS
from conformance.plugin.session import SESSION
from conformance.problems import PROBLEMS, Variant
from conformance.resources import IMPLS
from conformance.timing.conditions import cores, share_threads
from conformance.timing.rotation import FLOOD_FACTOR, Rotation
from conformance.worker.memory import MAX_FLOOD, keep_pages, last_level_cache

LAYERS = (
    "unet-reduced.64x64", "unet-reduced.256x256", "resnet50.conv5.3x3", "resnet50.conv2.3x3@56", "resnext50.conv4",
    "mobilenetv2.dw144",
)  # fmt: skip
LARGE = ("unet.512x512@64", "unet.128x128@256")
PLACES = (*product(LAYERS, CONVOLUTIONS), *product(LARGE, ("conv_forward",)))
TURNS = 15
"""Many and short ones: where the machine's speed moves for seconds at a time, turns of three seconds compare one speed
with another; the middle of five such ratios lay up to 16% from 1."""
SECONDS, CALLS = 0.1, 3
"""Least time and least number of calls of torch's timer in a turn."""
ROTATED = min(MAX_FLOOD, int(FLOOD_FACTOR * (last_level_cache("cpu") or 0)))
"""Bytes of buffers that torch's timer rotates through."""


def case_of(implementation: Any, name: str, operator: str) -> Case:
    problem = next(problem for problem in PROBLEMS if problem.name == name)
    return Case(implementation, OPERATORS[operator], problem, Variant("fp32", "nchw", "fixed"), 0)


@cache
def timers(name: str, operator: str) -> list[Any]:
    """torch's timers of rotated buffers, and of one set of inputs."""
    known = registry.load([IMPLS / "torch_native"]).implementations["torch-cpu"]
    share_threads(known)
    keep_pages()  # as the suite does; fetching a result's pages anew took as long as the kernel, on a virtual machine
    case = case_of(known, name, operator)
    invocation, inputs = case.invocation(), expectation(case.recipe).inputs
    count = 2 + ROTATED // case.operator.bytes(case.problem.geometry, 4)
    # the function itself, as the suite's clock does: what an `Invocation` does before it took 10 us of each call
    function = partial(case.kernel.function, **invocation.parameters())
    calls = [partial(function, *invocation.to_device(inputs)) for _ in range(count)]
    utilities, threads = import_module("torch.utils.benchmark"), cores()
    return [
        utilities.Timer("next(calls)()", globals={"calls": cycle(turn)}, num_threads=threads)
        for turn in (calls, calls[:1])
    ]


def by_torch(name: str, operator: str, seconds: float) -> list[float]:
    """Medians of torch's timers."""
    return [timer.blocked_autorange(min_run_time=seconds).median for timer in timers(name, operator)]


@pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
@pytest.mark.parametrize(("name", "operator"), PLACES)
def test_agreement_with_torch(
    name: str, operator: str, request: pytest.FixtureRequest, benchmark, capsys: pytest.CaptureFixture[str]
):
    """Ratios of medians, one a turn, and their median; in the file of pytest-benchmark as well."""
    implementation = request.config.stash[SESSION].plan.registry.implementations.get("torch-cpu")
    if implementation is None or absence_reason(implementation) is not None:
        pytest.skip("torch-cpu is not selected")
    rotation, turns = Rotation(case_of(implementation, name, operator)), []
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as torch:
        for _ in range(TURNS):
            rotation.visit()
            own = statistics.median(rotation.visits[-1].seconds)
            seconds = max(SECONDS, CALLS * own)
            turns.append((own, *torch.submit(by_torch, name, operator, seconds).result()))
    ratios = sorted(own / rotated for own, rotated, _ in turns)
    benchmark.extra_info["suite_over_torch"] = ratios
    own, rotated, cached = (statistics.median(medians) for medians in zip(*turns, strict=True))
    benchmark._timer = chain.from_iterable((0.0, seconds) for seconds, *_ in turns).__next__
    benchmark.pedantic(lambda: None, rounds=TURNS)
    with capsys.disabled():
        print(
            f"\n{operator} {name}: benchmark suite {own * 1e3:.3g} ms, torch.utils.benchmark {rotated * 1e3:.3g} ms, "
            f"on one set of inputs {cached * 1e3:.3g} ms; paired ratio {statistics.median(ratios):.3f} "
            f"({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )
