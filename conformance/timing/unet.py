"""`python -m conformance unet`: the ten UNet layers through every implementation, on the CPU and on CUDA."""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from conformance.execution.case import Absence, Case
from conformance.execution.plan import IMPLS, Plan
from conformance.execution.selection import Selection, SelectionError
from conformance.implementations.host import processor
from conformance.implementations.implementation import Implementation
from conformance.inputs import expectation
from conformance.inputs.manifest import SEED
from conformance.problems import Problem
from conformance.problems.networks import UNET
from conformance.timing import machine, table
from conformance.timing.measure import Measurement, Patience, measure
from conformance.timing.roofline import ceilings
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
"""Unless told not to, jax takes three quarters of a device's memory when it starts; torch and numba share it here."""
NOTHING = 5
"""Exit status of a run that verified nothing, as pytest's."""


class OptionError(ValueError):
    """A command line that cannot be meant; the message is one line."""


def declare(parser: argparse.ArgumentParser) -> None:
    """The U-Net table: ten layers through every implementation, verified, then timed beside torch and the roofline."""
    parser.set_defaults(run=_run)
    parser.add_argument(
        "--impl", nargs="+", action="extend", metavar="NAME|PATH", help=f"only these (default: {', '.join(DEFAULT)})"
    )
    parser.add_argument("--direction", choices=(*DIRECTIONS, "all"), default="all", help="default: all")
    layers = ", ".join(_short(problem) for problem in UNET)
    parser.add_argument("--layers", nargs="+", action="extend", type=_layer, metavar="LAYER", help=f"of {layers}")
    parser.add_argument(
        "--rounds", type=_rounds, default=Patience().rounds, metavar="N", help="warm calls, 7 if not told"
    )
    parser.add_argument(
        "--method",
        choices=("exact", "probes"),
        default="exact",
        help="judge and compare every output (default), or by probes: seconds instead of minutes on a small machine",
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write one line per cell")


def _short(problem: Problem) -> str:
    return problem.name.removeprefix("unet.")


def _layer(text: str) -> Problem:
    found = {_short(problem): problem for problem in UNET}
    try:
        return found[text.removeprefix("unet.")]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r} is no layer; layers: {', '.join(found)}") from None


def _rounds(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= 1000):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1000")
    return int(text)


def _run(arguments: argparse.Namespace) -> int:
    os.environ.setdefault(ALLOCATION, "false")
    operators = tuple(name for word, name in DIRECTIONS.items() if arguments.direction in (word, "all"))
    layers = tuple(dict.fromkeys(arguments.layers or UNET))
    patience = Patience(rounds=arguments.rounds, least=min(arguments.rounds, Patience().least))
    try:
        plan = planned(arguments.impl or (), operators, arguments.method)
        for option in ("csv", "markdown"):  # known before minutes are spent on what belongs in them
            _write(arguments, option, "w", "")
        return report(plan, layers, patience, partial(_write, arguments))
    except (OptionError, machine.ThreadsError) as problem:
        print(problem, file=sys.stderr)
        return 2


def _write(arguments: argparse.Namespace, option: str, mode: str, text: str) -> None:
    """To the file that an option names, if it was given. Raises OptionError."""
    path: Path | None = getattr(arguments, option)
    if path is None:
        return
    try:
        with path.open(mode, encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as problem:
        raise OptionError(f"--{option} {path}: cannot be written ({problem.strerror})") from None


def planned(names: Sequence[str], operators: tuple[str, ...], method: str) -> Plan:
    """The implementations asked for, in that order, or the usual ones that are here. Raises OptionError."""
    paths = tuple(Path(name) for name in names if "/" in name or name.endswith(".py"))
    for path in paths:
        if not path.exists():
            raise OptionError(f"--impl {path}: no such file")
    named = tuple(name for name in names if Path(name) not in paths)
    selection = Selection(
        named, paths, "full", UNET, operators, ("fp32",), ("nchw",), ("fixed",), SEED, method, required=()
    )
    try:
        plan = Plan(selection, IMPLS)
    except SelectionError as problem:
        raise OptionError("; ".join(str(problem).splitlines())) from None
    known = plan.registry.implementations
    wanted = dict.fromkeys((*named, *known)) if names else dict.fromkeys(DEFAULT)
    plan.registry.implementations = {name: known[name] for name in wanted if name in known}
    return plan


def report(plan: Plan, layers: Sequence[Problem], patience: Patience, write: Callable[[str, str, str], None]) -> int:
    """Measure, print, write; return the exit status: 1 after a failure, 5 where nothing was verified."""
    threads = machine.share_threads()
    width = shutil.get_terminal_size((160, 24)).columns
    present = [i for i in plan.registry.implementations.values() if not i.arrays.unavailable()]
    head = list(header(present, layers, threads))
    for line in (*head, *([table.LEGEND] if present else []), ""):
        print("\n".join(textwrap.wrap(line, width)))
    directions = []
    for operator in plan.selection.operators:
        directions.append(surveyed(operator, plan.timed(operator, layers), patience))
        for line in table.text(directions[-1], width):
            print(line)
        print(flush=True, end="\n" if directions[-1].measurements else "")
        write("csv", "a", table.as_csv(directions[-1], headed=len(directions) == 1))
    for line in (*table.absences(directions, width), *_broken(plan)):
        print(line)
    write("markdown", "a", "\n".join((*table.markdown(head, directions), "")))
    code = status(directions, bool(plan.registry.broken))
    print("NOTHING WAS VERIFIED\n" if code == NOTHING else "", end="")
    return code


def header(present: Sequence[Implementation], layers: Sequence[Problem], threads: str) -> Iterator[str]:
    """What all numbers depend on."""
    found = ", ".join(f"{name} {version}" for name, version in machine.versions(present).items())
    yield f"U-Net, {len(layers)} of {len(UNET)} layers at full size, fp32, NCHW; TF32 {machine.tf32()}"
    yield f"{processor()}, {machine.cores()} cores; {found}"
    yield f"threads: {threads}"
    for device in dict.fromkeys(implementation.device for implementation in present):
        yield f"ceilings of {device}: {ceilings(device)}"


def surveyed(operator: str, cases: Iterable[Case | Absence], patience: Patience) -> Direction:
    """The cells of one operator. Tensors of a layer are freed before those of the next are drawn."""
    measurements: list[Measurement] = []
    absences: list[Absence] = []
    for case in cases:
        if isinstance(case, Absence):
            absences.append(case)
            continue
        if measurements and measurements[-1].case.problem is not case.problem:
            _freed()
        _progress(f"{operator} {case.problem.name} {case.implementation.name}")
        measurements.append(measure(case, patience))
    _freed()
    _progress("")
    return Direction(operator, tuple(measurements), tuple(absences))


def _freed() -> None:
    expectation.cache_clear()
    gc.collect()


def _progress(text: str) -> None:
    """On a terminal, one line that the next replaces."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _broken(plan: Plan) -> Iterator[str]:
    return (f"broken file: {path}: {why}" for path, why in plan.registry.broken.items())


def status(directions: Sequence[Direction], broken: bool) -> int:
    """0 where all that ran passed."""
    found = {m.status for direction in directions for m in direction.measurements}
    if broken or found & {"fail", "error"}:
        return 1
    return 0 if found & {"pass", "waived"} else NOTHING
