"""What a kernel's process may take of the machine, with all that it starts, and how little it reaches of others."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from conformance.execution import process as processes
from conformance.execution import usage
from conformance.execution.process import Limits, Process
from conformance.execution.reaper import Reaper, carried
from conformance.execution.workers import Workers
from tests import kit
from tests.worker.test_isolation_cheats import needs_isolation

HEAD = """
import os, sys, time
from conformance import Implementation
acme = Implementation("acme")
big = bytearray(b"1") * (150 << 20)
def wait():
    time.sleep(60)
"""
LIMIT = 400 << 20
TAKES = {
    "children": """
for _ in range(3):
    if os.fork() == 0:
        own = bytearray(b"1") * (150 << 20)
        wait()
""",
    "a daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        own = bytearray(b"1") * (450 << 20)
        wait()
    os._exit(0)
""",
    "files without a name": """
files = [os.memfd_create("x") for _ in range(3)]
[os.write(file, big) for file in files]
""",
    "the judge's own files": """
for file in map(int, os.listdir("/proc/self/fd")):
    if os.path.exists(name := f"/proc/self/fd/{file}") and "memfd" in os.readlink(name):
        os.write(file, big) and os.write(file, big)
""",
    "files in shared memory": """
import tempfile
files = [tempfile.TemporaryFile(dir="/dev/shm", buffering=0) for _ in range(3)]
[file.write(big) for file in files]
""",
}
"""How a file takes more than the limit beside its own 150 MiB."""


def unusable(folder: Path, text: str, limits: Limits) -> str:
    """Return why a file cannot be used, empty if it can; afterwards nothing of it is left."""
    with Workers(limits) as workers:
        reason = kit.unusable(workers, folder, HEAD + text)
        marks = [process._mark for process in workers._begun]
    assert [place for place in Path("/proc").glob("[1-9]*") if carried(int(place.name)) in marks] == []
    return reason


@needs_isolation
@pytest.mark.parametrize("takes", TAKES)
def test_memory_of_all_that_a_kernel_starts_and_fills_is_counted(tmp_path: Path, takes: str):
    """It was that of its process alone, and as far as it was mapped."""
    reason = unusable(tmp_path, f"{TAKES[takes]}wait()", Limits(seconds=60, memory=LIMIT))
    assert re.search(r"took 0\.\d+ GiB of memory; the limit is 0\.391 GiB \(--memory\)", reason)


@needs_isolation
@pytest.mark.parametrize(
    "text",
    [
        "children = [os.fork() or (time.sleep(1), os._exit(0)) for _ in range(4)]",
        "import mmap\nos.write(file := os.memfd_create('x'), big)\nkept = mmap.mmap(file, 0)\nsum(kept[::4096])",
    ],
    ids=["after a fork", "mapped and open"],
)
def test_memory_that_is_shared_counts_once(tmp_path: Path, text: str):
    assert unusable(tmp_path, f"{text}\ntime.sleep(1)", Limits(seconds=60, memory=LIMIT)) == ""


@needs_isolation
def test_a_process_that_starts_others_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "PROCESSES", 40)
    text = "del big\nchildren = [os.fork() or wait() for _ in range(60)]\nwait()"
    reason = unusable(tmp_path, text, Limits(seconds=60))
    assert re.search(r"has [4-6]\d processes; there may be at most 40", reason)


@needs_isolation
def test_a_process_has_the_number_that_the_judge_knows(tmp_path: Path):
    """Otherwise all would have the same, and what libraries name after it would be taken for another kernel's."""
    reaper = Reaper()
    try:
        process = Process(Limits(), reaper)
        assert process.ask(os.getpid).value == process.number
        assert process.ask(os.getppid).value == 1
    finally:
        process.end()
        reaper.close()


@needs_isolation
def test_time_of_what_has_ended_is_the_judges(tmp_path: Path):
    """A benchmark tells its own load from that of others by it."""
    before = os.times()
    assert unusable(tmp_path, "while time.process_time() < 1.5:\n    pass\n", Limits(seconds=60)) == ""
    after = os.times()
    assert after.children_user + after.children_system >= before.children_user + before.children_system + 1.4


@pytest.mark.skipif(sys.platform != "linux", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGRTMIN + 3])
def test_a_process_ends_as_the_kernel_has_ended(tmp_path: Path, number: int):
    reason = unusable(tmp_path, f"del big; os.kill(os.getpid(), {int(number)}); time.sleep(5)", Limits(seconds=60))
    assert processes._signal(number) in reason


TRIED = """
import resource
sleeping = subprocess.Popen(["sleep", "9"])
for number in (0, os.getpid()):
    resource.prlimit(number, resource.RLIMIT_CORE, (0, 0))
    resource.prlimit(sleeping.pid, resource.RLIMIT_CPU)
for number in (sleeping.pid, JUDGE):
    try:
        resource.prlimit(number, resource.RLIMIT_CPU, resource.prlimit(number, resource.RLIMIT_CPU))
    except PermissionError:
        continue
    raise ValueError(f"set limits of {number}")
"""


@needs_isolation
def test_others_cannot_be_limited_where_there_is_no_namespace_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In a container parts of /proc are hidden; limits of itself, and reading, are free."""
    impossible = "from conformance.worker import isolation; isolation._number_elsewhere = lambda: 1 / 0; isolate("
    monkeypatch.setattr(processes, "START", processes.START.replace("isolate(", impossible))
    text = f"del big\nimport subprocess\nJUDGE = os.getppid()\nassert JUDGE == {os.getpid()}\n{TRIED}"
    assert unusable(tmp_path, text, Limits(seconds=60)) == ""


@needs_isolation
def test_what_has_set_its_mark_is_ended_with_the_process_that_started_it(tmp_path: Path):
    """A descendant may set any limit of its own: it is ended with the namespace."""
    text = (
        "import resource\ndel big\nread, write = os.pipe()\nif os.fork() == 0:\n    os.setsid()\n"
        f"    resource.setrlimit(10, (7, 7))\n    os.chdir({str(tmp_path)!r})\n    os.write(write, b'1')\n    wait()\n"
        "    os._exit(0)\nos.read(read, 1)\n"
    )
    with Workers(Limits(seconds=60)) as workers:
        assert kit.unusable(workers, tmp_path, HEAD + text) == ""
        assert there(tmp_path)
    for _ in range(100):
        if not there(tmp_path):
            break
        time.sleep(0.05)
    assert not there(tmp_path)


def there(folder: Path) -> list[str]:
    """Processes in a folder."""
    found = []
    for place in Path("/proc").glob("[1-9]*"):
        try:
            if (place / "cwd").readlink() == folder:
                found.append(place.name)
        except OSError:
            continue
    return found


def test_a_system_that_does_not_say_what_is_left_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a container /proc may show processes and nothing else."""
    assert 0 < usage.of_the_machine("available", -1) < psutil.virtual_memory().total
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert usage.of_the_machine("available", -1) == -1
