"""A run on a Ray cluster of three machines here: its records, and what becomes of machines and devices that fail."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conformance.engine import cluster
from conformance.implementations import devices
from conformance.results import build
from tests.conftest import ROOT
from tests.kit import command, source, timeless

pytest.importorskip("ray")

MEMORY = 80 << 20
"""Bytes of a machine's store of objects."""
ALL = ("acme.py", "--level=smoke", "--dtype=fp32", "--layout=nchw", "--operator=conv_forward")
WORDS = (*ALL, "--distribution=integer")
ON_SICK = "import os; is_sick = os.environ.get('ACME_DEVICE') == 'd1'; "


class Machines:
    """The cluster, and its machines by the name that a kernel sees in ACME_DEVICE."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._on_sigterm = signal.getsignal(signal.SIGTERM)
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False},
        )
        self.address = self._cluster.address
        self._nodes: dict[str, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def add(self, name: str) -> None:
        self._nodes[name] = self._cluster.add_node(
            num_cpus=1, resources={"acme_x1": 1}, object_store_memory=MEMORY, env_vars={"ACME_DEVICE": name}
        )

    def kill(self, name: str) -> None:
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def of(self, device: str) -> str:
        """Return the name of the machine that a device of the run is on."""
        return next(name for name, node in self._nodes.items() if node.node_id[:8] in device)

    def close(self) -> None:
        self._cluster.shutdown()
        signal.signal(signal.SIGTERM, self._on_sigterm)  # Ray's would end a process whose later tests send SIGTERM


def in_peace() -> None:
    """Let processes of a cluster not be `nice`, or they would wait for tests that run beside them."""
    slow = {"RAY_health_check_timeout_ms": "60000"}  # machines that were only slow were taken for dead
    os.environ |= {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"} | slow


@pytest.fixture(scope="module")
def lab() -> Iterator[Machines]:
    in_peace()
    machines = Machines()
    yield machines
    machines.close()


@pytest.fixture
def two(lab: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    """Two machines, `d0` and `d1`, and a folder with a right kernel."""
    for name in ("d0", "d1"):
        if name not in lab:
            lab.add(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acme.py").write_text(source(declares=", when=lambda p: p.groups == 1 and p.n < 3"))
    yield lab
    devices.elsewhere.clear()


def on(machines: Machines, *words: str) -> tuple[int, str]:
    return command("run", *WORDS, f"--ray={machines.address}", "--pass-env=ACME_DEVICE", *words)


def records(file: str) -> list[dict[str, Any]]:
    content = Path(file).read_text() if Path(file).exists() else ""
    lines = [json.loads(line) for line in content.splitlines()]
    return [line for line in lines if line["kind"] not in ("header", "footer")]


def compared(file: str) -> Counter[str]:
    """Return what must be equal of the records on one machine and on several."""
    of_file = timeless(records(file))
    for record in of_file:
        record.pop("covers", None)  # which record of a process names the files that it has opened
        record.pop("host", None)
    return Counter(json.dumps(record, sort_keys=True) for record in of_file)


def test_records_are_those_of_one_process(two: Machines):
    Path("table.txt").write_text("'n1 c2 h4 w4 k2 r3 s3 p1' --operator conv_forward\n")
    words = *ALL, "--problems=table.txt"
    assert command("run", *words, "--records=here.jsonl")[0] == 0
    status, text = command("run", *words, "--records=there.jsonl", "--resource=acme_x1", f"--ray={two.address}")
    assert (status, compared("there.jsonl")) == (0, compared("here.jsonl")), text
    assert {record["host"] for record in records("there.jsonl") if record["kind"] == "case"} == {platform.node()}


def test_a_machine_that_is_lost_costs_nothing(two: Machines, monkeypatch: pytest.MonkeyPatch):
    """Its unit, which it has in part, is carried out elsewhere."""
    hand, killed = cluster.Cluster._hand, list[str]()

    def handing(self: Any, judge: Any, *rest: Any) -> Any:
        was_idle = judge.unit is None
        yield from hand(self, judge, *rest)
        if was_idle and judge.unit is not None and not killed:
            killed.append(two.of(judge.device))
            two.kill(killed[0])

    monkeypatch.setattr(cluster.Cluster, "_hand", handing)
    assert command("run", *WORDS, "--pass-env=ACME_DEVICE", "--records=here.jsonl")[0] == 0
    status, text = on(two, "--records=there.jsonl")
    assert (len(killed), status, compared("there.jsonl")) == (1, 0, compared("here.jsonl")), text


KILLED, SLEPT = "os.kill(os.getpid(), 9)", "__import__('time').sleep(99)"
ENDS = {
    "of the kernel": ("", KILLED, "crashed: its process was ended by SIGKILL"),
    "of the judge": ("--in-process", KILLED, "lost twice with its machine"),
    "of a kernel that hangs": ("--timeout=1", SLEPT, "no answer within 1 s"),
    "of a judge that hangs": ("--in-process", SLEPT, "lost twice with its machine: no verdict within 20 s"),
}


@pytest.mark.parametrize("name", ENDS)
def test_an_end_is_the_verdict_on_its_case_alone(two: Machines, monkeypatch: pytest.MonkeyPatch, name: str):
    words, ends, reason = ENDS[name]
    if reason.endswith("within 20 s"):  # any judge that took so long to start, on a busy machine, would be lost too
        monkeypatch.setattr(cluster, "CALLS", 0)
        monkeypatch.setattr(cluster, "STARTING", 20.0)
    body = f"import os\n    if x.shape == (1, 2, 4, 4): {ends}\n    return y"
    Path("acme.py").write_text(source(body=body, declares=", when=lambda p: p.groups == 1 and p.n < 3 and p.c < 4"))
    Path("table.txt").write_text("'n1 c2 h4 w4 k2 r3 s3 p1' --operator conv_forward --distribution integer\n")
    status, text = on(two, *words.split(), "--problems=table.txt", "--records=there.jsonl")
    assert status == 1, text
    run = [record for record in records("there.jsonl") if record.get("origin") != "where"]  # to locate it
    wrong = [record for record in run if record["status"] not in ("pass", "unsupported")]
    assert {record["descriptor"] for record in wrong} == {"n1 c2 h4 w4 k2 r3 s3 p1"}, text
    assert all(reason in record["reason"] for record in wrong), text
    assert sum(record["status"] == "pass" for record in records("there.jsonl")) > 3


def test_a_device_that_lies_is_suspect_and_the_kernel_is_not_blamed(two: Machines):
    Path("acme.py").write_text(
        source(body=f"{ON_SICK}return y + is_sick", declares=", when=lambda p: p.groups == 1 and p.n < 3")
    )
    status, text = on(two, "--records=there.jsonl")
    assert status == 3, text
    assert {record["status"] for record in records("there.jsonl")} <= {"pass", "unsupported"}
    assert text.count("suspect device: conv_forward[acme-") >= 1
    assert ("device taken out: " in text) == (text.count("suspect device: conv_forward[acme-") >= 2)
    assert "INCOMPLETE" in text
    # what has no verdict is run when the run goes on
    Path("acme.py").touch()
    two.kill("d1")
    status, text = on(two, "--records=there.jsonl", "--resume")
    assert status == 0, text


ONCE = """{sick}from pathlib import Path
    is_wrong = is_sick and not Path({file!r}).exists()
    Path({file!r}).touch() if is_wrong else None
    return y + is_wrong"""


@pytest.mark.parametrize("names", [("acme",), ("acme", "bolt")], ids=["of one kernel", "of two kernels"])
def test_a_failure_that_does_not_come_again_blames_neither(two: Machines, tmp_path: Path, names: tuple[str, ...]):
    """Its device is in doubt where another kernel's comes from it, too."""
    for name in names:
        body = ONCE.format(sick=ON_SICK, file=str(tmp_path / f"{name}-was-wrong"))
        file = source(name, body=body, declares=", when=lambda p: p.groups == 1 and p.n < 3 and p.c < 4")
        Path(f"{name}.py").write_text(file)
    status, text = on(two, *(f"{name}.py" for name in names[1:]), "--records=there.jsonl")
    assert status == 3, text
    run = [record for record in records("there.jsonl") if record.get("origin") != "where"]
    wrong = [record for record in run if record["status"] not in ("pass", "unsupported")]
    assert sorted(record["implementation"] for record in wrong) == [*names], text
    for record in wrong:
        assert (record["status"], record["failure"]["kind"]) == ("error", "not repeatable")
        what, which, why = record["reason"].partition("\n")[0].split(": ")
        assert (what, why) == ("not repeatable", "the kernel or the device, cannot be told")
        ((first, again, second),) = re.findall("failed once on (.+), passed on (.+) and on (.+)", which)
        assert (two.of(first), two.of(again), two.of(second)) == ("d1", "d1", "d0")
        assert first in text
    assert ("suspect" in text, text.count("device taken out: ")) == (False, len(names) - 1), text
    # it is in the records: the run goes on with nothing left, and says so once more
    assert on(two, *(f"{name}.py" for name in names[1:]), "--records=there.jsonl", "--resume", "-x")[0] == 3


def test_a_kernel_that_is_wrong_on_every_device_fails(two: Machines):
    Path("acme.py").write_text(source(body="return y + 1", declares=", when=lambda p: p.groups == 1 and p.n < 3"))
    status, text = on(two, "--records=there.jsonl", "-x")
    assert (status, "suspect" in text) == (1, False), text
    assert "stopping after 1 failure: acme conv_forward fp32: " in text


def test_a_device_whose_known_answer_is_wrong_is_taken_out(two: Machines):
    Path("right.py").write_text(source("right", body=f"{ON_SICK}return y + is_sick"))
    status, text = on(two, "--sentinel=right.py", "--records=there.jsonl")
    assert (status, text.count("device taken out: ")) == (0, 1), text
    assert "the known answer of right is wrong" in text
    assert {record["status"] for record in records("there.jsonl")} <= {"pass", "unsupported"}
    # with no device left there is no verdict on the kernel
    two.kill("d0")
    status, text = on(two, "--sentinel=right.py", "--records=none.jsonl")
    assert (status, "no device is left that offers CPU" in text) == (3, True), text
    assert all(record["status"] == "unsupported" for record in records("none.jsonl"))


def test_a_sentinel_that_is_none_is_an_error_before_anything_runs(two: Machines):
    """It was ignored, and a sick device passed as sound."""
    Path("broken.py").write_text("1/0")
    Path("empty.py").write_text("")
    Path("other.py").write_text(source("other", construct=', device="cuda"'))
    for name, why in {
        "nowhere.py": "no such file",
        "broken.py": "ZeroDivisionError",
        "empty.py": "--sentinel empty.py: ",
        "other.py": "has no kernel of conv_forward for cpu, but for cuda",
    }.items():
        status, text = on(two, f"--sentinel={name}", "--records=none.jsonl")
        assert (status, f"--sentinel {name}: " in text, why in text) == (4, True, True), text
    assert not Path("none.jsonl").exists()


LACKS = """import os
from conformance import Unavailable, numpy_arrays

class Arrays(type(numpy_arrays())):
    def require(self):
        if os.environ.get("ACME_DEVICE") == "d1":
            raise Unavailable("libacme.so is missing")

"""


def test_a_machine_that_lacks_a_library_judges_nothing(two: Machines):
    Path("acme.py").write_text(LACKS + source(construct=", arrays=Arrays()", declares=", when=lambda p: p.groups == 1"))
    status, text = on(two, "--records=there.jsonl")
    assert (status, "taken out" in text) == (0, False), text
    assert {record["status"] for record in records("there.jsonl")} <= {"pass", "unsupported"}
    two.kill("d0")
    status, text = on(two, "--records=none.jsonl")
    assert (status, "libacme.so is missing" in text) == (5, True), text
    assert {record["status"] for record in records("none.jsonl")} <= {"unavailable", "unsupported"}


def test_a_record_has_the_paths_of_the_head(two: Machines):
    """Where a file travels to differs by machine, and one cause had a group for each."""
    body = "print(__file__); raise ValueError(f'{x.shape} in {__file__}')"
    Path("acme.py").write_text(source(body=body, declares=", when=lambda p: p.groups == 1 and p.n < 3"))
    words = *WORDS, "--problem=n1 c2 h4 w4 k2 r3 s3 p1"
    assert command("run", *words, "--records=here.jsonl")[0] == 1
    status, text = command("run", *words, f"--ray={two.address}", "--records=there.jsonl")
    assert (status, "_ray_pkg_" in text + Path("there.jsonl").read_text()) == (1, False), text
    assert compared("there.jsonl") == compared("here.jsonl")
    failures = [record["failure"] for record in records("there.jsonl") if record["status"] == "error"]
    assert {failure["file"] for failure in failures} == {str(Path("acme.py").absolute())}


def test_what_no_machine_offers_is_said_before_anything_waits(two: Machines):
    status, text = on(two, "--resource=acme_y9")
    assert status == 4, text
    # of a machine that an earlier test has killed the cluster speaks for a while
    assert re.search(r"--resource: the cluster offers no acme_y9 \(it has CPU \d, acme_x1 \d\); start", text), text


def test_a_machine_of_other_versions_judges_nothing(two: Machines, monkeypatch: pytest.MonkeyPatch):
    versions = build.versions() | {"numpy": "1.0"}
    monkeypatch.setattr(build, "versions", lambda: versions)
    status, text = on(two, "--records=there.jsonl")
    assert status == 3, text
    assert "this machine 1.0: verdicts depend on it; install the same" in text


def test_a_cluster_that_is_not_there_is_said(two: Machines):
    status, text = command("run", *WORDS, "--ray=127.0.0.1:1")
    assert (status, text.count("\n") < 4, "--ray 127.0.0.1:1: " in text) == (4, True, True), text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_a_run_that_was_ended_goes_on_later(two: Machines, number: signal.Signals):
    """Ctrl-C leaves a summary, the end of its machine nothing."""
    slow = "import time; time.sleep(0.02); return y"
    Path("acme.py").write_text(source(body=slow, declares=", when=lambda p: p.groups == 1 and p.n < 3"))
    words = [sys.executable, "-m", "conformance", "run", *WORDS, f"--ray={two.address}", "--records=there.jsonl", "-v"]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    # a process that was started in the background ignores Ctrl-C, and hands that down
    heeds: Callable[[], object] = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        words, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heeds
    )
    assert process.stdout is not None
    for line in process.stdout:
        if " PASS " in line:
            process.send_signal(number)
            break
    rest = process.stdout.read()
    ended = (2, True) if number == signal.SIGINT else (-number, False)
    assert (process.wait(60), "INCOMPLETE, interrupted" in rest) == ended, rest
    assert "Traceback" not in rest, rest
    before = len(records("there.jsonl"))
    status, text = command("run", *WORDS, f"--ray={two.address}", "--records=there.jsonl", "--resume")
    assert (status, len(records("there.jsonl")) > before > 0) == (0, True), text
    assert command("run", *WORDS, "--records=here.jsonl")[0] == 0
    assert compared("there.jsonl") == compared("here.jsonl")
