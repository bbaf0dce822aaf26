"""Kernels that are right only where they find their judge or the references: each must fail, as it does for a user."""

from __future__ import annotations

import ctypes
import html
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from conformance.execution import process
from conformance.execution.process import Limits
from conformance.execution.workers import Workers
from conformance.resources import PACKAGE
from tests.conftest import CONFTEST, Project

pytest_plugins = ["pytester"]

HEAD = """
import contextlib, ctypes, fcntl, mmap, multiprocessing, os, resource, shutil, subprocess, sys, sysconfig, tempfile
import conformance
from conformance import Implementation
from tests import kernels

PACKAGE = os.path.dirname(conformance.__file__)
ROOT = os.path.dirname(PACKAGE)
SOURCE = PACKAGE + "/operators/conv/operators.py"
NUMBER = int(open(os.path.dirname(__file__) + "/judge").read())
JUDGE = f"/proc/{NUMBER}"
libc = ctypes.CDLL(None, use_errno=True)

def child(program):
    "What a process prints that has nothing of ours in its environment."
    words = [sys.executable, "-I", "-c", f"import sys, os; sys.path.insert(0, {ROOT!r}); {program}"]
    nothing = {name: text for name, text in os.environ.items() if name == "LD_LIBRARY_PATH"}
    return subprocess.run(words, env=nothing, capture_output=True, text=True).stdout

def unseen(path):
    "A file's first bytes, by calls that Python does not audit."
    content = ctypes.create_string_buffer(99)
    return libc.read(libc.open(path.encode(), 0), content, 99) > 0

def reads(path):
    with open(path, "rb", 0) as file:
        return bool(os.listdir(path) if os.path.isdir(path) else file.read(1))

def moved():
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        made = os.open(first, os.O_TMPFILE | os.O_RDWR)
        os.link(f"/proc/self/fd/{made}", first + "/a", src_dir_fd=0)  # only then it follows the link
        os.link(first + "/a", second + "/b")
        os.rename(second + "/b", first + "/c")
        shutil.move(first, second + "/d")
        return sorted(os.listdir(second + "/d")) == ["a", "c"] and not os.mkdir(first)

def spawned():
    started = multiprocessing.get_context("spawn").Process(target=os.getpid)
    started.start()
    started.join()
    return started.exitcode

def shared():
    memory = mmap.mmap(-1, 99)
    if (child := os.fork()) == 0:
        memory[0] = 7
        os._exit(0)
    os.waitpid(child, 0)  # others of this file have children in this process
    return memory[0] == 7

def written(folder):
    "Whether a file can be made there, which is taken away again."
    with tempfile.TemporaryFile(dir=folder) as file:
        return file.write(b"1") == 1

IOPRIO_SET = {"x86_64": 251, "aarch64": 30}[os.uname().machine]

def commands():
    for number in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{number}/cmdline", "rb") as file:
            yield file.read()

def replaces(folder):
    "Whether what a folder lies in can be put away, which is tried where it would fail for another reason."
    parent = os.path.dirname(folder)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(parent)) as other:
        open(other + "/full", "w").close()
        try:
            os.rename(parent, other)
        except OSError as error:
            return error.errno == 39

def mounted():
    return libc.mount(b"none", PACKAGE.encode(), b"tmpfs", 0, 0)

def rights():
    "Numbers of root's rights, as far as it has them."
    (line,) = [line for line in open("/proc/self/status") if line.startswith("CapEff")]
    return {n for n in range(64) if int(line.split()[1], 16) >> n & 1}

def declare(name, sees):
    one = Implementation(name)
    @one.implements("conv_forward")
    def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
        y = kernels.conv_forward(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
        try:
            seen = sees()
        except OSError:
            seen = False
        return y if seen else y + 1
    return one
"""
OF_THE_JUDGE = {
    "opens its memory": 'not os.close(os.open(f"{JUDGE}/mem", os.O_RDONLY))',
    "opens its memory in a child": "child(f\"print(os.open({JUDGE!r} + '/mem', os.O_RDONLY))\")",
    "opens what it has open": 'os.stat(f"{JUDGE}/fd/0")',
    "signals to it": "os.kill(NUMBER, 0) is None",
    "seizes it": "libc.ptrace(0x4206, NUMBER, 0, 0) == 0",
    "reads its command line": "reads(f'{JUDGE}/cmdline')",
    "limits it": "resource.prlimit(NUMBER, resource.RLIMIT_CPU, resource.prlimit(NUMBER, resource.RLIMIT_CPU)) != ()",
    "chooses its processors": "os.sched_setaffinity(NUMBER, os.sched_getaffinity(NUMBER)) is None",
    "sets its priority": "os.setpriority(os.PRIO_PROCESS, NUMBER, os.getpriority(os.PRIO_PROCESS, NUMBER)) is None",
    "sets its policy": "os.sched_setscheduler(NUMBER, os.SCHED_BATCH, os.sched_param(0)) is None",
    "sets its priority at disks": "libc.syscall(IOPRIO_SET, 1, NUMBER, 0) == 0",
    "has it ended first for memory": "open(f'{JUDGE}/oom_score_adj', 'r+') is not None",
    "names what another process runs": "any(b'pytest' in one for one in commands())",
    "runs in real time": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)) is None",
    "runs before others": "os.nice(-1) < 0",
    "writes to packages that it imports": "written(sysconfig.get_path('purelib'))",
    "writes to the standard library": "written(sysconfig.get_path('stdlib'))",
    "writes to the suite's kernels": "written(ROOT + '/impls')",
    "replaces the suite": "replaces(PACKAGE)",
    "writes to what packages were linked from": "written(os.environ['UV_CACHE_DIR'])",
    "writes to the emulator": "written(ROOT + '/nki_emulator')",
    "writes where an archive of the library would be": "written(os.path.dirname(sysconfig.get_path('stdlib')))",
    "changes settings of the system": "open('/proc/sys/kernel/core_pattern', 'r+') is not None",
    "administers the system": "rights() & {2, 12, 16, 17, 19, 21, 23, 24, 25, 27, 38, 39} != set()",
    "administers a system of its own": "libc.unshare(0x10020000) == mounted() == 0",
    "types on a terminal": "fcntl.ioctl(os.openpty()[1], 0x5412, b'x') is not None",
}
"""Cheat -> when it is right."""
OF_THE_REFERENCES = {
    "imports them in a child": 'child("from conformance.operators import OPERATORS; print(len(OPERATORS))")',
    "reads their source in a child": 'child(f"sys.stdout.write(open({SOURCE!r}).read())")',
    "reads their source unseen": "unseen(SOURCE)",
    "reads compiled ones unseen": "any(unseen(e.path) for e in os.scandir(PACKAGE + '/judge/__pycache__'))",
    "lists goldens": "os.listdir(ROOT + '/golden')",
    "unmounts what hides them": "libc.umount2(PACKAGE.encode(), 2) == 0 or unseen(SOURCE)",
    "calls what kernels have no use for": "libc.syscall(428, -100, PACKAGE.encode(), 0) >= 0",
    "clones what it hides": "libc.syscall(428, -100, PACKAGE.encode(), 1) >= 0",
    "looks past it through its judge": 'unseen(f"{JUDGE}/root{SOURCE}")',
}

HARMLESS = {
    "moves files": "moved()",
    "imports the suite in a child": "child('from conformance import *; print(Implementation(str(1)))')",
    "spawns": "spawned() == 0",
    "ends its child": "subprocess.Popen(['sleep', '100']).kill() is None",
    "looks into its child": 'reads(f\'/proc/{subprocess.Popen(["sleep", "9"]).pid}/maps\')',
    "looks into itself": "os.close(os.open('/proc/self/mem', os.O_RDWR)) is None and reads('/proc/self/maps')",
    "shares memory": "shared()",
    "opens a terminal of its own": "len(os.openpty()) == 2",
    "writes beside its file": "written(os.path.dirname(__file__))",
    "writes to temporary files": "written(None)",
}
"""What kernels, frameworks and compilers do, and what is true then."""


@cache
def allowed() -> bool:
    """Ask util-linux, and Landlock for its version, whether this system lets this user hide things."""
    mounting = f"unshare {'-m' if os.geteuid() == 0 else '-Urm'} mount -t tmpfs none /mnt"
    landlock = sys.platform == "linux" and ctypes.CDLL(None).syscall(444, None, 0, 1) >= 2
    return landlock and subprocess.run(mounting.split(), check=False).returncode == 0


needs_isolation = pytest.mark.skipif(not allowed(), reason="Landlock and namespaces of Linux, for users without rights")


def passing(project: Project, kernels: dict[str, str]) -> list[str]:
    """Which of several kernels that are right under a condition pass."""
    lines = [
        f"i{n} = declare({name.replace(' ', '-')!r}, lambda: {sees})" for n, (name, sees) in enumerate(kernels.items())
    ]
    project.pytester.makeconftest(f"{CONFTEST}\nimport os\nopen('impls/judge', 'w').write(str(os.getpid()))\n")
    project.write("impls/kernels.py", "\n".join([HEAD, *lines]))
    outcome = project.pytest(subprocess=True)
    assert len(outcome.records) == len(kernels)
    assert allowed() == ("process" not in outcome.records[0]["versions"])
    return sorted(r["implementation"].replace("-", " ") for r in outcome.records if r["status"] == "pass")


@needs_isolation
def test_what_finds_its_judge_is_wrong_without_it(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("UV_CACHE_DIR", str(project.folder / "uv"))
    (project.folder / "uv").mkdir()
    assert passing(project, OF_THE_JUDGE | OF_THE_REFERENCES) == []


def test_whoever_stays_at_home_is_free(project: Project):
    assert passing(project, HARMLESS) == sorted(HARMLESS)


def command(project: Project, beside: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, with a folder before the suite in PYTHONPATH."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(beside), str(PACKAGE.parent)])}
    line = [sys.executable, "-m", "conformance", *words]
    return subprocess.run(line, cwd=project.folder, env=environment, capture_output=True, text=True, check=False)


LEAVES = """
from pathlib import Path
for name in ("rich", "platformdirs", "psutil", "jinja2"):
    for folder in (Path.cwd(), Path({root!r})):
        (folder / (name + ".py")).write_text("from pathlib import Path\\nPath({trace!r}).write_text(__name__)")
raise ValueError("left them")
"""


def test_the_judge_imports_nothing_that_a_kernel_has_left(project: Project):
    """`python -m` finds what is in the folder of a run first, and then what PYTHONPATH says."""
    root = project.folder / "root"
    root.mkdir()
    trace = project.folder / "imported"
    file = project.write("acme.py", LEAVES.format(root=str(root), trace=str(trace)))
    project.kernel("right")
    words = ("run", str(file), "impls/right.py", "--level=smoke", "--report=page", "-n2")
    outcome = command(project, root, *words)
    assert "left them" in outcome.stdout
    assert "right conv_forward" in outcome.stdout
    assert (project.folder / "page/index.html").is_file()
    assert not trace.exists(), trace.read_text()


COMPILES = """
import importlib.util, py_compile, sys
from importlib._bootstrap_external import _code_to_hash_pyc
from pathlib import Path

for name, wrong in {wrong!r}.items():
    code = compile(wrong, name, "exec")
    cached = Path(importlib.util.cache_from_source(name))
    cached.parent.mkdir(exist_ok=True)
    cached.write_bytes(_code_to_hash_pyc(code, b"12345678", False))
raise ValueError("left them")
"""


def test_what_is_compiled_beside_a_source_is_not_run_instead_of_it(project: Project):
    """A kernel's file, a helper that it imports, and a module of a package, whose compiled files say that nobody need
    look whether they are those of the source."""
    file, package = project.kernel("single", head="import acme_helpers"), project.kernel("packed", folder="packed")
    package = package.rename(package.with_name("__init__.py"))
    package.write_text("from .inner import right\n" + package.read_text())
    files = [file, package, package.with_name("inner.py"), project.folder / "beside/acme_helpers.py"]
    for source in files[2:]:
        project.write(str(source.relative_to(project.folder)), "right = True")
    wrong = {str(each): "raise ImportError('compiled by another kernel')" for each in files}
    leaves = project.write("leaves.py", COMPILES.format(wrong=wrong))
    words = ("run", str(leaves), str(file), "packed", "--level=smoke")
    outcome = command(project, project.folder / "beside", *words)
    assert "left them" in outcome.stdout
    assert "compiled by another" not in outcome.stdout
    assert outcome.stdout.count("conv_forward") >= 2, outcome.stdout


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_kernel_imports_from_what_pythonpath_says(project: Project, workers: str):
    project.write("elsewhere/acme_helpers.py", "")
    project.kernel("right", head="import acme_helpers")
    outcome = command(project, project.folder / "elsewhere", "run", "impls/right.py", "--level=smoke", "-n", workers)
    assert outcome.returncode == 0, outcome.stdout


@needs_isolation
def test_the_folder_that_a_run_is_started_in_is_hidden_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(PACKAGE)
    file = tmp_path / "acme.py"
    file.write_text("import os\nraise ValueError(f\"{os.stat('judge/limits.py').st_size} bytes\")")
    with Workers(Limits()) as workers:
        (reason,) = map(str, workers.load([file]).broken.values())
    assert "ValueError: 0 bytes" in reason


@needs_isolation
def test_memory_that_outlives_processes_is_not_left_behind(project: Project):
    key = 0x434F4E46
    project.kernel(head="import ctypes", body=f"assert ctypes.CDLL(None).shmget({key}, 4096, 0o1600) >= 0; return y")
    assert project.pytest().exit == 0
    assert str(key) not in Path("/proc/sysvipc/shm").read_text()


LIES = """
from conformance import numpy_arrays
from conformance.worker import call, isolation, serve

call.isolated = isolation.isolated = serve.isolated = lambda: True
class Lying(type(numpy_arrays())):
    def describe(self):
        return {"process": "isolated"}
"""


def test_a_process_that_is_not_isolated_says_so(project: Project, monkeypatch: pytest.MonkeyPatch):
    """Before it loads a kernel, which could say something else."""
    monkeypatch.setattr(process, "START", process.START.replace("isolate({parent}, {hidden!r}, {own!r}); ", ""))
    project.kernel(head=LIES, construct=", arrays=Lying()")
    outcome = project.run("--report=out")
    (record,) = outcome.records
    assert record["versions"]["process"] == "not isolated"
    said = "kernels' processes are not isolated here: see docs/isolation.md"
    texts = [outcome.text, *((project.folder / "out" / name).read_text() for name in ("summary.md", "index.html"))]
    assert [html.unescape(text).count(said) for text in texts] == [1, 1, 1]


@pytest.mark.parametrize("options", [(), ("--in-process",)])
def test_the_page_says_that_kernels_ran_in_the_judges_process(project: Project, options: tuple[str, ...]):
    project.kernel()
    outcome = project.run("--report=out", *options)
    assert "not isolated" not in outcome.text
    text = (project.folder / "out" / "summary.md").read_text()
    assert ("kernels ran in the judge's process (--in-process)" in text) == bool(options)
