"""`conformance unet`: the ten UNet layers through every implementation, on the CPU and on CUDA."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from conformance.execution.case import Absence, Case, absence_reason
from conformance.execution.plan import Plan
from conformance.execution.process import Limits
from conformance.execution.selection import Selection, SelectionError, split
from conformance.execution.workers import Workers, share
from conformance.exit_codes import ExitCode
from conformance.implementations import registry
from conformance.implementations.devices import processor
from conformance.inputs.manifest import SEED
from conformance.problems import Problem, of_section
from conformance.resources import IMPLS
from conformance.timing import machine, table, unet_table
from conformance.timing.run import DEFAULT_VISITS, Run, TimedKernel, time_all, visits
from conformance.timing.timing_demand import TimingDemand

UNET = of_section("conv", "unet")
DIRECTIONS = {
    "forward": "conv_forward",
    "backward-data": "conv_backward_data",
    "backward-weight": "conv_backward_weight",
}
DEFAULT = (
    "torch-cpu", "numba-cpu", "jax-cpu",
    "torch-cuda", "jax-cuda", "numba-cuda-direct", "numba-cuda-tiled", "numba-cuda-igemm",
)  # fmt: skip
ALLOCATION = "XLA_PYTHON_CLIENT_PREALLOCATE"
"""By default jax takes three quarters of a device's memory when it starts; torch and numba share it here."""
Write = Callable[[str, str], None]
"""(option, text): to the file that an option names, if it was given. Raises SelectionError."""


def declare(parser: argparse.ArgumentParser) -> None:
    """The U-Net table: ten layers through every implementation, verified, then timed beside torch and the roofline."""

    def seconds(text: str) -> float:
        with suppress(ValueError):
            if 0.1 <= (found := float(text)) <= 1e6:
                return found
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0.1 to 1000000")

    parser.set_defaults(run=_run)
    parser.add_argument(
        "--impl", nargs="+", action="extend", metavar="NAME|PATH", help=f"only these (default: {', '.join(DEFAULT)})"
    )
    parser.add_argument("--direction", choices=(*DIRECTIONS, "all"), default="all", help="default: all")
    names = [problem.name.removeprefix("unet.") for problem in UNET]
    layers: dict[str, Any] = {"type": lambda text: text.removeprefix("unet."), "choices": names, "metavar": "LAYER"}
    parser.add_argument("--layers", nargs="+", action="extend", **layers, help=f"of {', '.join(names)}")
    parser.add_argument(
        "--visits",
        type=visits,
        default=DEFAULT_VISITS,
        metavar="N",
        help="times that a run comes back to each kernel to time it (default: %(default)s)",
    )
    parser.add_argument(
        "--method",
        choices=("exact", "probes"),
        default="exact",
        help="verify every output (default), or by probes: seconds instead of minutes on a small machine",
    )
    parser.add_argument(
        "--timeout", type=seconds, default=600.0, metavar="SECONDS", help="longest call of a kernel (default: 600)"
    )
    parser.add_argument("--in-process", action="store_true", help="run kernels in this process, for debuggers")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write one line per cell")


def _run(arguments: argparse.Namespace) -> int:
    def write(option: str, text: str) -> None:
        path: Path | None = getattr(arguments, option)
        if path is None:
            return
        try:
            path.write_text(text, encoding="utf-8", newline="")
        except OSError as error:
            raise SelectionError(f"--{option} {path}: cannot be written ({error.strerror})") from None

    os.environ.setdefault(ALLOCATION, "false")
    layers = {problem.name.removeprefix("unet."): problem for problem in UNET}
    chosen = [layers[name] for name in dict.fromkeys(arguments.layers or layers)]
    operators = tuple(name for word, name in DIRECTIONS.items() if arguments.direction in (word, "all"))
    workers = None if arguments.in_process else Workers(Limits(arguments.timeout, share(1)))
    try:
        with workers or nullcontext():
            plan = planned(arguments.impl or (), operators, arguments.method, workers)
            for option in ("csv", "markdown"):  # known before minutes are spent on what belongs in them
                write(option, "")
            return report(plan, chosen, arguments.visits, write, workers)
    except (SelectionError, machine.ThreadsError) as error:
        print("; ".join(str(error).splitlines()), file=sys.stderr)
        return ExitCode.UNUSABLE


def planned(names: Sequence[str], operators: tuple[str, ...], method: str, workers: Workers | None = None) -> Plan:
    """The implementations asked for, in that order, or the default ones that are here. Raises SelectionError."""
    named, paths = split(names)
    selection = Selection(named, paths, "full", UNET, operators, ("fp32",), ("nchw",), ("fixed",), SEED, method)
    plan = Plan(selection, IMPLS, loader=workers or registry)
    if workers is not None:
        workers.keep_all()
    known = plan.registry.implementations
    wanted = dict.fromkeys((*named, *known) if names else DEFAULT)
    plan.registry.implementations = {name: known[name] for name in wanted if name in known}
    return plan


def report(plan: Plan, layers: Sequence[Problem], count: int, write: Write, workers: Workers | None) -> int:
    """Time, print, write; return the exit status."""
    width = shutil.get_terminal_size((160, 24)).columns
    present = [i for i in plan.registry.implementations.values() if absence_reason(i) is None]
    threads = machine.threads_text(machine.share_threads(present))
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions(present).items())
    header = [
        f"U-Net, {len(layers)} of {len(UNET)} layers at full size, fp32, NCHW; TF32 {machine.tf32(present)}",
        f"{processor()}, {machine.cores()} cores; {versions}",
        f"threads: {threads}; {count} visits to each kernel",
    ]
    demands = [TimingDemand(plan.selection, operator, layers, by_hand=True) for operator in plan.selection.operators]
    found = [case for demand in demands for case in plan.required(demand)]
    run = Run([TimedKernel(case) for case in found if isinstance(case, Case)])
    interrupted = False
    try:
        time_all(run, count, random.SystemRandom().randrange(10**6), workers, _progress(len(run.subjects), count))
    except KeyboardInterrupt:  # what was timed until then counts
        interrupted = True
    header += [f"ceilings of {device}: {known}" for device, known in run.ceilings.items()]
    header += table.machine_lines(run.state, 10**9) if run.times else []
    shown = unet_table.directions(run, (case for case in found if isinstance(case, Absence)))
    for line in (*header, *([unet_table.LEGEND] if run.times else []), ""):
        print("\n".join(textwrap.wrap(line, width, subsequent_indent="  " if line.startswith("  ") else "")))
    for direction in shown:
        for line in unet_table.text(direction, width):
            print(line)
        print(end="\n" if direction.subjects else "")
    for line in unet_table.absences(shown, width):
        print(line)
    for path, reason in plan.registry.broken.items():
        print(f"broken file: {path}: {reason}")
    write("csv", unet_table.as_csv(shown))
    write("markdown", "\n".join((*unet_table.markdown(header, shown), "")))
    status = exit_status(run, bool(plan.registry.broken), interrupted)
    print("NOTHING WAS VERIFIED\n" if status == ExitCode.NOTHING else "", end="")
    return status


def _progress(subjects: int, count: int) -> Callable[[int, TimedKernel], None]:
    """On a terminal, one line that the next replaces."""
    seen = 0

    def say(number: int, subject: TimedKernel) -> None:
        nonlocal seen
        seen += 1
        if sys.stderr.isatty():
            case, last = subject.case, seen == count * subjects
            text = f"visit {seen} of {count * subjects}: {case.operator.name} {case.problem.name}"
            print(f"\r\033[K{'' if last else text}", end="", file=sys.stderr, flush=True)

    return say


def exit_status(run: Run, broken: bool, interrupted: bool = False) -> int:
    """0 where all that ran passed, on a machine whose times can be believed."""
    statuses = {subject.verdict.status for subject in run.subjects if subject.verdict is not None}
    if interrupted:
        return ExitCode.INTERRUPTED
    if broken or statuses & {"fail", "error"}:
        return ExitCode.BAD
    if "pass" not in statuses:
        return ExitCode.NOTHING
    return ExitCode.INTERNAL if run.times and run.state.state == "unusable" else ExitCode.GOOD
