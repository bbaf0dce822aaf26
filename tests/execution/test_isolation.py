"""What an implementation does to its process is one verdict each, and nobody else's."""

from __future__ import annotations

import errno
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from conformance import Contract
from conformance.execution import remote
from conformance.execution.environment import EXTENDS
from conformance.execution.process import Crash, Limits, Process
from conformance.execution.reaper import Reaper, carried
from conformance.execution.status import Verdict
from conformance.execution.workers import Workers
from conformance.failure import Failure, Kind
from conformance.implementations.implementation import Kernel, KernelMemory
from conformance.operators import FAMILIES
from conformance.problems.parameters import SIMPLEST, geometry
from conformance.worker import call, wire
from tests.conftest import ROOT, Project
from tests.execution.misbehaviours import MISBEHAVIOURS
from tests.kit import loaded, source, timeless, unusable

pytest_plugins = ["pytester"]

DISTRIBUTIONS = tuple(f"--distribution={name}" for name in ("integer", "fixed", "impulse", "special"))
LIMITS = ("--timeout=2", "--memory=100", "--workers=100")


MARK = f"ISOLATION_TEST={os.getpid()}"


@pytest.fixture(autouse=True)
def _marked(monkeypatch: pytest.MonkeyPatch):
    """Tells the processes of these tests from those of other runs on the machine."""
    monkeypatch.setenv(*MARK.split("="))
    monkeypatch.setenv(EXTENDS, MARK.partition("=")[0])


BEHAVIOUR = """
import pytest

@pytest.mark.behaves("floating_point_mode_is_unchanged", "results_are_plain")
def test_behaviour(check, name, case):
    check(name, case)
"""


def left(folder: Path | None = None) -> list[int]:
    """Kernels' processes and what they have started, also that without our environment in a folder."""
    found = []
    for place in Path("/proc").glob("[1-9]*"):
        number = int(place.name)
        try:
            ours = MARK.encode() in (place / "environ").read_bytes()
            ours |= folder is not None and (place / "cwd").readlink().is_relative_to(folder)
            if ours and carried(number) >= 0:
                found.append(number)
        except OSError:
            continue
    return found


SEVERAL = ("segfault",)
"""Of what ends every case, what is also run in several."""


@pytest.mark.skipif(sys.platform != "linux", reason="signals, limits and /proc of Linux")
def test_misbehaviours(project: Project):
    """One verdict each beside a right kernel, and the right one's records as if it were alone. What ends every case has
    one: each is a new process, and many are waited for. All processes are kept, so that no file is loaded twice."""
    file = project.kernel("right", folder="right")
    assert project.pytest(f"--impl={file}", *DISTRIBUTIONS, *LIMITS, subprocess=True).exit == 0
    alone = {r["distribution"]: timeless([r]) for r in project.records()}
    ending = [name for name, one in MISBEHAVIOURS.items() if one.said == "error" and name not in SEVERAL]
    lasting = [name for name in MISBEHAVIOURS if name not in ending]
    wrong = []
    for names, distributions in ((ending, DISTRIBUTIONS[:1]), (lasting, DISTRIBUTIONS)):
        files = [project.write(f"bad/{name}.py", MISBEHAVIOURS[name].file(name)) for name in names]
        given = [f"--impl={one}" for one in (*files, file)]
        outcome = project.pytest(*given, *distributions, *LIMITS, subprocess=True, patience=500)
        assert outcome.exit == 1
        assert left(project.folder) == []
        wrong += [found for name in names if (found := unexpected(project, name, outcome.records, len(distributions)))]
        right = {r["distribution"]: timeless([r]) for r in outcome.records if r["implementation"] == "right"}
        assert right == {name: alone[name] for name in right}
        assert len(right) == len(distributions)
    assert not wrong, "\n".join(map(str, wrong))


def unexpected(project: Project, name: str, records: list[dict[str, Any]], cases: int) -> tuple[Any, ...]:
    """Return what the records say of a misbehaviour, where that is not what they must."""
    expected = MISBEHAVIOURS[name]
    mine = [r for r in records if r["implementation"] in (name, str(project.folder / f"bad/{name}.py"))]
    broken = {"broken"} if mine and all(r["kind"] == "broken" for r in mine) else set()
    statuses = broken or {record["status"] for record in mine}
    counted = sum(record["cases"] for record in mine)
    reasons = [record["reason"] for record in mine if record["status"] != "pass"]
    told = all(expected.reason in reason or "not run" in reason for reason in reasons)
    if statuses == set(expected.said.split()) and counted == (1 if broken else cases) and told:
        return ()
    return name, expected.said, statuses, counted, reasons[:2]


def test_floating_point_mode_is_changed_for_oneself_alone(project: Project):
    """x86's constants; other processors refuse them, and nothing changes."""
    project.kernel("right")
    for name, mode in (("down", "0x400"), ("up", "0x800")):
        project.kernel(name, head=f"import ctypes; changes = ctypes.CDLL(None).fesetround({mode})")
    selection = ("--distribution=behaviour", "-k", "floating_point_mode or results_are_plain")
    project.write("suite/test_behaviour.py", BEHAVIOUR)
    outcome = project.pytest(*selection)
    failed = {(r["implementation"], r["check"]) for r in outcome.records if r["status"] == "fail"}
    if platform.machine() == "x86_64":
        assert failed == {("down", "floating_point_mode_is_unchanged"), ("up", "floating_point_mode_is_unchanged")}
        assert outcome.statuses["pass"] == 4


LOADED = """
import sys

def told(geometry):
    names = {".".join(name.split(".")[:3]) for name in sys.modules if name.split(".")[0] in KNOWN}
    raise ValueError(" ".join(sorted(names)))

KNOWN = ("conformance", "pytest", "_pytest", "xdist", "torch", "jax")
"""
AVERAGES = "acme.implements('avg_pool_forward', when=told)(lambda x: x)"


def test_nothing_of_the_judge_is_to_be_found(workers: Workers, tmp_path: Path):
    """A kernel's process has loaded no more, and every family's geometry arrives there."""
    acme = loaded(workers, tmp_path, source(head=LOADED, declares=", when=lambda p: True", tail=AVERAGES))
    for family in (name for name, kind in FAMILIES.items() if kind.rank):
        assert acme.supports("conv_forward", geometry(family, SIMPLEST[family, 2] | {"n": 2}), "fp32", "nchw")
    with pytest.raises(ValueError, match=r"when=\.\.\. raised ValueError") as caught:
        acme.supports("avg_pool_forward", geometry("avg_pool", SIMPLEST["avg_pool", 2]), "fp32", "nchw")
    modules = str(caught.value).partition("ValueError: ")[2].partition(" at ")[0].split()
    rooms = {name.removeprefix("conformance.").split(".")[0] for name in modules} - {"conformance"}
    assert "implementations" in rooms
    assert rooms <= {
        *("accumulator", "contract", "dtypes", "failure", "layouts", "floating_point", "implementations", "operators"),
        *("files", "import_path", "meant", "resources", "slices", "storage", "worker", "zeros"),
    }
    assert not any(
        name.endswith(("operators", "mistakes", "table", "family")) for name in modules if name.count(".") > 1
    )


def test_a_process_that_waited_has_the_variables_that_were_set_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One that `check` keeps ready for the next call had those of the last one."""
    with Workers(Limits(), ahead=True) as workers:
        for value in ("one", "two"):
            monkeypatch.setenv("XLA_ACME", value)
            (file := tmp_path / f"{value}.py").write_text(f"import os\nassert os.environ['XLA_ACME'] == '{value}'")
            (reason,) = map(str, workers.load([file]).broken.values())
            assert "AssertionError" not in reason


COUNTING = """
import weakref
from conformance import Implementation, numpy_arrays

seen = []

class Counting(type(numpy_arrays())):
    def from_host(self, array):
        copy = array.copy()
        seen.append(weakref.ref(copy))
        return copy
    def describe(self):
        return {"alive": str(sum(one() is not None for one in seen))}

acme = Implementation("acme", arrays=Counting())
"""


def test_an_array_that_is_dropped_before_it_was_sent_is_freed(workers: Workers, tmp_path: Path):
    """Memory that is poisoned for whoever allocates next would otherwise never be handed back."""
    bridge: Any = loaded(workers, tmp_path, COUNTING).arrays
    held = bridge.from_host(np.zeros(3))
    bridge.from_host(np.zeros(4))
    assert bridge.perform(call.described, bridge) == {"alive": "1"}
    del held
    assert bridge.perform(call.described, bridge) == {"alive": "0"}


def test_an_array_of_a_process_that_has_ended_is_no_array_of_the_next(workers: Workers, tmp_path: Path):
    """Numbers begin anew there: another array would have been taken for it."""
    bridge: Any = loaded(workers, tmp_path).arrays
    old = bridge.from_host(np.zeros(3))
    bridge.home.process().end("was ended")
    new = bridge.from_host(np.ones(3))
    for given in ([old], [new, old], [old, new]):
        with pytest.raises(Crash, match="was ended"):
            bridge.perform(call.fetched, bridge, given)
    assert bridge.to_host(new).tolist() == [1, 1, 1]


def test_process_is_replaced_and_its_file_loaded_ahead(tmp_path: Path):
    with Workers(Limits(seconds=20)) as workers:
        bridge: Any = loaded(workers, tmp_path).arrays
        numbers = set()
        for _ in range(3):
            bridge.floating_point_mode()
            process = bridge.home.process()
            numbers.add(process.number)
            with pytest.raises(Crash, match="SIGKILL"):
                process.ask(os.kill, process.number, signal.SIGKILL)
        assert len(numbers) == 3
    assert left() == []


def test_a_file_is_loaded_in_the_process_that_began_for_it(workers: Workers, tmp_path: Path):
    (file := tmp_path / "acme.py").write_text(source())
    workers.begin(file)
    (begun,) = workers._begun
    assert not begun.loaded
    assert workers.load([file]).implementations.keys() == {"acme"}
    assert workers._begun == [begun]
    assert len(begun.loaded) == 1


def test_a_process_that_the_system_does_not_start_is_no_fault_of_a_file(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It was `OSError: Too many open files` of the file that was to be loaded."""

    def full() -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(wire, "memory_file", full)
    reason = unusable(workers, tmp_path, source())
    assert reason.startswith("not run: no process can be started for it (Too many open files); ulimit -n and")


GROWS = """
import numpy as np
from conformance import Implementation
acme, kept = Implementation("acme"), []
@acme.implements("conv_forward", dtypes=("fp32",))
def conv_forward(x, w, bias, **_):
    grown = np.ones({size} << 17)
    {keep}
    return x
"""
APPENDS, CYCLE = "kept.append(grown)", "cycle = [grown]; cycle.append(cycle)"
JAX = "import sys, types\nsys.modules['jax'] = types.SimpleNamespace(clear_caches=lambda: kept.clear())\n"


@pytest.mark.parametrize(("kind", "times"), [("crashed", 8), ("hung", 3)])
def test_a_kernel_that_crashes_is_run_until_it_has_done_so_too_often_in_a_row(
    workers: Workers, tmp_path: Path, kind: Kind, times: int
):
    """A hang costs a minute. One that passes in between crashes on a path: where, only more cases tell."""
    ended, passed = Verdict("error", failure=Failure(kind=kind), crashed=True), Verdict("pass")
    acme = loaded(workers, tmp_path)
    bridge: Any = acme.arrays
    for verdict in (*[ended] * (times - 1), passed, *[ended] * (times - 1)):
        workers.conclude(acme, verdict)
        bridge.home.process()
    workers.conclude(acme, ended)
    with pytest.raises(Crash, match="not run, crashed too often"):
        bridge.home.process()


@pytest.mark.skipif(sys.platform != "linux", reason="a signal")
def test_what_a_kernel_printed_before_it_crashed_stands_beside_the_crash(project: Project):
    """Without what Python's fault handler says, which the place is read from."""
    file = project.kernel("acme", body="import ctypes; print('block', 7, flush=True); ctypes.string_at(0)")
    project.run(f"--impl={file}", *DISTRIBUTIONS[:1], *LIMITS)
    assert [record["printed"] for record in project.records()] == [["block 7"]]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize(
    ("head", "keep", "looks", "processes"),
    [("", APPENDS, 2, 3), (JAX, APPENDS, 2, 1), ("", CYCLE, 2, 1), ("", APPENDS, 99, 1)],
    ids=["grows", "JAX keeps programs", "garbage", "looked at seldom"],
)
def test_process_that_has_grown_is_replaced_between_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, keep: str, looks: int, processes: int
):
    """Without a crash, seldom, and not where it can give back what it has taken."""
    monkeypatch.setattr("conformance.execution.workers.GROWTH", 60 << 20)
    monkeypatch.setattr("conformance.execution.workers.CASES_TO_LOOK", looks)
    x, w = np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 1, 1), np.float32)
    with Workers(Limits(seconds=20)) as workers:
        acme = loaded(workers, tmp_path, head + GROWS.format(size=50, keep=keep))
        numbers = set()
        for _ in range(7):
            bridge: Any = acme.arrays
            result = acme.kernels[0].function(bridge.from_host(x), bridge.from_host(w), None)
            np.testing.assert_array_equal(bridge.to_host(result), x)
            numbers.add(bridge.home.process().number)
            workers.limit_growth(acme)
        assert len(numbers) == processes
        assert not workers._crashes
        assert not workers._spares
    assert left() == []


def test_process_ends_with_its_judge(tmp_path: Path):
    """Killed, it can close nothing. A daemon of a kernel has left the session, and has the environment alone."""
    program = (
        "import os, sys, time\n"
        "from conformance.execution.process import Limits, Process\n"
        "from conformance.execution.reaper import Reaper\n"
        "process = Process(Limits(), Reaper())\n"
        "process.ask('mode')\n"
        "print(process.number, flush=True)\n"
        "time.sleep(100)\n"
    )
    judge = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert judge.stdout is not None
    number = int(judge.stdout.readline())
    judge.kill()
    judge.wait()
    for _ in range(100):
        if not Path(f"/proc/{number}").exists():
            break
        time.sleep(0.05)
    assert not Path(f"/proc/{number}").exists()


def test_what_lies_in_a_kernels_process_is_not_trusted():
    """Shapes, offsets and dtypes that would make the judge read what is not there, or more than there is."""
    reaper = Reaper()
    try:
        for tensor in (
            wire.ArrayLocation(0, "<f4", (1 << 40,)),
            wire.ArrayLocation(-8, "<f4", (1,)),
            wire.ArrayLocation(0, "<f4", (-1,)),
            wire.ArrayLocation(1 << 62, "<f4", (1 << 62,)),
            wire.ArrayLocation(0, "no dtype", (1,)),
            wire.ArrayLocation(0, "object", (1 << 40,)),
        ):
            process = Process(Limits(), reaper)
            with pytest.raises(Crash, match="stored no tensor"):
                process.tensor(tensor)
    finally:
        reaper.close()


def test_what_a_process_says_of_a_kernels_past_is_dropped():
    sent = Kernel(print, "conv_forward", ("fp32",), ("nchw",), None, Contract(), ())
    sent.memory.refusals = 99
    kernel = remote._reached(cast(remote.Home, None), ("acme", "kernels", 0), sent)
    assert kernel.memory == KernelMemory()
    assert sent == replace(sent)  # which is what a file that is loaded again is compared by


def test_output_without_end_is_read_in_parts_and_its_call_has_its_time(monkeypatch: pytest.MonkeyPatch):
    reaper = Reaper()
    process = Process(Limits(), reaper)
    with monkeypatch.context() as patched:
        patched.setattr(os, "read", lambda *_: b"y")
        assert process._drain()
    process.end()
    reaper.close()
