"""The suite's command line, read and checked before anything runs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.dtypes import STORAGE
from conformance.execution.trial import DISTRIBUTION as CONTRACT
from conformance.implementations.devices import DEVICES, missing
from conformance.inputs import DISTRIBUTIONS
from conformance.inputs.golden import SEED
from conformance.operators import OPERATORS, GeometryError
from conformance.problems import LAYOUTS, LEVELS, PROBLEMS, Problem, Variant, at_level, typed
from conformance.training.tables import DISTRIBUTION as TRAINING

METHODS = ("auto", "exact", "probes")


def add(parser: pytest.Parser) -> None:
    """Declare the options. Values are checked in `read`, so that every error has the same shape."""
    group = parser.getgroup("conformance", "kernel conformance")
    group.addoption("--impl", action="append", metavar="NAME|PATH", help="only this implementation; or a file's")
    group.addoption("--level", default="standard", metavar="|".join(LEVELS), help="how much to run")
    group.addoption("--problem", action="append", metavar="TEXT", help="a descriptor, e.g. 'n1 c8 h9 w9 k4 r3 s3 p1'")
    group.addoption("--operator", action="append", metavar="NAME", help="only this operator")
    group.addoption("--dtype", action="append", metavar="NAME", help="only this dtype")
    group.addoption("--layout", action="append", metavar="NAME", help="only this layout")
    group.addoption("--distribution", action="append", metavar="NAME", help="only this way of drawing inputs")
    group.addoption("--seed", default=str(SEED), metavar="N", help="draw fresh data (default: the goldens' seed)")
    group.addoption("--method", default="auto", metavar="|".join(METHODS), help="exact reference or probes, or by cost")
    group.addoption("--require", action="append", metavar="DEVICE", help="fail at once if the device is not here")
    group.addoption("--records", metavar="FILE", help="write one JSON line per verdict")
    group.addoption("--report", metavar="DIR", help="write a page there, a summary in Markdown, JUnit XML and CSV")


@dataclass(frozen=True, slots=True)
class Selection:
    """What a run is asked to do."""

    implementations: tuple[str, ...]
    paths: tuple[Path, ...]
    level: str
    problems: tuple[Problem, ...]
    operators: tuple[str, ...]
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    distributions: tuple[str, ...]
    seed: int
    method: str
    required: tuple[str, ...]

    def rows(self) -> Iterable[tuple[Problem, tuple[Variant, ...]]]:
        """Problems with the variants that are asked for."""
        for problem, variants in at_level(self.problems, self.level):
            kept = tuple(
                v
                for v in variants
                if v.dtype in self.dtypes and v.layout in self.layouts and v.distribution in self.distributions
            )
            if kept:
                yield problem, kept


def read(config: pytest.Config) -> Selection:
    """The selection of a command line. Raises pytest.UsageError naming the option, the value and the choices."""
    names = tuple(config.getoption("--impl") or ())
    paths = {path.resolve(): path for path in map(Path, filter(_is_path, names))}.values()
    for path in paths:
        if not path.exists():
            raise pytest.UsageError(f"--impl {path}: no such file")
    level = config.getoption("--level")
    _choice("--level", [level], LEVELS)
    _choice("--method", [config.getoption("--method")], METHODS)
    _check_markers(config)
    texts = config.getoption("--problem")
    return Selection(
        implementations=tuple(name for name in names if not _is_path(name)),
        paths=tuple(paths),
        level="full" if texts else level,
        problems=tuple(map(_typed, texts)) if texts else PROBLEMS,
        operators=_subset(config, "--operator", OPERATORS),
        dtypes=_subset(config, "--dtype", STORAGE),
        layouts=_subset(config, "--layout", LAYOUTS),
        distributions=_subset(config, "--distribution", (*DISTRIBUTIONS, CONTRACT, TRAINING)),
        seed=_seed(config.getoption("--seed")),
        method=config.getoption("--method"),
        required=_required(config.getoption("--require") or ()),
    )


def folder(config: pytest.Config, selection: Selection) -> Path:
    """Where implementations live. A missing folder is an error unless files are given instead."""
    path: Path = config.rootpath / config.getini("impls")
    if not path.is_dir() and not selection.paths:
        raise pytest.UsageError(f"impls = {path}: no such folder; set it in the ini file, or give --impl=FILE")
    return path


def devices_asked(config: pytest.Config) -> list[str]:
    """Devices that `-m` or `--require` name."""
    words = re.findall(r"\w+", config.getoption("markexpr", "") or "")
    asked = [word for word in words if word in DEVICES] + list(config.getoption("--require") or ())
    return list(dict.fromkeys(asked))


def unknown(option: str, value: str, choices: Iterable[str]) -> pytest.UsageError:
    """The error of a value that is none of the choices, with the nearest one."""
    names = sorted(choices)
    near = difflib.get_close_matches(value, names, 1)
    hint = f"; did you mean {near[0]}?" if near else "."
    return pytest.UsageError(f"{option} {value}: unknown{hint} Choices: {', '.join(names)}")


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith(".py")


def _choice(option: str, values: Iterable[str], choices: Iterable[str]) -> None:
    for value in values:
        if value not in choices:
            raise unknown(option, value, choices)


def _subset(config: pytest.Config, option: str, choices: Iterable[str]) -> tuple[str, ...]:
    asked = config.getoption(option)
    _choice(option, asked or (), choices)
    return tuple(asked or choices)


def _typed(text: str) -> Problem:
    try:
        return typed(text)
    except GeometryError as problem:
        raise pytest.UsageError(f"--problem {text!r}: {problem}") from None


def _seed(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise pytest.UsageError(f"--seed {text}: must be a whole number from 0 to 10^18 - 1")
    return int(text)


def _required(devices: Iterable[str]) -> tuple[str, ...]:
    _choice("--require", devices, DEVICES)
    for device in devices:
        if missing(device):
            raise pytest.UsageError(f"--require {device}: {missing(device)}")
    return tuple(devices)


def _check_markers(config: pytest.Config) -> None:
    """pytest takes an unknown name in -m for one that no test has, and a typo for an empty run."""
    known = [line.split(":")[0].split("(")[0].strip() for line in config.getini("markers")]
    for word in re.findall(r"\w+", config.getoption("markexpr", "") or ""):
        if word not in known and word not in ("and", "or", "not", "True", "False"):
            raise unknown("-m", word, DEVICES)
