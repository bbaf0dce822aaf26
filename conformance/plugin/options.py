"""The suite's pytest options, read and checked before anything runs."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from conformance import storage
from conformance.dtypes import DECLARABLE, DTYPES
from conformance.execution.process import SECONDS, Limits
from conformance.execution.selection import BEHAVIOUR, Selection, SelectionError, require_known, seed_number, split
from conformance.execution.verify import METHODS
from conformance.execution.workers import share
from conformance.implementations.devices import DEVICES, NEURON, Unavailable, require
from conformance.inputs import DISTRIBUTIONS
from conformance.inputs.golden import SEED
from conformance.operators import OPERATORS, GeometryError
from conformance.problems import LAYOUTS, LEVELS, PROBLEMS, named
from conformance.problems.regressions import TableError
from conformance.problems.regressions import read as read_table
from conformance.reporting.terminal import DETAILS
from conformance.resources import CHECKOUT, IMPLS
from conformance.results.schema import STATUSES
from conformance.training.tables import DISTRIBUTION as TRAINING

ONCE = ("--level", "--seed", "--method", "--records", "--report", "--order")
"""Options of one value; on one command line, that is: it may replace what `addopts` of an ini file says."""


EVERYDAY = (
    "--impl", "--level", "--problem", "--operator", "--dtype", "--layout", "--seed", "--show", "--records", "--report",
)  # fmt: skip
"""What `conformance run --help` lists; the others are for experts, and `--help-expert` has them too."""


def add(parser: Any) -> None:
    """Declare the options. Values are checked in `read`, so that every error has the same shape."""
    group = parser.getgroup("conformance", "kernel conformance")
    group.addoption("--impl", action="append", metavar="NAME|PATH", help="only these implementations")
    group.addoption("--variants", action="store_true", help="also every declared variant of the implementations")
    group.addoption("--level", default="standard", metavar="|".join(LEVELS), help="how much to run")
    group.addoption("--programs", metavar="N", help="only the first N programs of each operator")
    group.addoption("--slice", metavar="PERCENT", help="also so much of what the level leaves out, drawn by the date")
    group.addoption(
        "--problem",
        action="append",
        metavar="TEXT",
        help="a name, or sizes: 'n1 c8 h9 w9 k4 r3 s3 p1'",
    )
    group.addoption("--problems", action="append", metavar="FILE", help="also the cases of this regression table")
    group.addoption("--operator", action="append", metavar="NAME", help="only this operator")
    group.addoption("--dtype", action="append", metavar="NAME", help="only this dtype")
    group.addoption("--layout", action="append", metavar="NAME", help="only this layout")
    group.addoption("--distribution", action="append", metavar="NAME", help="only this input distribution")
    group.addoption("--storage", action="append", metavar="TEXT", help="only this: x:crop,w:page-end, or contiguous")
    group.addoption("--seed", default=str(SEED), metavar="N", help="draw fresh data (default: the goldens' seed)")
    group.addoption("--method", default="auto", metavar="|".join(METHODS), help="exact reference or probes, or by cost")
    group.addoption("--timeout", metavar="SECONDS", help="longest call of a kernel (default: 60; huge, Neuron: 600)")
    group.addoption("--memory", metavar="GIB", help="most memory of a kernel's process (default: its share)")
    group.addoption("--workers", metavar="N", default="1", help="kernels' processes at once, for each -n (default: 1)")
    group.addoption("--minutes", metavar="N", help="stop after so long: what detects most comes first")
    group.addoption("--in-process", action="store_true", help="run kernels in the judge's process, for debuggers")
    group.addoption("--first-failure", action="store_true", help="run no more of an implementation that has failed")
    group.addoption("--require", action="append", metavar="DEVICE", help="fail at once if the device is not here")
    group.addoption(
        "--show",
        action="append",
        metavar="STATUS",
        help=f"list the cases of a status, or {DETAILS}",
    )
    group.addoption("--records", metavar="FILE", help="write one JSON line per verdict to a new file")
    group.addoption("--resume", action="store_true", help="run only what has no verdict in the file of records")
    group.addoption("--overwrite", action="store_true", help="replace the file of records, if there is one")
    group.addoption("--report", metavar="DIR", help="write a page and a summary in Markdown there")
    group.addoption("--order", type=int, metavar="N", help="time in the order of an earlier run (default: random)")
    group.addoption("--visits", type=_visits, metavar="N", help="times that each kernel is come back to (default: 7)")


def _visits(text: str) -> int:
    from conformance.timing.run import visits  # most runs time nothing

    return visits(text)


def read(config: pytest.Config) -> Selection:
    """The selection of a command line. Raises pytest.UsageError naming the option, the value and the choices."""
    try:
        return _read(config)
    except SelectionError as error:
        raise pytest.UsageError(str(error)) from None


def _programs(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise SelectionError(f"--programs {text}: must be a whole number from 1")
    return int(text)


def _slice(text: str | None) -> tuple[float, str]:
    """A percentage, and the day that it is drawn from."""
    if text is None:
        return 0, ""
    percent, _, day = text.partition("@")
    try:
        if not re.fullmatch(r"\d{1,3}(\.\d{1,2})?", percent, re.ASCII) or float(percent) > 100:
            raise ValueError
        return float(percent), str(date.fromisoformat(day))
    except ValueError:
        why = "must be a percentage such as 5, or 5@2026-11-25 for that of another day"
        raise SelectionError(f"--slice {text}: {why}") from None


def _read(config: pytest.Config) -> Selection:
    def chosen(option: str, choices: Iterable[str]) -> tuple[str, ...]:
        given = config.getoption(option)
        require_known(option, given or (), choices)
        return tuple(given or choices)

    for option in ("--impl", "--records", "--report"):
        if "" in (config.getoption(option), *(config.getoption("--impl") or ())):
            raise SelectionError(f"{option} is empty; give a name or a path")
    for option in ONCE:
        if sum(str(word).split("=")[0] == option for word in config.invocation_params.args) > 1:
            raise SelectionError(f"{option} is given twice; it takes one value")
    if (given := config.getoption("--slice")) is not None and "@" not in given:
        config.option.slice = f"{given}@{datetime.now(UTC).date()}"  # what the records say, and a resumed run repeats
    names, paths = split(config.getoption("--impl") or ())
    level, method, seed = (config.getoption(option) for option in ("--level", "--method", "--seed"))
    require_known("--level", [level], LEVELS)
    require_known("--method", [method], METHODS)
    # pytest takes an unknown name in -m for one that no test has, and a typo for an empty run
    markers = [line.split(":")[0].split("(")[0].strip() for line in config.getini("markers")]
    words = re.findall(r"\w+", config.getoption("markexpr", "") or "")
    for word in words:
        if word not in markers and word not in ("and", "or", "not", "True", "False"):
            require_known("-m", [word], DEVICES)
    storages = []
    for text in config.getoption("--storage") or ():
        try:
            storages.append(storage.written(storage.parse(text)))
        except storage.StorageError as error:
            raise SelectionError(f"--storage {error}") from None
    problems = []
    texts = config.getoption("--problem") or ()
    for text in texts:
        try:
            problems.append(named(text))
        except GeometryError as error:
            raise SelectionError(f"--problem {text!r}: {error}") from None
    regressions = []
    for file in config.getoption("--problems") or ():
        try:
            regressions += read_table(config.invocation_params.dir / file)
        except OSError as error:
            raise SelectionError(f"--problems {file}: cannot be read ({error.strerror})") from None
        except TableError as error:
            raise SelectionError(f"--problems {error}") from None
    operators, dtypes = chosen("--operator", OPERATORS), chosen("--dtype", DECLARABLE)
    if texts and not config.getoption("--dtype"):  # what has 8 bits, of any problem, is asked for
        dtypes = DTYPES
    layouts = tuple(config.getoption("--layout") or LAYOUTS)  # the plan knows what implementations declare
    distributions = chosen("--distribution", (*DISTRIBUTIONS, BEHAVIOUR, TRAINING))
    require_known("--show", config.getoption("--show") or (), (*STATUSES, DETAILS))
    required = tuple(config.getoption("--require") or ())
    require_known("--require", required, DEVICES)
    for device in required:
        try:
            require(device)
        except Unavailable as absence:
            raise SelectionError(f"--require {device}: {absence}") from None
    return Selection(
        implementations=names,
        paths=paths,
        level="full" if texts else level,
        problems=tuple(problems) or PROBLEMS,
        operators=operators,
        dtypes=dtypes,
        layouts=layouts,
        distributions=distributions,
        seed=seed_number(seed),
        method=method,
        storages=tuple(storages),
        regressions=tuple(regressions),
        programs=_programs(config.getoption("--programs")),
        extra=_slice(config.getoption("--slice")),
        variants=config.getoption("--variants"),
        required=required,
        devices=devices_selected(config),
        seconds=SECONDS if in_process(config) else _timeout(config),
        program="pytest" if CHECKOUT is not None and config.inipath == CHECKOUT / "pytest.ini" else "conformance run",
    )


def in_process(config: pytest.Config) -> bool:
    """Whether kernels run in the judge's process: for debuggers, and on Windows, which has neither the sockets nor the
    signals."""
    debugged = config.getoption("usepdb", False) or config.getoption("trace", False)
    return sys.platform == "win32" or bool(config.getoption("--in-process") or debugged)


def isolation(config: pytest.Config, processes: int) -> tuple[Limits, int] | None:
    """What each kernel's process may take, and how many there are at once for each of so many processes of this run;
    None where kernels run in this one. Raises pytest.UsageError."""
    if in_process(config):
        return None
    workers = int(_number(config, "--workers", 1, 1))
    memory = _number(config, "--memory", 0.1, share(processes) / 2**30)
    shown = config.getoption("capture", "no") == "no"
    return Limits(_timeout(config), int(memory * 2**30 / workers), shown=shown), workers


def _timeout(config: pytest.Config) -> float:
    """Seconds that a call may take. Raises pytest.UsageError."""
    long = config.getoption("--level") == "huge" or NEURON.keys() & set(devices_asked(config))
    return _number(config, "--timeout", 0.1, 600 if long else SECONDS)


def _number(config: pytest.Config, option: str, least: float, usual: float) -> float:
    text = config.getoption(option)
    try:
        found = usual if text is None else float(text)
    except ValueError:
        found = -1.0
    if not least <= found <= 1e6 or (option == "--workers" and found % 1):
        raise pytest.UsageError(f"{option} {text}: must be a number, at least {least:g}")
    return found


def lists(config: pytest.Config) -> bool:
    """Whether tests are only listed, or their fixtures."""
    return any(config.getoption(name) for name in ("collectonly", "showfixtures", "show_fixtures_per_test"))


def seconds(config: pytest.Config) -> float | None:
    """How long the run may take; None where it takes as long as it does. Raises pytest.UsageError."""
    text = config.getoption("--minutes")
    try:
        found = None if text is None else 60 * float(text)
    except ValueError:
        found = -1.0
    if found is not None and not 0 < found < 1e6:
        raise pytest.UsageError(f"--minutes {text}: must be a number above 0")
    return found


def folder(config: pytest.Config, selection: Selection) -> Path:
    """The folder, or the file, of implementations. A missing one is an error unless files are given instead."""
    path: Path = config.rootpath / (config.getini("impls") or IMPLS)
    if not path.exists() and not selection.paths:
        raise pytest.UsageError(f"impls = {path}: no such file or folder; set it in the ini file, or give --impl=FILE")
    return path


def devices_asked(config: pytest.Config) -> list[str]:
    """Devices that `-m` or `--require` name."""
    words = re.findall(r"\w+", config.getoption("markexpr", "") or "")
    return list(dict.fromkeys([w for w in words if w in DEVICES] + list(config.getoption("--require") or ())))


def devices_selected(config: pytest.Config) -> tuple[str, ...]:
    """Devices of which `-m` can select a case, whatever other markers it has: planning the cases of all others, which
    pytest would deselect, took four fifths of a collection. What pytest cannot read it refuses itself."""
    try:
        asked = ast.parse(config.getoption("markexpr", "") or "True", mode="eval").body
    except SyntaxError:
        return tuple(DEVICES)
    return tuple(device for device in DEVICES if _selects(asked, (device,)) is not False)


def counts_absences(config: pytest.Config, markers: Collection[str]) -> bool:
    """Whether what is not here is counted: where `-m` selects its markers, and no single tests are chosen by name, of
    which it is none. Of the parts of a run that is split, in the first."""
    by_name = config.getoption("keyword") or config.getoption("deselect") or any("::" in word for word in config.args)
    first = config.getoption("group", None) in (None, 1)
    asked = ast.parse(config.getoption("markexpr", "") or "True", mode="eval").body
    return bool(first and not by_name and _selects(asked, markers, None) is not False)


def _selects(asked: ast.expr, markers: Collection[str], known: Collection[str] | None = DEVICES) -> bool | None:
    """Whether an expression selects what has these markers; None where that depends on others than the `known` ones,
    which are all if none are given."""
    match asked:
        case ast.Name(id) if known is None or id in known:
            return id in markers
        case ast.UnaryOp(ast.Not(), operand):
            found = _selects(operand, markers, known)
            return None if found is None else not found
        case ast.BoolOp(op, values):
            every = [_selects(value, markers, known) for value in values]
            decisive = isinstance(op, ast.Or)
            return decisive if decisive in every else None if None in every else not decisive
    return None
