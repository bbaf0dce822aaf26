"""Every NeuronCore belongs to one process: those of kernels take one each, and there are no more of them than cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.cli.words import read
from conformance.implementations import devices
from conformance.implementations.devices import neuron_cores
from tests.conftest import Project

pytest_plugins = ["pytester"]

CORES = "import os\nwanted = os.environ.get('NEURON_RT_NUM_CORES')"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, int], None]]:
    """Makes this one a machine with so many Neuron devices of a kind."""

    def become(kind: str, count: int) -> None:
        for name in devices.NEURON:
            probe = devices._cpu if name == kind else lambda: (_ for _ in ()).throw(devices.Unavailable("not here"))
            monkeypatch.setitem(devices.DEVICES, name, probe)
        monkeypatch.setattr(devices, "_nodes", lambda pattern: [Path(f"/dev/neuron{n}") for n in range(count)])
        monkeypatch.delenv("NEURON_LOGICAL_NC_CONFIG", raising=False)
        devices.missing.cache_clear()

    yield become
    devices.missing.cache_clear()


@pytest.mark.parametrize(
    ("kind", "count", "cores"), [("trn1", 1, 2), ("trn1", 16, 32), ("trn2", 1, 4), ("inf2", 2, 4), ("trn9", 3, 0)]
)
def test_cores_of_a_machine(machine: Callable[[str, int], None], kind: str, count: int, cores: int):
    machine(kind, count)
    assert neuron_cores() == cores


def test_cores_that_are_not_paired(machine: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch):
    machine("trn2", 1)
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    assert neuron_cores() == 8
    machine("trn1", 1)
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    assert neuron_cores() == 2


@pytest.mark.parametrize(("given", "seen"), [(None, "1"), ("2", "2")])
def test_a_kernels_process_takes_one_core(
    project: Project, monkeypatch: pytest.MonkeyPatch, given: str | None, seen: str
):
    if given is None:
        monkeypatch.delenv("NEURON_RT_NUM_CORES", raising=False)
    else:
        monkeypatch.setenv("NEURON_RT_NUM_CORES", given)
    project.kernel("acme", head=CORES, body=f"assert wanted == {seen!r}, wanted\n    return y")
    assert project.run().statuses == {"pass": 1}


def test_no_more_workers_than_cores(project: Project, machine: Callable[[str, int], None]):
    machine("trn1", 1)
    project.kernel("acme", construct=", device='trn1'")
    outcome = project.pytest("-m", "trn1", "-p", "xdist", "-n", "3")
    assert outcome.exit == 4
    assert "-n 3: this machine has 2 NeuronCores, each of which belongs to one process; -n 2 at most" in outcome.text


@pytest.mark.parametrize(
    ("marker", "level", "seconds"),
    [("trn1", "standard", 600), ("trn2 or cpu", "smoke", 600), ("cpu", "standard", 60), ("", "huge", 600)],
)
def test_a_call_may_compile_for_minutes(marker: str, level: str, seconds: float):
    _, _, chosen = read(["numpy-direct", "-m", marker, "--level", level])
    assert chosen.limits is not None
    assert chosen.limits.seconds == seconds
