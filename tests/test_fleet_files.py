"""examples/fleet: the whole files of docs/fleet.md, run by processes here; their units make the run of one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.kit import command, results, source

FLEET = ROOT / "examples/fleet"
SMALL = "--level smoke --dtype=fp32 --layout=nchw --operator=conv_forward --distribution=integer"
UNITS = 2
PROGRAMS = {
    "conformance": f'exec {sys.executable} -m conformance "$@"',
    "srun": 'exec "$@"',
    "scontrol": 'echo "$@" >> requeued',
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a right kernel, and with the programs of a cluster before all others."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "records").mkdir()
    for name, text in PROGRAMS.items():
        (program := tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
    (tmp_path / "acme.py").write_text(source(declares=", when=lambda p: p.groups == 1 and p.n < 3"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def small(file: str) -> str:
    """Return a file of the page, at level smoke."""
    text = (FLEET / file).read_text()
    assert "--level full" in text
    return text.replace("--level full", SMALL)


def bash(text: str, **variables: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    return subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True)


def slurm(unit: int, **variables: object) -> subprocess.CompletedProcess[str]:
    usual = {"SLURM_ARRAY_TASK_COUNT": UNITS, "SLURM_CPUS_PER_TASK": 1, "SLURM_JOB_ID": 70 + unit}
    return bash(small("acme.slurm"), SLURM_ARRAY_TASK_ID=unit, **usual | variables)


def kubernetes(unit: int) -> subprocess.CompletedProcess[str]:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load(small("acme-job.yaml"))["spec"]
    (container,) = job["template"]["spec"]["containers"]
    (variable,) = container["env"]
    assert variable == {"name": "UNITS", "value": str(job["completions"])}
    words = [*container["command"], *container["args"]]
    assert words[:2] == ["bash", "-c"]
    return bash(words[2], UNITS=UNITS, JOB_COMPLETION_INDEX=unit - 1)


@pytest.mark.parametrize("job", [slurm, kubernetes])
def test_jobs_make_the_whole_and_a_lost_one_is_a_named_hole(
    folder: Path, job: Callable[[int], subprocess.CompletedProcess[str]]
):
    for unit in range(1, UNITS + 1):
        done = job(unit)
        assert done.returncode == 0, done.stdout + done.stderr
    files = sorted((folder / "records").iterdir())
    assert [file.name for file in files] == ["1.jsonl", "2.jsonl"]
    parts = [results(file) for file in files]
    assert all(parts)
    assert command("run", "acme.py", *SMALL.split(), "--records=all.jsonl")[0] == 0
    assert sorted((record for part in parts for record in part), key=str) == results(folder / "all.jsonl")
    assert command("report", *map(str, files))[0] == 0
    files[1].unlink()
    status, text = command("report", str(files[0]))
    assert (status, "1 of 2 units are missing, whose cases were not verified: 2" in text) == (1, True), text


@pytest.mark.parametrize(
    ("ended", "restarts", "again"), [(0, 0, False), (1, 0, False), (2, 1, True), (3, 0, True), (3, 2, False)]
)
def test_only_what_is_no_verdict_is_queued_again(folder: Path, ended: int, restarts: int, again: bool):
    (folder / "bin/conformance").write_text(f'#!/bin/bash\necho "$@" > words\nexit {ended}\n')
    # a unit of 64 that is submitted alone is still one of 64
    assert slurm(1, SLURM_RESTART_COUNT=restarts, UNITS=64).returncode == ended
    assert "--unit 1/64 --records records/1.jsonl --resume" in (folder / "words").read_text()
    assert (folder / "requeued").exists() == again


def test_kubernetes_tries_again_only_what_is_no_verdict():
    yaml = pytest.importorskip("yaml")
    policy = yaml.safe_load((FLEET / "acme-job.yaml").read_text())["spec"]["podFailurePolicy"]["rules"]
    (codes,) = (rule["onExitCodes"]["values"] for rule in policy if rule["action"] == "FailIndex")
    assert codes == [1, 4, 5]


def test_a_cluster_lasts_as_long_as_its_run(folder: Path):
    (folder / "bin/ray").write_text('#!/bin/bash\necho "$@" >> calls\n[[ $2 != --head ]] || exec sleep 600\n')
    (folder / "bin/ray").chmod(0o755)
    (folder / "bin/ssh").write_text('#!/bin/bash\necho "$1" >> calls\nexec bash -c "$2"\n')
    (folder / "bin/ssh").chmod(0o755)
    (folder / "bin/conformance").write_text('#!/bin/bash\necho "$@" >> calls\nexit 1\n')
    assert bash((FLEET / "acme-ray.sh").read_text(), HOSTS="lab1 lab2", PORT=7).returncode == 1
    calls = (folder / "calls").read_text()
    address = re.findall(r"--ray (\S+:7) --resource acme_x1", calls)[-1]
    assert calls.count(f'start --address {address} --include-log-monitor false --resources {{"acme_x1": 8}}') == 2
    assert re.findall("lab.", calls) == ["lab1", "lab2"]
