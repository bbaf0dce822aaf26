"""`conformance unet`: the ten UNet layers through every implementation, on the CPU and on CUDA."""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from conformance.execution.case import Absence
from conformance.execution.plan import Plan, absence_reason
from conformance.execution.process import Limits
from conformance.execution.selection import Selection, SelectionError, split
from conformance.execution.workers import Workers, share
from conformance.exit_codes import ExitCode
from conformance.implementations import registry
from conformance.implementations.devices import Unavailable
from conformance.implementations.host import processor
from conformance.inputs import expectation
from conformance.inputs.manifest import SEED
from conformance.problems import Problem
from conformance.problems.networks import UNET
from conformance.resources import IMPLS
from conformance.timing import machine, roofline, table
from conformance.timing.measure import DEFAULT_ROUNDS, Cell, measure
from conformance.timing.roofline import Ceilings
from conformance.timing.table import Direction

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
NOTHING = 5
"""Exit status of a run that verified nothing, as pytest's."""

Write = Callable[[str, str, str], None]
"""(option, mode, text): to the file that an option names, if it was given. Raises SelectionError."""


def declare(parser: argparse.ArgumentParser) -> None:
    """The U-Net table: ten layers through every implementation, verified, then timed beside torch and the roofline."""

    def rounds(text: str) -> int:
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= 1000):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1000")
        return int(text)

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
        "--rounds", type=rounds, default=DEFAULT_ROUNDS, metavar="N", help="warm calls (default: %(default)s)"
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
    def write(option: str, mode: str, text: str) -> None:
        path: Path | None = getattr(arguments, option)
        if path is None:
            return
        try:
            with path.open(mode, encoding="utf-8", newline="") as file:
                file.write(text)
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
                write(option, "w", "")
            return report(plan, chosen, arguments.rounds, write, workers)
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


def report(plan: Plan, layers: Sequence[Problem], rounds: int, write: Write, workers: Workers | None) -> int:
    """Measure, print, write; return the exit status: 1 after a failure, 5 where nothing was verified."""
    width = shutil.get_terminal_size((160, 24)).columns
    present = [i for i in plan.registry.implementations.values() if absence_reason(i) is None]
    threads = machine.threads_text(machine.share_threads(present))
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions(present).items())
    header = [
        f"U-Net, {len(layers)} of {len(UNET)} layers at full size, fp32, NCHW; TF32 {machine.tf32(present)}",
        f"{processor()}, {machine.cores()} cores; {versions}",
        f"threads: {threads}",
    ]
    ceilings: dict[str, Ceilings] = {}
    for device in dict.fromkeys(implementation.device for implementation in present):
        try:
            ceilings[device] = roofline.measure_ceilings(device, workers)
            header.append(f"ceilings of {device}: {ceilings[device]}")
        except Unavailable as error:
            header.append(f"ceilings of {device}: {error}")
    for line in (*header, *([table.LEGEND] if present else []), ""):
        print("\n".join(textwrap.wrap(line, width)))
    directions = []
    for operator in plan.selection.operators:
        directions.append(measured(plan, operator, layers, rounds, ceilings, workers))
        for line in table.text(directions[-1], width):
            print(line)
        print(flush=True, end="\n" if directions[-1].cells else "")
        write("csv", "a", table.as_csv(directions[-1], headed=len(directions) == 1))
    for line in table.absences(directions, width):
        print(line)
    for path, reason in plan.registry.broken.items():
        print(f"broken file: {path}: {reason}")
    write("markdown", "a", "\n".join((*table.markdown(header, directions), "")))
    status = exit_status(directions, bool(plan.registry.broken))
    print("NOTHING WAS VERIFIED\n" if status == NOTHING else "", end="")
    return status


def measured(
    plan: Plan,
    operator: str,
    layers: Sequence[Problem],
    rounds: int,
    ceilings: dict[str, Ceilings],
    workers: Workers | None,
) -> Direction:
    """The cells of one operator. Tensors of a layer are freed before those of the next are drawn."""

    def free() -> None:
        expectation.cache_clear()
        gc.collect()

    def progress(text: str) -> None:
        """On a terminal, one line that the next replaces."""
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    cells: list[Cell] = []
    absences: list[Absence] = []
    for case in plan.timed(operator, layers):
        if isinstance(case, Absence):
            absences.append(case)
            continue
        if cells and cells[-1].case.problem is not case.problem:
            free()
        progress(f"{operator} {case.problem.name} {case.implementation.name}")
        cells.append(measure(case, rounds, ceilings.get(case.implementation.device), workers))
    free()
    progress("")
    return Direction(operator, tuple(cells), tuple(absences))


def exit_status(directions: Sequence[Direction], broken: bool) -> int:
    """0 where all that ran passed."""
    statuses = {cell.status for direction in directions for cell in direction.cells}
    if broken or statuses & {"fail", "error"}:
        return 1
    return 0 if "pass" in statuses else NOTHING
