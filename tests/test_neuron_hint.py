"""Where a device is missing, the run says how its kernels can run on the CPU, if anything here can do that."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.implementations.bridges.neuron_stacks import STACKS
from conformance.implementations.devices import missing
from conformance.reporting.terminal import simulators
from tests.conftest import Project

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


def stand_in(project: Project, name: str, device: str, **fields: str) -> None:
    """An implementation on `device` that executes Trainium's kernels."""
    given = ", ".join(f"{field}={value!r}" for field, value in fields.items())
    project.kernel(name, head=HEAD, construct=f", device={device!r}, arrays=StandIn({given})")


def test_a_missing_device_names_what_runs_its_kernels(project: Project):
    project.kernel("acme", construct=", device='trn1'")
    stand_in(project, "acme_sim", "simulator")
    stand_in(project, "acme_emu", "emulator")
    stand_in(project, "acme_emu_gen3", "emulator")
    outcome = project.run("-m", "trn1")
    assert outcome.exit == 5
    ways = "pytest -m emulator (acme_emu, acme_emu_gen3), pytest -m simulator (acme_sim)"
    assert f"trn1: the same kernels run on the CPU: {ways}" in outcome.text


def test_no_implementation_of_the_device_is_needed(project: Project):
    stand_in(project, "acme", "emulator")
    outcome = project.run("-m", "trn2")
    assert outcome.exit == 5
    assert "trn2: the same kernels run on the CPU: pytest -m emulator (acme)" in outcome.text


@pytest.mark.parametrize("marker", ["trn3", "cuda", "emulator"])
def test_nothing_is_said_of_other_devices(project: Project, marker: str):
    if not missing("cuda") and marker == "cuda":
        pytest.skip("this machine has cuda")
    stand_in(project, "acme", "emulator")
    assert "the same kernels" not in project.run("-m", marker).text


def test_what_cannot_run_either_is_not_named(project: Project):
    project.kernel("acme", construct=", device='trn1'")
    stand_in(project, "acme_sim", "simulator", reason="no wheel for this machine")
    assert "the same kernels" not in project.run("-m", "trn1").text


def test_nothing_is_said_where_something_was_verified(project: Project):
    stand_in(project, "acme", "emulator")
    outcome = project.run("-m", "trn1 or emulator")
    assert outcome.statuses == {"pass": 1}
    assert "trn1: the same kernels run on the CPU: pytest -m emulator (acme)" in outcome.text
    assert "emulator: the same" not in outcome.text


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
