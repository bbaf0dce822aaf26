"""Scaled inputs have exactly scaled results; and which problems are required where, and what a cache holds."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conformance import Implementation, numpy_arrays
from conformance.execution.trial import Trial
from conformance.inputs import Expectation
from conformance.judge import Exact
from conformance.operators import FAMILIES, OPERATORS, ORDINARY, takes
from conformance.problems import PROBLEMS, of_section
from conformance.timing import rotation, scaling
from conformance.timing.clock import CheatError
from conformance.timing.timing_demand import LARGE, QUICK, required
from conformance.worker import memory
from tests import kernels, kit

# a small problem of every family: the first of its table
SMALL = [next(p for p in PROBLEMS if p.geometry.family == family) for family in FAMILIES]


def trial_of(operator: str, layout: str = "nchw") -> Trial:
    problem = next(problem for problem in SMALL if takes(operator, problem.geometry))
    return kit.trial_of(Implementation("acme"), problem, operator, layout=layout)


@pytest.mark.parametrize("operator", ORDINARY)
def test_scaled_inputs_have_exactly_scaled_results(operator: str):
    case = trial_of(operator)
    geometry = case.problem.geometry
    seen = set()
    for content in scaling.scaled_inputs(case):
        inputs = content.inputs()
        found = content.unscaled(case.operator.reference(geometry, inputs))
        for name, exact in content.expected.tensors.reference.items():
            np.testing.assert_array_equal(found[name], exact)
        seen.add(b"".join(array.tobytes() for array in inputs.values()))
    known = OPERATORS[operator].homogeneous
    assert len(seen) == len(scaling.factors(known)) * scaling.draws(known)
    assert len(seen) > rotation.MAX_ROUNDS


def test_the_first_content_is_that_of_the_case():
    case = trial_of("conv_forward", "nhwc")
    first, second = scaling.scaled_inputs(case)[:2]
    drawn = Expectation(case.recipe).inputs["x"]
    for content, sign in ((first, 1), (second, -1)):
        np.testing.assert_array_equal(content.inputs()["x"], sign * drawn)


def test_a_wrong_result_of_scaled_inputs_has_no_time():
    case = trial_of("conv_forward")
    case.implementation.implements("conv_forward")(kernels.conv_forward)
    inputs = scaling.scaled_inputs(case)[5]
    assert abs(inputs.factor) != 1
    outputs = {"y": (inputs.expected.tensors.reference["y"] * inputs.factor).astype(np.float32)}
    slot, subject = rotation._Slot(inputs, [], outputs), rotation._Visit(case, {})
    subject.verify(slot, "right")
    outputs["y"][0, 0, 0, 0] += np.float32(inputs.factor)
    with pytest.raises(CheatError, match=r"^wrong: y: 1 "):
        subject.verify(slot, "wrong")


def test_results_that_were_right_are_known_in_the_next_visit(monkeypatch: pytest.MonkeyPatch):
    judged: list[int] = []

    def judge(*_: Any) -> tuple[()]:
        judged.append(1)
        return ()

    monkeypatch.setattr(Exact, "judge", judge)
    case, digests = trial_of("conv_forward"), dict[int, bytes]()
    case.implementation.implements("conv_forward")(kernels.conv_forward)
    inputs = scaling.scaled_inputs(case)
    exact = inputs[0].expected.tensors.reference["y"].astype(np.float32)

    def judgements(factor: int, value: np.ndarray) -> int:
        rotation._Visit(case, digests).verify(rotation._Slot(inputs[factor], [], {"y": value}), "")
        return len(judged)

    assert judgements(0, exact) == 1
    assert judgements(1, -exact) == 1  # where 0 has become -0
    assert judgements(0, np.nextafter(exact, np.float32(9))) == 2
    assert judgements(0, exact) == 3  # of two that are right, the last one is known


def names_required(table, device: str, level: str) -> set[str]:
    return {problem.name for problem in table if required(problem, device, level)}


def test_accelerators_time_full_size_and_a_cpu_what_ends_in_minutes():
    at_full_size, reduced = (
        of_section("conv", "unet", "networks"),
        of_section("conv", "unet.reduced", "networks.reduced"),
    )
    table = (*at_full_size, *reduced)
    full, small = {problem.name for problem in at_full_size}, {problem.name for problem in reduced}
    assert names_required(table, "cuda", "standard") == names_required(table, "trn1", "full") == full
    assert names_required(table, "cpu", "standard") == small | set(LARGE)
    assert names_required(table, "cpu", "full") == full | small
    assert names_required(table, "cpu", "smoke") <= set(QUICK)
    assert names_required(table, "simulator", "full") == names_required(table, "emulator", "standard") == set()
    assert {*LARGE, *QUICK} <= {problem.name for problem in PROBLEMS}


def test_the_largest_cache_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "CACHES", tmp_path)
    for number, text in enumerate(("48K", "2048K", "32M", "")):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        (folder / "size").write_text(f"{text}\n")
    assert memory.last_level_cache("cpu") == 32 << 20
    monkeypatch.setattr(memory, "CACHES", tmp_path / "none")
    monkeypatch.setattr(memory, "os", SimpleNamespace(sysconf_names={memory.SYSCONF[1]: 1}, sysconf=lambda _: 7))
    assert memory.last_level_cache("cpu") == 7
    monkeypatch.setattr(memory, "os", SimpleNamespace(sysconf_names={}))
    assert memory.last_level_cache("cpu") is None
    device = SimpleNamespace(L2_cache_size=50 << 20)
    cuda = SimpleNamespace(is_available=lambda: True, current_device=int, get_device_properties=lambda _: device)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert memory.last_level_cache("cuda") == 50 << 20


def test_buffers_rotate_through_more_than_the_cache(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rotation, "share_threads", lambda _: {})  # pytest-xdist has shared the cores
    case = trial_of("conv_forward")
    case.implementation.implements("conv_forward")(kernels.conv_forward)
    cold = []
    for size in (1 << 20, 1 << 40, None):
        monkeypatch.setattr(memory, "last_level_cache", lambda _, size=size: size)
        found = kit.rotate(case)
        cold.append(found.cold)
        assert found.rotated <= memory.MAX_FLOOD + len(found.rounds) * case.workload.bytes(4)
        assert size != 1 << 20 or found.rotated >= rotation.FLOOD_FACTOR * size
    assert cold == [True, False, False]


def test_a_flood_writes_what_it_is_asked_to():
    memory.touch(1 << 20)
    before = memory._flooded()[: (1 << 20) + 1].copy()
    memory.touch(1 << 20)
    changed = memory._flooded()[: (1 << 20) + 1] != before
    assert changed[:-1].all()
    assert not changed[-1]


@pytest.mark.skipif(not memory.STATUS.exists(), reason="the peak of resident memory is read from Linux")
def test_memory_is_what_a_call_takes_at_its_peak():
    def kernel() -> np.ndarray:
        scratch = np.ones(1 << 24, np.uint8)
        return scratch[: 1 << 10].copy()

    memory.keep_pages()
    kernel()  # whose memory is free again, and would be used once more
    host, device = memory.growth(numpy_arrays(), kernel, {}, [])
    assert device is None
    assert host is not None
    assert 0.9 * (1 << 24) < host < 2 * (1 << 24)


@pytest.mark.skipif(memory.glibc() is None, reason="the allocator is not glibc")
@pytest.mark.skipif(not memory.STATUS.exists(), reason="resident memory is read from Linux")
@pytest.mark.parametrize("size", [1 << 24, 1 << 26])
def test_freed_memory_is_kept_until_it_is_returned(size: int):
    def resident() -> int:
        found = memory.resident("VmRSS")
        assert found is not None
        return found

    assert memory.keep_pages()
    memory.return_pages()
    before = resident()
    np.ones(size, np.uint8)
    assert resident() - before > 0.8 * size
    memory.return_pages()
    assert resident() - before < 0.2 * size


def test_memory_of_a_device_is_what_its_framework_says(monkeypatch: pytest.MonkeyPatch):
    taken = iter([{"bytes_in_use": 10, "peak_bytes_in_use": 50}, {"peak_bytes_in_use": 70}])
    device = SimpleNamespace(memory_stats=lambda: next(taken))
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(devices=lambda _: [device]))
    bridge: Any = SimpleNamespace(name="jax", platform="gpu", synchronize=lambda _: None)
    assert memory.growth(bridge, lambda: None, {}, [])[1] == 60
    device.memory_stats = lambda: {"bytes_in_use": 10, "peak_bytes_in_use": 50}
    assert memory.growth(bridge, lambda: None, {}, [])[1] is None
    cuda = SimpleNamespace(
        reset_peak_memory_stats=lambda: None, memory_allocated=lambda: 5, max_memory_allocated=lambda: 12
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    bridge = SimpleNamespace(name="torch", device="cuda", synchronize=lambda _: None)
    assert memory.growth(bridge, lambda: None, {}, [])[1] == 7


def test_slow_kernels_have_fewer_rounds():
    assert [rotation.required_rounds(seconds) for seconds in (2.0, 0.9, 0.02, 0.0)] == [1, 2, 5, 6]
    assert [rotation.warm_up_calls(seconds) for seconds in (2.0, 0.4, 0.01, 0.0)] == [0, 1, 10, 16]


def test_other_draws_have_seeds_of_their_own():
    case = trial_of("conv_bn_forward")
    found = scaling.scaled_inputs(case)
    assert {content.expected.recipe.seed for content in found} == {0, 1, 2, 3}
    for content in found:
        assert content.expected.recipe == replace(case.recipe, seed=content.expected.recipe.seed)
