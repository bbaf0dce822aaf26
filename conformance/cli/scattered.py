"""Commands on a Ray cluster: each unit is the same command with `--unit K/N`, in a process on one of its devices."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from conformance.cli.shipping import KERNELS, shipped
from conformance.engine.cluster import COMPARED, LOOK, connected, holding, require_offered, require_same
from conformance.execution.selection import SelectionError
from conformance.exit_codes import ExitCode
from conformance.files import write
from conformance.problems.case import CaseError, read
from conformance.results import build

HERE = ("--ray", "--resource", "--save")
"""Options that a unit does not get as they are."""
WORST = (ExitCode.UNUSABLE, ExitCode.INTERNAL, ExitCode.INTERRUPTED, ExitCode.BAD, ExitCode.GOOD)
"""Exit codes of which the first that a unit ended with is that of the whole."""
ENDING = 10.0
"""Seconds for units to end when the command is interrupted."""


class Ended(NamedTuple):
    """What a unit leaves: its exit status, all that it printed, and the table of `--save`."""

    status: int
    printed: str
    table: bytes


def run(
    words: Sequence[str], arguments: argparse.Namespace, module: str = "conformance", beside: Iterable[Path] = ()
) -> int:
    """Carry out a command of a module by a unit for each device of a cluster, and return the exit status. The module is
    the suite's, or lies in folders `beside` it."""
    try:
        with ExitStack() as stack:
            if arguments.unit:
                raise SelectionError("--ray and --unit: give one of them")
            for option in ("folder", "suite"):
                path = getattr(arguments, option, Path("/"))
                if path is None or not path.is_absolute():
                    raise SelectionError(f"--{option} {path}: with --ray, give a whole path that all machines share")
            kernels = [Path(word) for word in (getattr(arguments, "kernel", ""),) if word and Path(word).exists()]
            ray = connected(arguments.ray, shipped(kernels, stack, beside))
            stack.callback(ray.shutdown)
            resource = arguments.resource or "CPU"
            require_offered(ray, resource, "--resource")
            save = getattr(arguments, "save", None)
            table = save.read_bytes() if save is not None and save.exists() else None if save is None else b""
            count = int(ray.cluster_resources()[resource])
            statuses = set[int]()
            for number, ended in _carried_out(ray, resource, count, [module, *_for_units(words)], table):
                print(f"unit {number}/{count}: {ended.printed.strip()}\n", flush=True)
                statuses.add(ended.status)
                if save is not None:
                    _add(save, ended.table, f"{arguments.kernel}, unit {number}/{count}")
    except (SelectionError, CaseError) as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.UNUSABLE
    if statuses - {*ExitCode}:  # a signal
        return ExitCode.INTERNAL
    return next((status for status in WORST if status in statuses), ExitCode.NOTHING)


def _carried_out(
    ray: Any, resource: str, count: int, words: Sequence[str], table: bytes | None
) -> Iterator[tuple[int, Ended]]:
    """Yield the number of each unit and what it left, in the order in which they end. A unit whose machine is lost is
    carried out once more."""
    task = ray.remote(carry_out).options(max_retries=0, scheduling_strategy="SPREAD", **holding(resource))
    versions = {name: build.versions()[name] for name in COMPARED}
    numbers, lost = [*range(1, count + 1)], set[int]()
    running: dict[Any, int] = {}
    try:
        while numbers or running:
            for number in numbers:
                running[task.remote([*words, f"--unit={number}/{count}"], KERNELS, versions, table)] = number
            numbers = []
            for reference in ray.wait([*running], timeout=LOOK)[0]:
                number = running.pop(reference)
                try:
                    yield number, ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    yield number, Ended(ExitCode.INTERNAL, str(error).strip().splitlines()[-1], b"")
                except ray.exceptions.RayError as error:
                    if number in lost:
                        yield number, Ended(ExitCode.INTERNAL, f"lost twice with its machine ({error})", b"")
                    else:
                        numbers.append(number)
                        lost.add(number)
    finally:
        for reference in running:
            ray.cancel(reference)
        if running:
            ray.wait([*running], num_returns=len(running), timeout=ENDING)


def carry_out(words: Sequence[str], folder: str, versions: Mapping[str, str], table: bytes | None) -> Ended:
    """Run a command, the name of its module and its words, on a machine of the cluster, below the folder that has
    travelled there. Raises JudgeError where it has other versions."""
    require_same(f"the head (as seen from {platform.node()})", versions)
    travelled = Path.cwd()
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary, "table")
        if table is not None:
            file.write_bytes(table)
        done = subprocess.run(
            [sys.executable, "-m", *words, *([f"--save={file}"] if table is not None else ())],
            cwd=travelled / folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(travelled), os.environ.get("PYTHONPATH", "")])},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        )  # fmt: skip
        content = file.read_bytes() if file.exists() else b""
    return Ended(done.returncode, f"on {platform.node()}\n{done.stdout}", content)


def _for_units(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command without the options that are for this machine, and their values."""
    rest = iter(words)
    for word in rest:
        if word in HERE:
            next(rest)
        elif word.partition("=")[0] not in HERE:
            yield word


def _add(file: Path, table: bytes, origin: str) -> None:
    """Add the rows of a unit's table that a table does not hold: units meet the same failure."""
    with tempfile.NamedTemporaryFile() as received:
        received.write(table)
        received.flush()
        file.touch()
        earlier = [*read(file)]
        for rows in read(Path(received.name)):
            if rows not in earlier:
                write(file, f"# {origin}\n{'; '.join(map(str, rows))}\n".encode(), at_end=True)
