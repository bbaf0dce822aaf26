"""`conformance fuzz --ray`: its units on a cluster of two machines here, one of which is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import scattered
from conformance.results import build
from tests.calibration import __main__ as calibration
from tests.engine.test_cluster import Machines, in_peace
from tests.kit import command, source

pytest.importorskip("ray")

WORDS = ("fuzz", "acme.py", "--minutes=0.1")


@pytest.fixture(scope="module")
def two() -> Iterator[Machines]:
    in_peace()
    machines = Machines()
    for name in ("d0", "d1"):
        machines.add(name)
    yield machines
    machines.close()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acme.py").write_text(source(body="return y if x.shape[1] < 3 else y + 1"))


def test_units_are_on_devices_and_add_what_they_meet_to_one_table(two: Machines):
    status, text = command(*WORDS, f"--ray={two.address}", "--resource", "acme_x1", "--save", "met.txt")
    assert status == 1, text
    for unit in ("1/2", "2/2"):
        assert text.count(f"unit {unit}: on ") == text.count(f"seed 0, unit {unit}\n") == 1, text
    rows = [line for line in Path("met.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(rows) == len({*rows}) > 0
    assert command("fuzz", "acme.py", "--replay", rows[0])[0] == 1


def test_units_of_a_campaign_are_the_whole(two: Machines, capsys: pytest.CaptureFixture[str]):
    words = ["mutation", "--level=smoke", "--kind=memory", "--operator=max_pool_forward"]

    def outcomes(*more: str) -> tuple[int, list[str]]:
        status = calibration.main([*words, *more])
        return status, sorted(line for line in capsys.readouterr().out.splitlines() if " | " in line)

    assert outcomes(f"--ray={two.address}", "--resource=acme_x1") == outcomes()


def test_what_cannot_be_done_is_said(two: Machines, monkeypatch: pytest.MonkeyPatch):
    ray = f"--ray={two.address}"
    for words, said in {
        (*WORDS, ray, "--unit=1/2"): "--ray and --unit: give one of them",
        (*WORDS, ray, "--resource=acme_y9"): "--resource: the cluster offers no acme_y9",
        ("survey", "ncnn", ray): "--folder .survey: with --ray, give a whole path that all machines share",
    }.items():
        status, text = command(*words)
        assert (status, said in text) == (4, True), text
    versions = build.versions() | {"numpy": "1.0"}
    monkeypatch.setattr(build, "versions", lambda: versions)
    status, text = command(*WORDS, ray)
    assert (status, text.count("verdicts depend on it; install the same")) == (3, 2), text


def test_a_unit_is_lost_with_its_machine_once(two: Machines, monkeypatch: pytest.MonkeyPatch):
    """The second time it is an error, and the other unit ends well."""
    Path("acme.py").write_text(source())
    (pids := Path("pids").absolute()).mkdir()
    carry_out: Any = scattered.carry_out

    def killed(words: Any, *rest: Any) -> Any:
        if "--unit=2/2" in words:
            (pids / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return carry_out(words, *rest)

    monkeypatch.setattr(scattered, "carry_out", killed)
    status, text = command(*WORDS, f"--ray={two.address}")
    assert (status, len([*pids.iterdir()])) == (3, 2), text
    assert "unit 2/2: lost twice with its machine" in text
    assert "unit 1/2: on " in text
