"""torch and jax on Neuron: their bridges by fakes of the vendor's plugins, their kernels on the CPU."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from conformance.execution.trial import Trial
from conformance.execution.verify import verify
from conformance.implementations import registry
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.bridges.jax import jax_arrays
from conformance.implementations.bridges.neuron import FLAGS, JaxNeuronArrays, TorchNeuronArrays, torch_neuron_arrays
from conformance.implementations.bridges.neuron_stacks import JAX, TORCH
from conformance.implementations.bridges.torch import torch_arrays
from conformance.implementations.implementation import Implementation, Unsupported
from conformance.operators import OPERATORS, takes
from conformance.problems import Variant, typed
from nki_emulator.tests.kernels.neuron_fakes import absence, install, module

IMPLS = Path(__file__).parents[3] / "impls"
FILES: dict[str, ArrayBridge] = {"neuron_torch.py": torch_arrays(), "neuron_jax.py": jax_arrays()}
CONVOLUTIONS = (
    "n2 c4 h6 w7 k6 r3 s2 p1",
    "n1 c4 h7 w6 k4 r3 s3 u2 d2 p2 g2 b1",
    "n1 c2 h5 w5 k3 r2 s3 p1:0x2:1 b1",
    "n1 c3 h5 w5 k3 r1 s1 g3",
)
POOLS = ("pool n2 c3 h6 w7 r3 s2 u2 p1", "pool n1 c2 h7 w7 r3 s3 u2 p1 ceil1 valid1", "pool n1 c1 h5 w5 r2 s2 u1 div3")


def on_cpu(file: str) -> Implementation:
    """The kernels of a file, declared for tensors of the CPU."""
    bridge = FILES[file]
    if absence(bridge.require):
        pytest.skip(absence(bridge.require))
    loaded = registry.load([IMPLS / file])
    (implementation,) = loaded.implementations.values()
    subject = Implementation(implementation.name, arrays=bridge)
    subject.kernels.extend(implementation.kernels)
    return subject


def cases() -> list[tuple[str, str, str]]:
    """File, operator and problem of everything that these files implement."""
    found = []
    for file, implementation in ((file, registry.load([IMPLS / file]).implementations.values()) for file in FILES):
        (only,) = implementation
        for operator in dict.fromkeys(kernel.operator for kernel in only.kernels):
            found += [(file, operator, p) for p in (*CONVOLUTIONS, *POOLS) if takes(operator, typed(p).geometry)]
    return found


@pytest.mark.parametrize(("file", "operator", "problem"), cases())
@pytest.mark.parametrize("distribution", ["fixed", "integer"])
def test_kernels_are_right(file: str, operator: str, problem: str, distribution: str):
    case = Trial(on_cpu(file), OPERATORS[operator], typed(problem), Variant("fp32", "nchw", distribution), seed=7)
    verdict = verify(case)
    assert (verdict.status, verdict.reason) == ("pass", "")


@pytest.mark.parametrize("padding", ["p1:0x0:1", "p2", "p0x2"])
def test_pools_that_torch_does_not_pad_are_refused(padding: str):
    geometry = typed(f"pool n1 c1 h5 w5 r3 s3 {padding}").geometry
    with pytest.raises(Unsupported, match="outside the declared capability"):
        on_cpu("neuron_torch.py").find("avg_pool_forward", geometry, "fp32", "nchw")


def fake_torch_neuron(monkeypatch: pytest.MonkeyPatch, kind: str) -> list[str]:
    """torch_neuronx over torch_xla on a device of a kind; the list fills with what the bridge calls."""
    calls: list[str] = []
    model = module(
        "torch_xla.core.xla_model",
        mark_step=lambda: calls.append("mark_step"),
        wait_device_ops=lambda: calls.append("wait_device_ops"),
    )
    runtime = module("torch_xla.runtime", device_type=lambda: kind)
    plugin = module("torch_neuronx", __version__="2.8.0-fake")
    install(
        monkeypatch, plugin, module("torch_xla", __version__="2.8.1-fake"), module("torch_xla.core"), model, runtime
    )
    return calls


@pytest.mark.parametrize(("kind", "words"), [("NEURON", ""), ("CPU", "torch_xla runs on CPU, not on NEURON")])
def test_torch_xla_on_another_device_is_unavailable(monkeypatch: pytest.MonkeyPatch, kind: str, words: str):
    pytest.importorskip("torch")
    fake_torch_neuron(monkeypatch, kind)
    reason = absence(TorchNeuronArrays("xla").require)
    assert reason.startswith(words)
    assert bool(reason) == bool(words)


def test_torch_xla_submits_before_it_waits(monkeypatch: pytest.MonkeyPatch):
    calls = fake_torch_neuron(monkeypatch, "NEURON")
    TorchNeuronArrays("xla").synchronize(None)
    assert calls == ["mark_step", "wait_device_ops"]


def test_torch_xla_has_no_memory_to_share(monkeypatch: pytest.MonkeyPatch):
    bridge = TorchNeuronArrays("xla")
    assert (bridge.view(None, 0, (1,), (1,)), bridge.overlap(None, None)) == (None, False)


def test_records_say_what_compiled(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    fake_torch_neuron(monkeypatch, "NEURON")
    monkeypatch.setenv(FLAGS, "--auto-cast=none")
    described = TorchNeuronArrays("xla").describe()
    expected = {"torch_neuronx": "2.8.0-fake", "torch_xla": "2.8.1-fake", FLAGS: "--auto-cast=none", "device": "trn1"}
    assert described.items() >= expected.items()


def test_without_torch_xla_the_device_is_the_plugins_own(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    if find_spec("torch_xla"):
        pytest.skip("torch_xla is here")
    install(monkeypatch, module("torch_neuronx", __version__="2.14-fake"))
    bridge = torch_neuron_arrays()
    assert bridge.device == "neuron"
    assert absence(bridge.require).endswith("reports no neuron device")


def test_jax_without_the_plugin_is_unavailable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "libneuronxla", None)
    reason = absence(JaxNeuronArrays("neuron").require)
    assert reason.startswith("libneuronxla cannot be imported")
    assert reason.endswith(JAX.way("trn1"))


def test_torch_without_the_plugin_is_unavailable(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "torch_neuronx", None)
    reason = absence(TorchNeuronArrays("xla").require)
    assert reason.startswith("torch_neuronx cannot be imported")
    assert reason.endswith(TORCH.way("trn1"))


def test_jax_without_a_neuron_device_is_unavailable(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("jax")
    bridge = JaxNeuronArrays("neuron")
    if not absence(bridge.require):
        pytest.skip("jax has a Neuron device")
    install(monkeypatch, module("libneuronxla", __version__="2.3-fake"))
    assert absence(bridge.require).endswith("reports no neuron device")


def test_every_bridge_is_one():
    members = [name for name in vars(ArrayBridge) if not name.startswith("_")]
    bridges: list[Any] = [TorchNeuronArrays("xla"), JaxNeuronArrays("neuron")]
    assert [name for name in members for bridge in bridges if not hasattr(bridge, name)] == []
