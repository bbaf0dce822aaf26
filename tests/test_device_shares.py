"""Each process of a run sees a device of its own, and two runs on one host take different ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from conformance.execution import device_shares
from conformance.execution.device_shares import FOLDER, KINDS, Kind, Shares, device_count
from conformance.execution.selection import SelectionError
from conformance.reporting.evidence import RunEvidence
from conformance.reporting.report import Report
from conformance.reporting.tally import Tally
from tests.conftest import ROOT, Project
from tests.report_samples import as_read, sample

pytest_plugins = ["pytester"]

CUDA, ROCM, XPU, NEURON, TPU = KINDS
LISTED = "GPU {}: NVIDIA H200 (UUID: GPU-{}000-11)"
MIG = "  MIG 1g.10gb     Device  {0}: (UUID: MIG-{0})"
PRESENT = """
from conformance.implementations import devices

devices.DEVICES["cuda"] = devices._cpu
"""
"""A sitecustomize of every process: this machine has a driver of CUDA."""
KERNEL = """
import os
import time
from pathlib import Path

from conformance import Implementation
from conformance.implementations.bridges.numpy import NumpyArrays
from tests import kernels


VISIBLE, SEEN = os.environ.get("CUDA_VISIBLE_DEVICES", "all"), Path({folder!r})


class Arrays(NumpyArrays):
    def describe(self):
        return {{"visible": VISIBLE}}


acme = Implementation("acme", device="cuda", arrays=Arrays())


@acme.implements("conv_forward")
def conv_forward(x, w, bias, **parameters):
    (SEEN / VISIBLE).touch()
    while len([*SEEN.iterdir()]) < {devices}:
        time.sleep(0.02)
    return kernels.conv_forward(x, w, bias, **parameters)
"""
"""A kernel that waits until kernels have been called on so many devices."""
PROBLEMS = [f"--problem=n1 c2 h{size} w4 k2 r3 s3 p1" for size in range(4, 8)]
SELECTION = (
    "--operator=conv_forward", "--dtype=fp32", "--layout=nchw", "--distribution=integer", *PROBLEMS,
    "--records=records.jsonl", "--overwrite",
)  # fmt: skip


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of locks of this test, on a machine where nobody has chosen devices."""
    for kind in KINDS:
        for variable in (*chain(*kind.variables), *kind.counting, *kind.settings, *kind.by_hand):
            monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(FOLDER, str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture
def gpus(locks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this one a machine whose nvidia-smi lists so many GPUs, or these lines."""
    programs = tmp_path / "programs"

    def become(count: int, lines: Sequence[str] = ()) -> None:
        device_shares._listed.cache_clear()
        programs.mkdir(exist_ok=True)
        text = "\n".join(lines or [LISTED.format(n, n) for n in range(count)])
        (programs / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        (programs / "nvidia-smi").chmod(0o755)

    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return become


@pytest.fixture
def neuron(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this one a machine of four NeuronCores."""
    monkeypatch.delenv("NEURON_RT_NUM_CORES", raising=False)
    monkeypatch.setattr(device_shares, "neuron_cores", lambda: 4)


@pytest.fixture
def command(project: Project, gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Returns the words of a run of a kernel that says which devices it sees."""
    project.write("site/sitecustomize.py", PRESENT)
    monkeypatch.setenv("PYTHONPATH", f"{project.folder / 'site'}{os.pathsep}{ROOT}")
    folder = project.folder / "seen"
    folder.mkdir()

    def words(*arguments: str, devices: int = 1) -> list[str]:
        project.write("impls/acme.py", KERNEL.format(folder=str(folder), devices=devices))
        first, *more = arguments
        front = ["conformance", "run", "impls/acme.py"] if first == "run" else [first, "--impl=impls/acme.py"]
        return [sys.executable, "-m", *front, *SELECTION, *more]

    return words


def ended(words: Sequence[str], status: int = 0) -> str:
    """Return what a command prints that ends with this status."""
    result = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout + result.stderr


def cases(project: Project) -> list[dict[str, Any]]:
    """Return the records of cases that ran, all of which pass."""
    records = [record for record in project.records() if record["kind"] == "case"]
    assert [record["status"] for record in records] == ["pass"] * len(PROBLEMS)
    return records


def names(kind: Kind) -> list[str]:
    return [f"{device.name} {device.word}" for device in kind.visible()]


def test_gpus_are_those_that_nvidia_smi_lists(gpus: Callable[..., None]):
    gpus(2)
    assert names(CUDA) == ["cuda:0 0", "cuda:1 1"]
    assert [device.serial for device in CUDA.visible()] == ["GPU-0000-11", "GPU-1000-11"]
    gpus(0, [LISTED.format(0, 0), MIG.format(0), MIG.format(1), LISTED.format(1, 1)])
    assert names(CUDA) == ["cuda:0 MIG-0", "cuda:0 MIG-1", "cuda:1 1"]
    assert device_count(["cuda"]) == 3


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("2,0", ["cuda:2 2", "cuda:0 0"]),
        ("0,7,1", ["cuda:0 0"]),
        ("-1", []),
        ("NoDevFiles", []),
        ("", []),
        ("GPU-2", ["cuda:2 GPU-2"]),
        ("1,1", ["cuda:1 1"]),
        ("MIG-9", ["cuda:MIG-9 MIG-9"]),
    ],
)
def test_the_users_set_is_the_set_to_choose_from(
    gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch, text: str, visible: list[str]
):
    gpus(4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert names(CUDA) == visible


def test_a_range_of_cores(neuron: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "1-2,3")
    assert names(NEURON) == ["neuron:1 1", "neuron:2 2", "neuron:3 3"]
    monkeypatch.setenv("NEURON_RT_NUM_CORES", "2")
    assert names(NEURON) == [], "a user who gives a process two cores shares them out"


def test_hip_counts_within_what_the_driver_leaves(locks: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device_shares, "_amd", lambda: device_shares._numbered("rocm", 4))
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "3,1")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert names(ROCM) == ["rocm:1 1"]
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0,1")
    with Shares(2) as shares:
        shares.take(["rocm"])
        assert [shares.of(place).variables for place in range(2)] == [
            {"HIP_VISIBLE_DEVICES": "0"},
            {"HIP_VISIBLE_DEVICES": "1"},
        ]
        assert shares.of(0).devices["rocm"].index == 3


def test_hip_reads_the_variable_of_cuda_unless_it_has_one_of_its_own(locks: Path, monkeypatch: pytest.MonkeyPatch):
    """Another variable beside it hid all devices that it named."""
    monkeypatch.setattr(device_shares, "_amd", lambda: device_shares._numbered("rocm", 4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,2")
    assert (ROCM.variable, names(ROCM)) == ("CUDA_VISIBLE_DEVICES", ["rocm:3 3", "rocm:2 2"])
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert (ROCM.variable, names(ROCM)) == ("HIP_VISIBLE_DEVICES", ["rocm:1 1"])
    monkeypatch.setenv("GPU_DEVICE_ORDINAL", "0")
    assert names(ROCM) == []


@pytest.mark.parametrize("kind", [XPU, TPU], ids=["xpu", "tpu"])
def test_variables_of_other_devices(locks: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind):
    (marker,) = kind.markers
    counter = {"xpu": "_intel", "tpu": "_tpu"}[marker]
    monkeypatch.setattr(device_shares, counter, lambda: device_shares._numbered(marker, 2))
    with Shares(2) as shares:
        shares.take([marker])
        assert shares.of(1).variables == {kind.variable: "1", **kind.settings}
    assert ("TPU_PROCESS_BOUNDS" in kind.settings) == (marker == "tpu")


def test_numbers_of_gpus_are_those_of_the_list_unless_the_user_counts(
    gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    gpus(3)
    with Shares(1) as shares:
        shares.take(["cuda"])
        assert shares.of(0).variables == {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    with Shares(1) as shares:
        shares.take(["cuda"])
        assert shares.of(0).variables == {"CUDA_VISIBLE_DEVICES": "2"}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,1"


def test_more_processes_than_gpus_share_them_evenly(gpus: Callable[..., None]):
    gpus(2)
    with Shares(5) as shares:
        shares.take(["cuda"], is_asked=True)
        words = [shares.of(place).variables["CUDA_VISIBLE_DEVICES"] for place in range(5)]
    assert words == ["0", "1", "0", "1", "0"]
    assert shares.notes == ["5 processes share cuda:0, cuda:1"]


def test_a_kind_that_is_not_here_changes_nothing(gpus: Callable[..., None]):
    gpus(0, ["No devices were found"])
    with Shares(2) as shares:
        shares.take(["cuda", "cpu"])
    assert not shares
    assert not shares.notes


def test_a_second_run_takes_what_is_free(gpus: Callable[..., None]):
    gpus(3)
    with Shares(2, ["first"]) as first, Shares(2, ["second"]) as second, Shares(2) as third:
        for shares in (first, second, third):
            shares.take(["cuda"])
        assert not first.notes
        assert {second.of(place).devices["cuda"].name for place in range(2)} == {"cuda:2"}
        assert second.notes == ["2 processes share cuda:2"]
        (note,) = third.notes
        assert note.startswith("no GPU is free: shared with process")
        assert "(first)" in note
        assert "(second)" in note
        assert len({third.of(place).devices["cuda"].name for place in range(2)}) == 2


def test_owned_cores_are_not_shared(neuron: None):
    with Shares(3, ["first"]) as first, Shares(2, ["second"]) as second, Shares(1) as third:
        first.take(["trn1"], is_asked=True)
        second.take(["trn1"], is_asked=True)
        (note,) = second.notes
        assert note.startswith("1 of 2 processes judge: each needs a NeuronCore of its own; others are held by process")
        assert second.processes == 1
        assert second.of(0).variables == {"NEURON_RT_VISIBLE_CORES": "3"}
        # the second run has left this process no other core to choose from
        with pytest.raises(SelectionError, match=rf"no NeuronCore is free: held by process {os.getpid()} .*\(second\)"):
            third.take(["trn1"], is_asked=True)


def test_a_run_that_ends_leaves_no_trace(gpus: Callable[..., None], locks: Path):
    gpus(1)
    for _ in range(2):
        with Shares(1, ["first"]) as shares:
            shares.take(["cuda"])
            assert not shares.of(0).variables, "the only device need not be named"
            assert not shares.notes
            assert json.loads((locks / "cuda-GPU-0000-11").read_text())["command"] == "first"
        assert (locks / "cuda-GPU-0000-11").read_text() == ""


@pytest.mark.parametrize("content", ["[]", "\x00", "{"])
def test_a_lock_with_any_content_was_left(gpus: Callable[..., None], locks: Path, content: str):
    gpus(1)
    locks.mkdir()
    (locks / "cuda-GPU-0000-11").write_text(content)
    with Shares(1) as shares:
        shares.take(["cuda"])
    assert shares.notes == ["device cuda:0 was left by a run that was killed: an unknown run"]


def test_locks_are_for_all_users(gpus: Callable[..., None], locks: Path):
    gpus(1)
    before = os.umask(0o077)
    try:
        with Shares(1) as shares:
            shares.take(["cuda"])
    finally:
        os.umask(before)
    assert locks.stat().st_mode & 0o7777 == 0o1777
    assert (locks / "cuda-GPU-0000-11").stat().st_mode & 0o777 == 0o666


def test_a_lock_that_is_a_link_is_not_followed(gpus: Callable[..., None], locks: Path, tmp_path: Path):
    gpus(1)
    locks.mkdir()
    (tmp_path / "mine").write_text("content")
    (locks / "cuda-GPU-0000-11").symlink_to(tmp_path / "mine")
    with Shares(1) as shares:
        shares.take(["cuda"])
        assert shares.of(0).devices["cuda"].name == "cuda:0"
    assert shares.notes[0].startswith("devices are not locked, so another run may take them, too: ")
    assert (tmp_path / "mine").read_text() == "content"


@pytest.mark.parametrize("words", [("run", "-n", "2"), ("run", "-n", "auto", "-m", "cuda")], ids=["count", "auto"])
def test_processes_of_the_command_see_a_device_each(
    project: Project, command: Callable[..., list[str]], gpus: Callable[..., None], words: tuple[str, ...]
):
    gpus(2)
    ended(command(*words, devices=2))
    records = cases(project)
    views = {(record["versions"]["visible"], record["device_index"], record["device_serial"]) for record in records}
    assert views == {("0", 0, "GPU-0000-11"), ("1", 1, "GPU-1000-11")}
    assert {record["host"] for record in records} == {os.uname().nodename}


@pytest.mark.parametrize("words", [("-n", "2"), ("-n", "auto", "-m", "cuda")], ids=["count", "auto"])
def test_workers_of_pytest_see_a_device_each(
    project: Project, command: Callable[..., list[str]], gpus: Callable[..., None], words: tuple[str, ...]
):
    gpus(2)
    ended(command("pytest", "-p", "xdist", *words, devices=2))
    views = {(record["versions"]["visible"], record["device_serial"]) for record in cases(project)}
    assert views == {("0", "GPU-0000-11"), ("1", "GPU-1000-11")}


@pytest.mark.parametrize("words", [("run",), ("run", "-m", "cuda"), ("pytest",)], ids=["command", "marker", "pytest"])
def test_one_process_takes_a_free_device_of_the_users_set(
    project: Project,
    command: Callable[..., list[str]],
    gpus: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
):
    gpus(4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    with Shares(1, ["another run"]) as shares:
        shares.take(["cuda"])
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
        ended(command(*words))
    assert {(r["versions"]["visible"], r["device_index"]) for r in cases(project)} == {("1", 1)}


def test_a_killed_run_is_told(command: Callable[..., list[str]], gpus: Callable[..., None]):
    gpus(2)
    long = command("run", "-n", "2", "--timeout=600", devices=3)
    with subprocess.Popen(long, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        lock = Path(os.environ[FOLDER]) / "cuda-GPU-1000-11"
        end = time.monotonic() + 60
        while not (lock.is_file() and lock.read_text()):
            assert run.poll() is None
            assert time.monotonic() < end
            time.sleep(0.1)
        with Shares(1) as shares:
            shares.take(["cuda"])
            assert shares.notes[0].startswith(f"no GPU is free: shared with process {run.pid} of ")
        run.send_signal(signal.SIGKILL)
    text = ended(command("run"))
    assert f"device cuda:0 was left by a run that was killed: process {run.pid} of " in text


def test_a_report_has_a_table_of_several_devices():
    tally = Tally()
    report = Report(tally, RunEvidence(), [])
    place = {"device": "cuda", "host": "node7", "device_index": 0, "device_serial": "GPU-0000-11"}
    for record in (sample(), sample(**place), sample(**place)):
        tally.add(as_read(record))
    assert report.devices is None
    report = Report(tally, RunEvidence(), [])
    tally.add(as_read(sample(**place | {"device_index": None, "device_serial": "MIG-9", "status": "fail"})))
    assert report.devices in report.findings
    assert report.devices.rows == (
        ("cuda", "node7", "MIG-9", "1", "1", "0"),
        ("cuda:0", "node7", "GPU-0000-11", "2", "0", "0"),
    )


def test_a_cpu_record_names_no_host(project: Project):
    project.kernel("acme")
    assert project.run().of("acme").keys().isdisjoint({"host", "device_index", "device_serial"})
