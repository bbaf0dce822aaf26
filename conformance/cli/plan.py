"""`conformance plan`: the units of a run, and how long a number of devices takes for them."""

from __future__ import annotations

import argparse
import heapq
import math
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from conformance import interrupts
from conformance.cli import words as command_line
from conformance.cli.choosing import chosen, costs
from conformance.engine.progress import duration
from conformance.engine.run import Run
from conformance.engine.tasks import tasks
from conformance.engine.units import Unit, divided, program
from conformance.execution.selection import SelectionError
from conformance.execution.workers import Workers
from conformance.exit_codes import ExitCode
from conformance.files import write
from conformance.reporting.table import many
from conformance.results.writing import require_creatable

START = 2.0
"""Seconds in which a unit loads the suite, the kernels and NumPy, beside its cases."""
MINUTE = 60.0
"""Seconds of a unit, if neither units nor devices are given."""
JOBS_OF_A_DEVICE, LEAST = 4, 10 * START
"""Units for each device, if only devices are given, so that the last ones to end leave the others idle for less; but
none shorter than so many seconds, since each is a job that starts anew, unless a device would have none."""
MAX_LISTED = 20
"""Largest number of units that are listed on the terminal."""


class UnitLine(msgspec.Struct, omit_defaults=True):
    """A unit as a line of JSON."""

    unit: str
    implementations: list[str]
    seconds: float
    cases: list[str]


class Schedule(NamedTuple):
    """How long devices take for units: seconds of the cases, and seconds until the last unit ends. `bound` is the
    number of a unit that is as long as all of it, so that more devices would not end sooner; 0 if there is none."""

    work: float
    wall: float
    bound: int


def run(words: Sequence[str]) -> int:
    """Print the units of a run, and return the exit status."""
    with ExitStack() as stack:
        stack.callback(interrupts.handle_signals(interrupts.Interrupt()))
        try:
            return _plan(words, stack)
        except SelectionError as error:
            print(f"ERROR: {error}", file=sys.stderr)
            return ExitCode.UNUSABLE


def declare(parser: argparse.ArgumentParser) -> None:
    """Divide a run into units, for job arrays and clusters."""
    command_line.declare(parser)
    units = parser.add_argument_group("units")
    units.add_argument(
        "--units",
        metavar="N",
        help="how many units (default: one a minute; with --devices four a device, or fewer of 20 s, at least one a "
        "device)",
    )
    units.add_argument("--devices", metavar="N", help="say how long so many devices of a kind take")
    units.add_argument("-o", "--output", metavar="FILE", help="write a line of JSON for each unit")


def _plan(words: Sequence[str], stack: ExitStack) -> int:
    parser = command_line.parser_of(
        "plan",
        "[FILE|FOLDER|NAME ...] [--units N] [--devices N] [option of conformance run ...]",
        "Divide a run into units: `conformance run ... --unit K/N` runs unit K.",
    )
    declare(parser)
    arguments, _, options = command_line.read(words, parser)
    cost = costs(arguments.costs)
    count, devices = _whole("--units", arguments.units), _whole("--devices", arguments.devices)
    if arguments.output:
        try:
            require_creatable(Path(arguments.output))
        except OSError as error:
            raise SelectionError(f"--output {arguments.output}: cannot be written ({error.strerror})") from None
    workers = None
    if options.limits is not None:
        workers = Workers(options.limits, options.workers)
        stack.callback(workers.close)
    planned, _ = tasks(Run(options, workers).plan, workers)
    remaining = chosen(planned, arguments.keyword, arguments.markexpr or "")
    if not remaining:
        print("NOTHING IS PLANNED: no case is left")
        return ExitCode.NOTHING
    if count is None:
        seconds = sum(map(cost, remaining))
        by_time = math.ceil(seconds / (LEAST if devices else MINUTE))
        count = max(devices, min(JOBS_OF_A_DEVICE * devices, by_time)) if devices else max(1, by_time)
    units = divided(remaining, count, cost)
    if arguments.output:
        write(Path(arguments.output), b"".join(_line(number, count, unit) for number, unit in enumerate(units, 1)))
    for line in _described(units, devices):
        print(line)
    return ExitCode.GOOD


def scheduled(units: Sequence[Unit], devices: int) -> Schedule:
    """Return how long devices take that each begin the next unit when they have ended one, the longest units first."""
    ends = [(0.0, device) for device in range(devices)]
    longest_first = sorted(range(len(units)), key=lambda number: -units[number].seconds)
    for number in longest_first:
        if units[number].tasks:
            begin, device = ends[0]
            heapq.heapreplace(ends, (begin + START + units[number].seconds, device))
    wall, longest = max(end for end, _ in ends), longest_first[0]
    is_bound = START + units[longest].seconds >= wall
    return Schedule(sum(unit.seconds for unit in units), wall, longest + 1 if is_bound else 0)


def _described(units: Sequence[Unit], devices: int | None) -> list[str]:
    """Return lines on units: what they are, the first ones, and how long devices take for them."""
    cases = sum(len(unit.tasks) for unit in units)
    programs = Counter(key for unit in units for key in {program(task) for task in unit.tasks})
    seconds = sum(unit.seconds for unit in units)
    shared = sum(count > 1 for count in programs.values())
    lines = [
        f"{many(len(units), 'unit')} of {many(cases, 'case')} on {many(len(programs), 'program')}: "
        f"{duration(seconds)} of one device; {shared or 'none'} of the programs in more than one unit",
        f"{'unit':>11} {'cases':>7} {'programs':>8} {'seconds':>8}  implementations",
    ]
    for number, unit in [*enumerate(units, 1)][:MAX_LISTED]:
        of_unit = len({program(task) for task in unit.tasks})
        name = f"{number}/{len(units)}"
        listed = ", ".join(unit.implementations)
        lines.append(f"{name:>11} {len(unit.tasks):7,} {of_unit:8,} {unit.seconds:8.1f}  {listed}")
    if len(units) > MAX_LISTED:
        lines.append(f"{'...':>11} and {len(units) - MAX_LISTED:,} more (-o FILE writes all)")
    if devices:
        schedule = scheduled(units, devices)
        share = schedule.work / (devices * schedule.wall)
        bound = f"unit {schedule.bound}, the longest" if schedule.bound else "the number of devices"
        lines.append(
            f"{many(devices, 'device')}: {duration(schedule.wall)}, bound by {bound}; "
            f"{share:.0%} of the devices' time is spent on cases"
        )
    return lines


def _line(number: int, count: int, unit: Unit) -> bytes:
    described = UnitLine(
        unit=f"{number}/{count}",
        implementations=unit.implementations,
        seconds=round(unit.seconds, 3),
        cases=[task.id for task in unit.tasks],
    )
    return msgspec.json.encode(described) + b"\n"


def _whole(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**7):
        raise SelectionError(f"{option} {text}: must be a whole number from 1")
    return int(text)
