"""Meters of memory, and the network that they measure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conformance.checks import memory
from conformance.problems import typed
from tests.checks.test_memory import concluded, hoarding, offering, torch_kernels

torch = pytest.importorskip("torch")

from conformance.implementations.bridges import torch_memory, torch_network  # noqa: E402

__all__ = ["torch_kernels"]  # a fixture


def test_live_bytes_follow_tensors():
    """Views count once, what is freed counts no more, the peak stays."""
    with torch_memory.LiveBytes() as meter:
        given = torch.zeros(1000)
        view = given[:10].reshape(5, 2)
        assert meter.live == 4000
        more = given + 1
        assert meter.live == 8000
        del more
        assert (meter.live, meter.peak) == (4000, 8000)
        more = given.add_(1)
        assert meter.live == 4000
        del given, more
        assert meter.live == 4000
        del view
        assert (meter.live, meter.peak) == (0, 8000)


def test_cuda_bytes_ask_the_allocator(monkeypatch: pytest.MonkeyPatch):
    allocated, calls = iter([100, 700]), []
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: next(allocated))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 2100)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: calls.append("reset"))
    with torch_memory.CudaBytes() as meter:
        meter.count([torch.zeros(3)])
        assert (meter.live, meter.peak) == (600, 2000)
    assert calls == ["synchronize", "reset", "synchronize"]


def test_network_takes_less_with_the_fused_pair(torch_kernels):
    """Forward ends with the convolutions' inputs alive, and without the fused pair with their outputs too, and with the
    ones that torch's batch_norm, which knows no other way to have none, gets and keeps as gamma."""
    problem = typed("bn n4 c32 h26 w26 k64 r3 s3 affine0 run0 eps3")
    rows = {}
    for label, saves in (("unfused", 2), ("fused", 1)):
        acme = offering(torch_kernels[label], saves)
        verdict = concluded(acme, memory.training_holds_what_autograd_shows, problem)
        assert (verdict.status, verdict.reason) == ("pass", "")
        rows[label] = verdict.facts.training_steps[0]
    outputs, gammas = 4 * (32 * 26 * 26 + 64 * 24 * 24), 32 + 64
    assert rows["unfused"].forward_bytes - rows["fused"].forward_bytes == (outputs + gammas) * 4
    assert rows["fused"].peak_bytes < rows["unfused"].peak_bytes


def test_peak_is_that_of_a_step_that_nobody_watches(torch_kernels):
    """Seeing what the graph keeps does not keep it."""
    pair, batch = tutorial_pair(torch_kernels["fused"]), 3
    images, target, parameters = torch_network._drawn(batch, "cpu")
    with torch_memory.LiveBytes() as meter:
        meter.count([images, target, *parameters])
        torch_network._loss(pair, images, target, parameters).backward()
    assert torch_network.footprint(pair, batch, "cpu").peak == meter.peak


def tutorial_pair(kernel: Any) -> Any:
    keywords: dict[str, Any] = {"groups": 1, "eps": 1e-3, "eps_outside": False, "momentum": 0.1}
    keywords |= {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "layout": "nchw"}
    return lambda x, w: kernel(x, w, None, None, None, None, **keywords)[0]


def test_memory_that_outlives_forward_unseen_fails(torch_kernels):
    held: list[Any] = []
    pair = hoarding(torch_kernels["fused"], lambda ctx, y: held.append(y))
    problem = typed("bn n2 c32 h26 w26 k64 r3 s3 affine0 run0 eps3")
    verdict = concluded(offering(pair, 1), memory.training_holds_what_autograd_shows, problem)
    assert verdict.status == "fail"
    assert f"pair: {2 * (32 * 26 * 26 + 64 * 24 * 24) * 4:,} B live after forward" in verdict.reason


def test_cuda_is_allowed_scratch_memory_and_warmed_up(torch_kernels, monkeypatch: pytest.MonkeyPatch):
    """CUDA's two steps, taken on the CPU: the first is not measured, the second may count less than an activation."""
    steps = []
    real = torch_network._step

    def step(pair, batch, device, meter):
        steps.append(type(meter).__name__)
        return replace(real(pair, batch, "cpu", torch_memory.LiveBytes()), scratch=batch * torch_network.SMALLEST)

    for name, value in (("memory_allocated", lambda: 0), ("max_memory_allocated", lambda: 0)):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch_network, "_step", step)
    found = torch_network.footprint(tutorial_pair(torch_kernels["fused"]), 2, "cuda")
    assert steps == ["CudaBytes", "CudaBytes"]
    assert (found.hidden, found.scratch) == (0, 2 * 32 * 26 * 26 * 4)
