"""Scaled inputs have exactly scaled results; and which problems are due where, and what a cache holds."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conformance import Implementation, numpy_arrays
from conformance.execution.case import Case
from conformance.inputs import Expectation
from conformance.operators import OPERATORS, takes
from conformance.problems import PROBLEMS, Variant, typed
from conformance.problems.networks import CLASSIFIERS, CLASSIFIERS_FULL, UNET, UNET_TWINS
from conformance.timing import allocator, cache, memory, rotation
from conformance.timing import contents as subject
from conformance.timing.due import LARGE, QUICK, required
from tests import kernels

GEOMETRIES = {
    "conv": "n2 c4 h6 w5 k6 r3 s3 p1 g2 b1",
    "conv_bn": "bn n3 c4 h6 w5 k6 r3 s3 p1",
    "avg_pool": "pool n2 c3 h7 w6 r3 s3 u2 p1",
    "max_pool": "maxpool n2 c3 h7 w6 r3 s3 u2 p1",
}


def case_of(operator: str, layout: str = "nchw") -> Case:
    problem = next(p for p in map(typed, GEOMETRIES.values()) if takes(operator, p.geometry))
    acme = Implementation("acme", arrays=numpy_arrays())
    return Case(acme, OPERATORS[operator], problem, Variant("fp32", layout, "fixed"), 0)


@pytest.mark.parametrize("operator", OPERATORS)
def test_scaled_inputs_have_exactly_scaled_results(operator: str):
    case = case_of(operator)
    geometry = case.problem.geometry
    seen = set()
    for content in subject.contents(case):
        inputs = content.inputs()
        found = content.plain(case.operator.reference(geometry, inputs))
        for name, exact in content.expected.reference.items():
            np.testing.assert_array_equal(found[name], exact)
        seen.add(b"".join(array.tobytes() for array in inputs.values()))
    known = OPERATORS[operator].homogeneous
    assert len(seen) == len(subject.factors(known)) * (subject.DRAWS if known.powers else subject.MORE_DRAWS)
    assert len(seen) > rotation.USUAL


def test_the_first_content_is_that_of_the_case():
    case = case_of("conv_forward", "nhwc")
    first, second = islice(subject.contents(case), 2)
    drawn = Expectation(case.recipe).inputs["x"]
    for content, sign in ((first, 1), (second, -1)):
        np.testing.assert_array_equal(content.inputs()["x"], sign * drawn)


def test_a_wrong_result_of_a_scaled_content_is_refuted():
    case = case_of("conv_forward")
    implementation = case.implementation
    implementation.implements("conv_forward")(lambda x, w, bias: x)
    kernel = case.kernel
    content = next(islice(subject.contents(case), 5, None))
    assert abs(content.factor) != 1
    right = {"y": (content.expected.reference["y"] * content.factor).astype(np.float32)}
    assert content.refuted(content.plain(right), kernel.contract) == ""
    right["y"][0, 0, 0, 0] += np.float32(content.factor)
    assert "1 of " in content.refuted(content.plain(right), kernel.contract)


def names_due(table, device: str, level: str) -> set[str]:
    return {problem.name for problem in required(table, device, level)}


def test_accelerators_time_full_size_and_a_cpu_what_ends_in_minutes():
    table = (*UNET_TWINS, *UNET, *CLASSIFIERS, *CLASSIFIERS_FULL)
    full, small = {p.name for p in (*UNET, *CLASSIFIERS_FULL)}, {p.name for p in (*UNET_TWINS, *CLASSIFIERS)}
    assert names_due(table, "cuda", "standard") == names_due(table, "trn1", "full") == full
    assert names_due(table, "cpu", "standard") == small | set(LARGE)
    assert names_due(table, "cpu", "full") == full | small
    assert names_due(table, "cpu", "smoke") <= set(QUICK)
    assert names_due(table, "simulator", "full") == names_due(table, "emulator", "standard") == set()
    assert {*LARGE, *QUICK} <= {problem.name for problem in PROBLEMS}


def test_the_largest_cache_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "CACHES", tmp_path)
    for number, text in enumerate(("48K", "2048K", "32M", "")):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        (folder / "size").write_text(f"{text}\n")
    assert cache.last_level("cpu") == 32 << 20
    monkeypatch.setattr(cache, "CACHES", tmp_path / "none")
    monkeypatch.setattr(cache, "os", SimpleNamespace(sysconf_names={cache.SYSCONF[1]: 1}, sysconf=lambda _: 7))
    assert cache.last_level("cpu") == 7
    monkeypatch.setattr(cache, "os", SimpleNamespace(sysconf_names={}))
    assert cache.last_level("cpu") is None
    device = SimpleNamespace(L2_cache_size=50 << 20)
    cuda = SimpleNamespace(is_available=lambda: True, current_device=int, get_device_properties=lambda _: device)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert cache.last_level("cuda") == 50 << 20


def test_buffers_rotate_through_more_than_the_cache(monkeypatch: pytest.MonkeyPatch):
    case = case_of("conv_forward")
    case.implementation.implements("conv_forward")(kernels.conv_forward)
    cold = []
    for size in (1 << 20, 1 << 40, None):
        monkeypatch.setattr(rotation, "last_level", lambda _, size=size: size)
        found = rotation.rotate(case)
        cold.append(found.cold)
        assert found.rotated <= cache.FLOOD + len(found.seconds) * case.operator.bytes(case.problem.geometry, 4)
        assert size != 1 << 20 or found.rotated >= rotation.BEYOND * size
    assert cold == [True, False, False]


def test_a_flood_writes_what_it_is_asked_to():
    cache.touch(1 << 20)
    before = cache._memory()[: (1 << 20) + 1].copy()
    cache.touch(1 << 20)
    changed = cache._memory()[: (1 << 20) + 1] != before
    assert changed[:-1].all()
    assert not changed[-1]


@pytest.mark.skipif(not memory.STATUS.exists(), reason="the peak of resident memory is read from Linux")
def test_memory_is_what_a_call_takes_at_its_peak():
    def call() -> np.ndarray:
        scratch = np.ones(1 << 24, np.uint8)
        return scratch[: 1 << 10].copy()

    allocator.keep_pages()
    call()  # whose memory is free again, and would be used once more
    found = memory.growth(call, numpy_arrays())
    assert found.device is None
    assert found.host is not None
    assert 0.9 * (1 << 24) < found.host < 2 * (1 << 24)


@pytest.mark.skipif(allocator._library() is None, reason="the allocator is not glibc")
@pytest.mark.skipif(not memory.STATUS.exists(), reason="resident memory is read from Linux")
@pytest.mark.parametrize("size", [1 << 24, 1 << 26])
def test_freed_memory_is_kept_until_it_is_returned(size: int):
    def resident() -> int:
        found = memory._resident("VmRSS")
        assert found is not None
        return found

    assert allocator.keep_pages()
    allocator.return_pages()
    before = resident()
    np.ones(size, np.uint8)
    assert resident() - before > 0.8 * size
    allocator.return_pages()
    assert resident() - before < 0.2 * size


def test_memory_of_a_device_is_what_its_framework_says(monkeypatch: pytest.MonkeyPatch):
    taken = iter([{"bytes_in_use": 10, "peak_bytes_in_use": 50}, {"peak_bytes_in_use": 70}])
    device = SimpleNamespace(memory_stats=lambda: next(taken))
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(devices=lambda _: [device]))
    bridge: Any = SimpleNamespace(name="jax", platform="gpu")
    assert memory.growth(lambda: None, bridge).device == 60
    device.memory_stats = lambda: {"bytes_in_use": 10, "peak_bytes_in_use": 50}
    assert memory.growth(lambda: None, bridge).device is None
    cuda = SimpleNamespace(
        reset_peak_memory_stats=lambda: None, memory_allocated=lambda: 5, max_memory_allocated=lambda: 12
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    bridge = SimpleNamespace(name="torch", device="cuda")
    assert memory.growth(lambda: None, bridge).device == 7


def test_slow_kernels_have_fewer_rounds():
    assert [rotation.rounds_due(seconds) for seconds in (2.0, 0.9, 0.02, 0.0)] == [3, 7, 25, 40]
    assert [rotation.calls_before(seconds) for seconds in (2.0, 0.4, 0.2, 0.0)] == [0, 1, 2, 2]


def test_other_draws_have_seeds_of_their_own():
    case = case_of("conv_bn_forward")
    found = list(subject.contents(case))
    assert {content.case.seed for content in found} == {0, 1, 2, 3}
    for content in found:
        assert content.expected.recipe == replace(case, seed=content.case.seed).recipe
