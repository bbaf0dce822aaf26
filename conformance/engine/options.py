"""The options of a run: one table of them for every front end, and one way to read and check what was given."""

from __future__ import annotations

import ast
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance import storage
from conformance.dtypes import DECLARABLE, DTYPES
from conformance.execution.device_shares import device_count
from conformance.execution.process import SECONDS, Limits
from conformance.execution.selection import Selection, SelectionError, require_known, seed_number, split
from conformance.execution.workers import share
from conformance.implementations.devices import DEVICES, NEURON, Unavailable, require
from conformance.inputs import DISTRIBUTIONS
from conformance.inputs.golden import SEED
from conformance.judge.expected import METHODS
from conformance.operators import OPERATORS, GeometryError
from conformance.problems import LAYOUTS, LEVELS, PROBLEMS, named
from conformance.problems.case import BEHAVIOUR, CaseError
from conformance.problems.case import read as read_cases
from conformance.reporting.terminal import DETAILS
from conformance.results import units
from conformance.results.schema import STATUSES, Part
from conformance.training.tables import DISTRIBUTION as TRAINING

OPTIONS: dict[str, dict[str, Any]] = {
    "--impl": {"action": "append", "metavar": "NAME|PATH", "help": "only these implementations"},
    "--variants": {"action": "store_true", "help": "also every declared variant of the implementations"},
    "--level": {"default": "standard", "metavar": "|".join(LEVELS), "help": "how much to run"},
    "--programs": {"metavar": "N", "help": "only the first N programs of each operator"},
    "--problem": {
        "action": "append",
        "metavar": "TEXT",
        "help": "a name, or sizes: 'n1 c8 h9 w9 k4 r3 s3 p1'",
    },
    "--problems": {"action": "append", "metavar": "FILE", "help": "also the cases of this regression table"},
    "--operator": {"action": "append", "metavar": "NAME", "help": "only this operator"},
    "--dtype": {"action": "append", "metavar": "NAME", "help": "only this dtype"},
    "--layout": {"action": "append", "metavar": "NAME", "help": "only this layout"},
    "--distribution": {"action": "append", "metavar": "NAME", "help": "only this input distribution"},
    "--storage": {"action": "append", "metavar": "TEXT", "help": "only this: x:crop,w:page-end, or contiguous"},
    "--seed": {"default": str(SEED), "metavar": "N", "help": "draw fresh data (default: the goldens' seed)"},
    "--method": {"default": "auto", "metavar": "|".join(METHODS), "help": "exact reference or probes, or by cost"},
    "--timeout": {"metavar": "SECONDS", "help": "longest call of a kernel (default: 60; huge, Neuron: 600)"},
    "--memory": {"metavar": "GIB", "help": "most memory of a kernel's process (default: its share)"},
    "--pass-env": {
        "action": "append",
        "metavar": "NAME",
        "help": "kernels have this variable too: ACME_HOME, 'ACME_*'",
    },
    "--workers": {"metavar": "N", "default": "1", "help": "kernels' processes at once, for each -n (default: 1)"},
    "--minutes": {"metavar": "N", "help": "stop after so long: what detects most comes first"},
    "--in-process": {"action": "store_true", "help": "run kernels in the judge's process, for debuggers"},
    "--require": {"action": "append", "metavar": "DEVICE", "help": "fail at once if the device is not here"},
    "--show": {"action": "append", "metavar": "STATUS", "help": f"list the cases of a status, or {DETAILS}"},
    "--records": {"metavar": "FILE", "help": "write one JSON line per verdict to a new file"},
    "--resume": {"action": "store_true", "help": "run only what has no verdict in the file of records"},
    "--overwrite": {"action": "store_true", "help": "replace the file of records, if there is one"},
    "--report": {"metavar": "DIR", "help": "write a page and a summary in Markdown there"},
}
"""Options that each front end declares, as argparse takes them. `read` checks their values: errors have one form."""

EVERYDAY = (
    "--impl", "--level", "--problem", "--operator", "--dtype", "--layout", "--seed", "--show", "--records", "--report",
)  # fmt: skip
"""Options that `conformance run --help` lists; the others are for experts, and `--help-expert` has them too."""
ONCE = ("--level", "--seed", "--method", "--records", "--report")
"""Options that take one value on a command line; this value may replace that of `addopts` in an ini file."""
SELECTING = {
    **{
        f"--{name}": name
        for name in ("impl", "problem", "operator", "dtype", "layout", "distribution", "storage", "programs")
    },
    **{
        "-k": "keyword",
        "-m": "markexpr",
        "--deselect": "deselect",
        "--ignore": "ignore",
        "--ignore-glob": "ignore_glob",
    },
    "--lf": "lf",
}
"""Options that choose what is run, with the names under which a front end stores them."""


MAX_PROCESSES = 4
"""Most processes for each core. Each takes the memory of a framework: a thousand exhaust the machine at the start."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run, read and checked.

    level      the one that was given: problems that are named run at every level
    kernels    each text of --impl -> its names and paths, before a kernel can remove its file
    limits     those of each kernel's process; None if kernels run in this one
    workers    number of kernels' processes at once
    patience   seconds from the first verdict on, after which the run stops
    devices    devices that -m or --require name
    shown      statuses whose cases are listed, and `details`
    chosen     the options that choose what is run -> their values, for the header of records
    is_chosen  whether problems or single cases are named: no others are run to find out where a kernel fails
    explains   whether failures are shown with an explanation
    part       the unit that is run, of how many; None where all of them are
    """

    selection: Selection
    level: str
    kernels: dict[str, tuple[tuple[str, ...], tuple[Path, ...]]]
    impls: Path
    limits: Limits | None
    workers: int
    patience: float | None
    devices: tuple[str, ...]
    shown: frozenset[str]
    records: str | None
    resume: bool
    overwrite: bool
    report: str | None
    chosen: dict[str, tuple[str, ...]]
    is_chosen: bool
    explains: bool
    verbosity: int
    part: Part | None = None

    @property
    def in_process(self) -> bool:
        """Return whether kernels run in the judge's process."""
        return self.limits is None


def read(arguments: Namespace, words: tuple[str, ...], *, impls: Path, folder: Path, processes: int) -> RunOptions:
    """Read the options of a command line, which `words` are, typed in `folder`. Raises SelectionError naming the
    option, the value and the choices.

    `impls` is where implementations are looked for, `processes` how many processes of this run have kernels' processes.
    """
    for option in ("impl", "records", "report"):
        if "" in (getattr(arguments, option), *(arguments.impl or ())):
            raise SelectionError(f"--{option} is empty; give a name or a path")
    for option in ONCE:
        if sum(str(word).split("=")[0] == option for word in words) > 1:
            raise SelectionError(f"{option} is given twice; it takes one value")
    expression = getattr(arguments, "markexpr", "") or ""
    names, paths = split(arguments.impl or ())
    require_known("--level", [arguments.level], LEVELS)
    require_known("--method", [arguments.method], METHODS)
    require_known("--show", arguments.show or (), (*STATUSES, DETAILS))
    require_known("--require", arguments.require or (), DEVICES)
    for device in arguments.require or ():
        try:
            require(device)
        except Unavailable as absence:
            raise SelectionError(f"--require {device}: {absence}") from None
    debugged = getattr(arguments, "usepdb", False) or getattr(arguments, "trace", False)
    # Windows has neither the sockets nor the signals
    in_process = sys.platform == "win32" or arguments.in_process or debugged
    devices = _devices_named(expression, arguments.require or ())
    _require_possible(processes)
    seconds = _seconds(arguments, devices)
    problems = [_problem(text) for text in arguments.problem or ()]
    # a named problem is run in 8 bits only if these dtypes are named
    dtypes = DTYPES if problems and not arguments.dtype else _chosen("--dtype", arguments.dtype, DECLARABLE)
    selection = Selection(
        implementations=names,
        paths=paths,
        level="full" if problems else arguments.level,
        problems=tuple(problems) or PROBLEMS,
        operators=_chosen("--operator", arguments.operator, OPERATORS),
        dtypes=dtypes,
        layouts=tuple(arguments.layout or LAYOUTS),  # the plan knows what implementations declare
        distributions=_chosen("--distribution", arguments.distribution, (*DISTRIBUTIONS, BEHAVIOUR, TRAINING)),
        seed=seed_number(arguments.seed),
        method=arguments.method,
        storages=tuple(_storage(text) for text in arguments.storage or ()),
        regressions=tuple(rows for file in arguments.problems or () for rows in _regressions(folder, file)),
        programs=None if arguments.programs is None else _whole("--programs", arguments.programs),
        variants=arguments.variants,
        required=tuple(arguments.require or ()),
        devices=devices_selected(expression),
        seconds=SECONDS if in_process else seconds,
    )
    if not impls.exists() and not paths:
        raise SelectionError(f"impls = {impls}: no such file or folder; set it in the ini file, or give --impl=FILE")
    if arguments.resume and arguments.overwrite:
        raise SelectionError("--resume and --overwrite: give one of them")
    if (arguments.resume or arguments.overwrite) and arguments.records is None and arguments.report is None:
        raise SelectionError(f"--{'resume' if arguments.resume else 'overwrite'}: give the file, --records=FILE")
    workers = _whole("--workers", arguments.workers)
    memory = _number("--memory", arguments.memory, 0.1, share(processes) / 2**30)
    shown = getattr(arguments, "capture", "no") == "no"
    limits = (
        None
        if in_process
        else Limits(seconds, int(memory * 2**30 / workers), passed=tuple(arguments.pass_env or ()), shown=shown)
    )
    values = ((option, getattr(arguments, name, None)) for option, name in SELECTING.items())
    by_name = any(getattr(arguments, name, None) for name in ("problem", "keyword", "deselect", "lf", "benchmark_only"))
    return RunOptions(
        selection=selection,
        level=arguments.level,
        kernels={text: split([text]) for text in arguments.impl or ()},
        impls=impls,
        limits=limits,
        workers=workers,
        patience=_patience(arguments.minutes),
        devices=devices,
        shown=frozenset(arguments.show or ()),
        records=arguments.records,
        resume=arguments.resume,
        overwrite=arguments.overwrite,
        report=arguments.report,
        chosen={
            option: (str(value),) if isinstance(value, (str, int)) else tuple(map(str, value))
            for option, value in values
            if value
        },
        is_chosen=by_name,
        explains=getattr(arguments, "tbstyle", "") != "no",
        verbosity=getattr(arguments, "verbose", 0) or 0,
        part=units.read(getattr(arguments, "unit", None)),
    )


def _require_possible(count: int) -> None:
    """Raise SelectionError if the machine cannot hold so many processes."""
    cores = os.cpu_count() or 1
    if count > (most := MAX_PROCESSES * cores):
        raise SelectionError(
            f"-n {count}: with {cores} cores, {most} processes at most; -n auto: one a core, or a device"
        )


def _chosen(option: str, texts: Iterable[str] | None, choices: Iterable[str]) -> tuple[str, ...]:
    values = tuple(texts or ())
    require_known(option, values, choices)
    return values or tuple(choices)


def _problem(text: str) -> Any:
    try:
        return named(text)
    except GeometryError as error:
        raise SelectionError(f"--problem {text!r}: {error}") from None


def _storage(text: str) -> str:
    try:
        kinds = storage.parse(text)
    except storage.StorageError as error:
        raise SelectionError(f"--storage {error}") from None
    operands = {argument for operator in OPERATORS.values() for argument in operator.arguments}
    require_known(f"--storage {text}:", [*kinds], operands)
    return storage.written(kinds)


def _regressions(folder: Path, file: str) -> Iterable[Any]:
    try:
        return [*read_cases(folder / file)]
    except OSError as error:
        raise SelectionError(f"--problems {file}: cannot be read ({error.strerror})") from None
    except CaseError as error:
        raise SelectionError(f"--problems {error}") from None


def _whole(option: str, text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise SelectionError(f"{option} {text}: must be a whole number from 1")
    return int(text)


def _number(option: str, text: str | None, least: float, usual: float) -> float:
    try:
        number = usual if text is None else float(text)
    except ValueError:
        number = -1.0
    if not least <= number <= 1e6:
        raise SelectionError(f"{option} {text}: must be a number, at least {least:g}")
    return number


def _patience(minutes: str | None) -> float | None:
    """Return the seconds that the run may take; None if there is no limit."""
    try:
        seconds = None if minutes is None else 60 * float(minutes)
    except ValueError:
        seconds = -1.0
    if seconds is not None and not 0 < seconds < 1e8:
        raise SelectionError(f"--minutes {minutes}: must be a number above 0")
    return seconds


def _seconds(arguments: Namespace, devices: Collection[str]) -> float:
    """Return the seconds that a call may take."""
    is_long = arguments.level == "huge" or NEURON.keys() & set(devices)
    return _number("--timeout", arguments.timeout, 0.1, 600 if is_long else SECONDS)


def require_markers(expression: str, markers: Collection[str]) -> None:
    """Raise SelectionError for a word of -m that is no marker: it would select nothing, and a typo would end in an
    empty run."""
    for word in re.findall(r"\w+", expression):
        if word not in markers and word not in ("and", "or", "not", "True", "False"):
            require_known("-m", [word], DEVICES)


def automatic(expression: str, required: Iterable[str]) -> int | None:
    """Return how many processes judge with `-n auto`, if -m or --require name devices: one on each; else None."""
    devices = _devices_named(expression, required)
    return device_count(devices) or None if devices else None


def _devices_named(expression: str, required: Iterable[str]) -> tuple[str, ...]:
    """Return the devices that -m or --require name."""
    words = re.findall(r"\w+", expression)
    named = (word for word in devices_selected(expression) if word in words)  # `not cpu` asks for none
    return tuple(dict.fromkeys([*named, *required]))


def devices_selected(expression: str) -> tuple[str, ...]:
    """Return the devices of which -m can select a case, whatever other markers it has: planning the cases of all
    others, which would be deselected, took four fifths of a collection. All devices, if -m cannot be read."""
    try:
        tree = _read(expression)
    except SyntaxError:
        return tuple(DEVICES)
    return tuple(device for device in DEVICES if _selects(tree, (device,), DEVICES.__contains__) is not False)


def selects(expression: str, markers: Collection[str]) -> bool:
    """Return whether -m selects a case with these markers. Raises SyntaxError."""
    return _selects(_read(expression), markers, lambda name: True) is not False


def _read(expression: str) -> ast.expr:
    return ast.parse(expression or "True", mode="eval").body


def _selects(tree: ast.expr, markers: Collection[str], is_known: Callable[[str], bool]) -> bool | None:
    """Return whether an expression selects a case with these markers; None if that depends on unknown markers."""
    match tree:
        case ast.Name(id) if is_known(id):
            return id in markers
        case ast.UnaryOp(ast.Not(), operand):
            inner = _selects(operand, markers, is_known)
            return None if inner is None else not inner
        case ast.BoolOp(op, values):
            answers = [_selects(value, markers, is_known) for value in values]
            decisive = isinstance(op, ast.Or)
            return decisive if decisive in answers else None if None in answers else not decisive
    return None
