"""Ceilings are measured, and the benchmarks time nothing that was not verified."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import pytest

from conformance import Unavailable
from conformance.implementations.devices import missing
from conformance.resources import IMPLS
from conformance.timing import roofline
from conformance.timing.measurement import means, ratios
from conformance.worker import ceilings as measuring
from tests.conftest import Project

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("one_core")

SUITE = """
from dataclasses import replace

import pytest
from conformance.problems import typed

SMALL = typed("n1 c2 h4 w4 k2 r3 s3 p1")

@pytest.mark.benchmarks("conv_forward", problems=[SMALL, replace(SMALL, level="full")])  # on a CPU, elsewhere
def test_times(measure_time, case):
    measure_time(case)
"""
PLUGINS = "conformance.plugin", "pytest_benchmark.plugin"


@pytest.fixture
def bench(project: Project, ceilings: Any) -> Project:
    """A project with one benchmark."""
    ceilings(roofline.Ceilings(1e15, 1e15, "given"))
    project.pytester.makeconftest(f"pytest_plugins = {PLUGINS}")
    project.write("suite/test_suite.py", SUITE)
    return project


def no_torch() -> None:
    raise Unavailable("no torch")


def test_ceilings_are_those_of_finished_work(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measuring, "SIZES", {"cpu": ((32, 64), 1 << 16)})
    monkeypatch.setattr(measuring, "SECONDS", 0.01)
    monkeypatch.setattr(measuring, "torch_arrays", lambda device: SimpleNamespace(require=no_torch))
    found = roofline.measure_ceilings("cpu", None)
    assert found.source == "NumPy, 32 x 32 or 64 x 64, 0 MiB"
    assert all(math.isfinite(value) and value > 0 for value in (found.flops, found.bandwidth))
    for device, reason in (("cuda", "no torch"), ("trn1", "no ceilings are known for trn1")):
        with pytest.raises(Unavailable, match=f"^{reason}$"):
            roofline.measure_ceilings(device, None)


def test_a_ceiling_is_the_best_round(monkeypatch: pytest.MonkeyPatch):
    clock = iter([0.0, 0.1, 0.4, 0.5, 0.6, 0.7, 0.9, 9.9])
    monkeypatch.setattr(measuring, "SECONDS", 0.85)
    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    rate, spread = measuring._rates(7, lambda: None)
    assert rate == pytest.approx(70)
    assert spread == pytest.approx(1)  # rounds of 0.3, 0.1 and 0.2


def test_ceilings_by_torch(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(measuring, "SIZES", {"cpu": ((32, 64), 1 << 16)})
    monkeypatch.setattr(measuring, "SECONDS", 0.01)
    found = roofline.measure_ceilings("cpu", None)
    assert found.source == "NumPy or torch, 32 x 32 or 64 x 64, 0 MiB"
    assert found.flops > 0


def test_what_fails_on_a_device_leaves_it_without_ceilings(monkeypatch: pytest.MonkeyPatch):
    def fails(*_: Any) -> Any:
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setattr(measuring, "SIZES", {"cpu": ((32,), 1 << 16)})
    monkeypatch.setattr(measuring, "_rates", fails)
    with pytest.raises(Unavailable, match=r"^not measured: out of memory$"):
        roofline.measure_ceilings("cpu", None)


def test_of_two_measurements_the_best_counts():
    one, two = roofline.Ceilings(2.0, 8.0, "a", 0.1), roofline.Ceilings(3.0, 4.0, "b", 0.2)
    assert roofline.best([one, two]) == roofline.Ceilings(3.0, 8.0, "a", 0.1)


def test_ratios_have_a_baseline_on_each_device():
    seconds = {
        ("cpu", "conv_forward", "a", "acme"): [2.0],
        ("cpu", "conv_forward", "a", "torch-cpu"): [1.0],
        ("cuda", "conv_forward", "a", "warp"): [0.25],
        ("cuda", "conv_forward", "a", "torch-cuda"): [0.5],
        ("cpu", "conv_forward", "b", "acme"): [2.0],
    }
    found = ratios(seconds)
    values = {key: one.value for key, one in found.items()}
    assert values == {("cpu", "conv_forward", "a", "acme"): 0.5, ("cuda", "conv_forward", "a", "warp"): 2.0}
    assert means(found) == {("conv_forward", "acme"): (0.5, 1), ("conv_forward", "warp"): (2.0, 1)}


def test_a_right_kernel_is_timed(bench: Project):
    outcome = bench.pytest("--benchmark-only", f"--impl={IMPLS / 'torch_native'}", f"--impl={bench.kernel()}")
    assert (outcome.exit, outcome.statuses["pass"]) == (0, 2)
    assert "speed of what was verified" in outcome.text
    assert re.search(r"conv_forward geometric mean relative to torch: acme [\d.]+x of 1", outcome.text)
    names = re.findall(r"^  (torch-cpu|acme) +[\d.,]+ ", outcome.text, re.MULTILINE)
    assert names == ["torch-cpu", "acme"]


def test_a_wrong_kernel_is_not(bench: Project):
    bench.kernel(body="return y + 1")
    outcome = bench.pytest("--benchmark-only")
    assert (outcome.exit, outcome.statuses) == (1, {"fail": 1})
    assert "speed of what" not in outcome.text
    assert "elements mismatched" in outcome.text


def test_a_benchmark_without_its_device_does_not_end_well(bench: Project):
    device = next(name for name in ("trn1", "cuda") if missing(name))
    bench.kernel(construct=f", device='{device}'")
    outcome = bench.pytest("--benchmark-only", "-m", device)
    assert (outcome.exit, outcome.statuses) == (5, {"unavailable": 1})
    assert f"{device}: nothing verified: {missing(device)}" in outcome.text


def test_a_broken_file_fails_a_run_of_benchmarks(bench: Project):
    """`--benchmark-only` skips what is no benchmark, and what cannot be loaded must not be lost so."""
    bench.kernel()
    bench.kernel("broken", head="1 / 0")
    outcome = bench.pytest("--benchmark-only", "--visits=1")
    assert (outcome.exit, outcome.statuses) == (1, {"pass": 1, "error": 1})
    assert "ZeroDivisionError" in outcome.text
