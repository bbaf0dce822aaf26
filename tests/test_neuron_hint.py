"""Where a device is missing, the run says how its kernels can run on the CPU, if anything here can do that."""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from conformance.implementations.bridges.neuron_stacks import STACKS
from conformance.implementations.devices import missing
from conformance.reporting.terminal import simulators
from tests.conftest import Project
from tests.kit import lasting

HEAD = """
from dataclasses import dataclass
from conformance.implementations.bridges.numpy import NumpyArrays

@dataclass(frozen=True, slots=True)
class StandIn(NumpyArrays):
    stands_for: tuple = ("trn1", "trn2")
    reason: str = ""

    def require(self):
        if self.reason:
            raise Unavailable(self.reason)
"""

pytest_plugins = ["pytester"]

pytestmark = pytest.mark.skipif(not missing("trn1"), reason="this machine has trn1")


def stand_in(device: str, reason: str = "") -> dict[str, str]:
    """Return what makes an implementation on `device` one that executes Trainium's kernels."""
    return {"head": HEAD, "construct": f", device={device!r}, arrays=StandIn(reason={reason!r})"}


KERNELS = {
    "acme": {"construct": ", device='trn1'"},
    "acme_emu": stand_in("emulator"),
    "acme_emu_gen3": stand_in("emulator"),
    "acme_sim": stand_in("simulator"),
    "no_wheel": stand_in("simulator", reason="no wheel for this machine"),
}
RUNS = {
    "several": "trn1: acme acme_emu acme_emu_gen3 acme_sim",
    "no implementation of the device": "trn2: acme_emu",
    "another device": "trn3: acme_emu",
    "the device itself": "emulator: acme_emu",
    "what cannot run either": "trn1: acme no_wheel",
    "something verified": "trn1 or emulator: acme_emu",
}
"""A marker, and the kernels of a run."""


@pytest.mark.parametrize("words", RUNS.values(), ids=RUNS)
def test_a_missing_device_names_what_runs_its_kernels(project: Project, snapshot: SnapshotAssertion, words: str):
    marker, _, names = words.partition(": ")
    for name in names.split():
        project.kernel(name, **KERNELS[name])
    outcome = project.run("-m", marker)
    assert f"exit status {outcome.exit}\n{lasting(outcome.text)}" == snapshot


@pytest.mark.parametrize("width", [40, 79, 160])
def test_lines_fit(width: int):
    ways = {"simulator": [f"implementation-{number}@sim" for number in range(9)], "emulator": ["a"]}
    shown = simulators("trn1", ways, width)
    assert max(map(len, shown)) <= width
    assert "pytest -m emulator (a), pytest -m simulator (implementation-0@sim," in " ".join(shown)
    assert simulators("trn1", {}, width) == []


def test_a_run_without_a_device_names_the_command_of_every_stack(project: Project):
    words = ("nki/__init__.py", "neuron_torch.py", "neuron_jax.py", "neuronx_conv/__init__.py")
    impls = Path(__file__).parents[1] / "impls"
    given = [f"--impl={impls / word.removesuffix('/__init__.py')}" for word in words]
    outcome = project.run("-m", "trn1", *given)
    assert outcome.exit == 5
    text = " ".join(outcome.text.split())
    for name, stack in zip(("nki", "torch-neuronx", "jax-neuronx", "neuronx-conv"), STACKS, strict=False):
        reason = f"{missing('trn1')}; where there is one: {stack.way('trn1')}"
        assert {record["reason"] for record in outcome.records if record["implementation"] == name} == {reason}
        assert f"unavailable: {name}: {reason}" in text
