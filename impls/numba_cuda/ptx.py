"""`python -m impls.numba_cuda.ptx`, in a checkout: these kernels compiled for real devices, without one.

Every specialisation is compiled to PTX and, where NVIDIA's assembler is installed (package nvidia-cuda-nvcc, or ptxas
on the PATH), to machine code. A kernel that does not compile, keeps an array in local memory or spills registers is a
finding.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice, zip_longest
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

from conformance.implementations.bridges.numba_cuda import VARIABLE

CAPABILITIES = ("7.5", "8.0", "9.0", "10.0")
JOBS = 2
SHARES = JOBS
"""Parts of a capability's kernels. Each is compiled by a new process: functions that kernels call are compiled once a
process, whatever it is for."""
DECLARED: dict[tuple[str, str], str] = {}
"""(kernel, compute capability) -> why it may keep an array in local memory, or spill."""

LOCAL = re.compile(r"^\s+(?:@!?%p\d+\s+)?(?:ld|st)\.local\.", re.M)
"""Pattern of an access to local memory."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Registers and bytes that a thread and a block take."""

    registers: int
    shared: int
    stack: int
    spills: int


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel for a compute capability, compiled as far as that is possible."""

    kernel: str
    capability: str
    problem: str = ""
    local_accesses: int = 0
    resources: Resources | None = None

    @property
    def finding(self) -> str:
        """Defects of the compiled kernel, in words; empty without any."""
        problems = [self.problem] if self.problem else []
        if self.local_accesses or (self.resources and self.resources.stack):
            problems.append(f"keeps an array in local memory ({self.local_accesses} accesses)")
        if self.resources and self.resources.spills:
            problems.append(f"spills {self.resources.spills} bytes")
        return "; ".join(problems)


def resources_of(report: str) -> Resources:
    """Parse the report of ptxas -v on one kernel; raises ValueError for another text."""
    used = re.search(r"Used (\d+) registers", report)
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    if used is None or frame is None:
        raise ValueError(f"no registers or stack frame in what ptxas says: {report.strip()!r}")
    shared = re.search(r"(\d+) bytes smem", report)
    stack, stores, loads = (int(number) for number in frame.groups())
    return Resources(int(used[1]), int(shared[1]) if shared else 0, stack, stores + loads)


def assembler() -> str:
    """Return the path of ptxas: the first on the PATH, else that in the packages of CUDA; empty where there is none."""
    path = shutil.which("ptxas")
    if path is None:
        try:
            from cuda import pathfinder
        except ImportError:
            return ""
        path = pathfinder.find_nvidia_binary_utility("ptxas")
    return path or ""


def assembled(ptx: str, capability: str, ptxas: str, *options: str) -> Resources | None:
    """Assemble PTX to machine code; return None where the assembler is older than the compiler and does not know its
    version of PTX. Raises ValueError with the assembler's message where it refuses anything else."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        target = f"-arch=sm_{capability.replace('.', '')}"
        command = [ptxas, "-v", target, *options, str(source), "-o", str(source.with_suffix(".cubin"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Unsupported .version" in done.stderr:
        return None
    if done.returncode:
        raise ValueError(f"{ptxas}: {done.stderr.strip()}")
    return resources_of(done.stderr)


@dataclass(frozen=True, slots=True)
class Task:
    """A share of the kernels: of those whose name contains `name` every `every`-th, of these each SHARES-th."""

    capability: str
    share: int
    every: int
    name: str
    ptxas: str


def compile_share(task: Task) -> list[CompiledKernel]:
    """Compile a share for one capability, in a process that has compiled for no other."""
    from numba import cuda
    from numba.cuda import dispatcher

    from .specialisations import every

    major, minor = (int(part) for part in task.capability.split("."))
    # numba compiles the functions that kernels call for the device that is present, and there may be none
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=(major, minor))
    named = [specialisation for specialisation in every() if task.name in specialisation.name]
    compiled = []
    for specialisation in named[:: task.every][task.share :: SHARES]:
        try:
            ptx, _ = cuda.compile_ptx(specialisation.function, specialisation.signature, cc=(major, minor))
            resources = assembled(ptx, task.capability, task.ptxas) if task.ptxas else None
            compiled.append(
                CompiledKernel(specialisation.name, task.capability, "", len(LOCAL.findall(ptx)), resources)
            )
        except Exception as problem:
            compiled.append(
                CompiledKernel(specialisation.name, task.capability, f"{type(problem).__name__}: {problem}")
            )
    return compiled


def run(capabilities: Iterable[str], every: int = 1, name: str = "", ptxas: str = "") -> Iterator[list[CompiledKernel]]:
    """Compile all kernels for one capability after the other. Each process imports this package, and numba, anew."""
    os.environ[VARIABLE] = "0"  # not the simulator
    tasks = [Task(capability, share, every, name, ptxas) for capability in capabilities for share in range(SHARES)]
    with ProcessPoolExecutor(JOBS, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        done = pool.map(compile_share, tasks)
        while shares := list(islice(done, SHARES)):
            yield [kernel for row in zip_longest(*shares) for kernel in row if kernel is not None]


def findings(compiled: Iterable[CompiledKernel]) -> list[str]:
    """Return the findings that are not declared. A kernel that does not compile cannot be declared."""
    bad = [
        kernel
        for kernel in compiled
        if kernel.problem or (kernel.finding and (kernel.kernel, kernel.capability) not in DECLARED)
    ]
    return [f"{kernel.capability}: {kernel.kernel}: {kernel.finding}" for kernel in bad]


def lines(compiled: Sequence[CompiledKernel]) -> Iterator[str]:
    """Yield a line on one capability's kernels, then the findings."""
    line = f"{compiled[0].capability}: {len(compiled)} kernels, {len(findings(compiled))} findings"
    if resources := [kernel.resources for kernel in compiled if kernel.resources]:
        registers, spilled = [usage.registers for usage in resources], sum(usage.spills for usage in resources)
        line += f", {min(registers)} to {max(registers)} registers, {spilled} bytes spilled"
    yield line
    yield from findings(compiled)


def table(compiled: Sequence[CompiledKernel]) -> Iterator[str]:
    """Yield a line for each kernel."""
    width = max((len(kernel.kernel) for kernel in compiled), default=0)
    yield f"{'kernel':{width}}   cc registers  shared spills"
    for kernel in compiled:
        used = kernel.resources
        numbers = f"{used.registers:9} {used.shared:7} {used.spills:6}" if used else f"{'-':>9} {'-':>7} {'-':>6}"
        yield f"{kernel.kernel:{width}} {kernel.capability:>4} {numbers}"


def main(words: Sequence[str] | None = None) -> int:
    """Compile all kernels; 1 if one spills, needs local memory or fails."""
    parser = argparse.ArgumentParser("python -m impls.numba_cuda.ptx", description=main.__doc__, allow_abbrev=False)
    parser.add_argument("--cc", nargs="+", default=CAPABILITIES, metavar="X.Y", help="compute capabilities")
    parser.add_argument("--kernel", default="", metavar="TEXT", help="only those with it in their name; prints a table")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th kernel")
    arguments = parser.parse_args(words)
    if find_spec("numba_cuda") is None:
        print("numba-cuda is not installed (pip install 'kernel-conformance[cuda]')")
        return 1
    started, ptxas = time.perf_counter(), assembler()
    compiled: list[CompiledKernel] = []
    for of_one in filter(None, run(arguments.cc, arguments.every, arguments.kernel, ptxas)):
        compiled += of_one
        for line in (*(table(of_one) if arguments.kernel else ()), *lines(of_one)):
            print(line, flush=True)
    if not compiled:
        print(f"no kernel has {arguments.kernel!r} in its name")
        return 1
    print(f"{time.perf_counter() - started:.0f} s on {JOBS} processes, {_assembled_by(compiled, ptxas)}")
    return 1 if findings(compiled) else 0


def _assembled_by(compiled: Iterable[CompiledKernel], ptxas: str) -> str:
    if any(kernel.resources for kernel in compiled):
        return f"assembled by {ptxas}"
    why = f"{ptxas} is older than the compiler" if ptxas else "there is no ptxas"
    return f"PTX only: {why}; registers and spills are not known (pip install nvidia-cuda-nvcc)"


if __name__ == "__main__":
    sys.exit(main())
