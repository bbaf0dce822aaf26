"""Selection of the cases that a run is asked to verify, as data."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.execution.process import SECONDS
from conformance.implementations.devices import DEVICES
from conformance.implementations.registry import discover
from conformance.layouts import LAYOUTS, NAMES, layouts_of, rank_of
from conformance.meant import hint
from conformance.operators import OPERATORS, takes
from conformance.problems import PROBLEMS, Problem, Variant, at_level, of_family
from conformance.problems.case import Case
from conformance.problems.table import applies, every


class SelectionError(ValueError):
    """A selection that makes no sense; the message names the option, the value and the choices."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Implementations (names and files) and the cases that are asked for."""

    implementations: tuple[str, ...]
    paths: tuple[Path, ...]
    level: str
    problems: Iterable[Problem]
    operators: tuple[str, ...]
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    """Names of layouts; if all plain ones are asked for, so is every other one."""
    distributions: tuple[str, ...]
    seed: int
    method: str
    storages: tuple[str, ...] = ()
    """Texts of `conformance.storage`; if empty, every storage that the tables have."""
    regressions: tuple[tuple[Case, ...], ...] = ()
    """Cases of the lines of regression tables."""
    variants: bool = False
    """Whether every variant of the implementations runs as well."""
    devices: tuple[str, ...] = tuple(DEVICES)
    """Devices whose implementations are asked for."""
    required: tuple[str, ...] = ()
    """Devices whose absence is a failure."""
    declared: tuple[str, ...] = ()
    """Layouts that the implementations of the run declare beside the suite's."""
    programs: int | None = None
    """Most programs of each operator that an implementation compiles; None for the level's own number."""
    seconds: float = SECONDS
    """Seconds that a call may take."""

    def rows(self, family: str) -> Iterator[tuple[Problem, tuple[Variant, ...]]]:
        """Yield the problems of a family with the variants whose inputs are asked for, in every dtype and layout; a
        problem given by hand has any storage."""
        for problem, variants in at_level(of_family(self.problems, family), self.level):
            variants = (*variants, *like_channels_last(problem, variants, self.declared))
            if self.storages and problem.variants is every(family, problem.geometry.rank):
                stored = (replace(v, storage=text) for v in variants for text in self.storages)
                variants = tuple(v for v in stored if applies(v.distribution, v.dtype, v.storage))
            if kept := tuple(filter(self._draws, variants)):
                yield problem, kept

    def concerns(self, operator: str) -> bool:
        """Return whether an operator has cases in the selection."""
        if not {*OPERATORS[operator].dtypes} & {*self.dtypes}:
            return False
        return self.is_of_tables or any(takes(operator, problem.geometry) for problem in self.problems)

    @property
    def is_of_tables(self) -> bool:
        """Return whether the problems are those of the tables, and nobody has given others."""
        return self.problems is PROBLEMS

    def includes(self, variant: Variant) -> bool:
        """Return whether a variant is asked for."""
        return self._draws(variant) and self.wants(variant.dtype, variant.layout)

    def wants(self, dtype: str, layout: str) -> bool:
        """Return whether a dtype and a layout are asked for."""
        return dtype in self.dtypes and (self.every_layout or layout in self.layouts)

    def _draws(self, variant: Variant) -> bool:
        """Return whether inputs of this distribution and storage are asked for."""
        stored = not self.storages or variant.storage in self.storages
        return variant.distribution in self.distributions and stored

    @property
    def every_layout(self) -> bool:
        """Return whether no layout was chosen, so that every one is asked for."""
        return {*LAYOUTS} <= {*self.layouts}

    def with_declared(self, names: Iterable[str]) -> Selection:
        """Return the selection with the layouts that implementations declare, once these are known. Raises
        SelectionError for a layout that is asked for and that nobody knows."""
        declared = tuple(dict.fromkeys(names))
        require_known("--layout", self.layouts, (*NAMES, *declared))
        return replace(self, declared=declared)


def like_channels_last(problem: Problem, variants: Sequence[Variant], layouts: Iterable[str]) -> Iterator[Variant]:
    """Yield variants in other layouts of the problem's rank: each that is run in channels last."""
    rank = problem.geometry.rank
    for name in (name for name in layouts if rank_of(name) == rank):
        yield from (replace(v, layout=name) for v in variants if v.layout == layouts_of(rank)[1])


def split(names: Iterable[str]) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Split the values of `--impl` into names, and the files and packages that paths lead to; `FILE::NAME` gives both.
    Raises SelectionError."""
    implementations: list[str] = []
    paths: dict[Path, Path] = {}
    for name in names:
        file, _, singled_out = name.partition("::")
        if singled_out and not Path(name).exists() and Path(file).is_file():
            implementations.append(singled_out)
            name = file
        path = Path(name)
        if not ("/" in name or os.sep in name or name.endswith(".py") or path.exists()):
            implementations.append(name)
            continue
        if not path.exists():
            raise SelectionError(f"--impl {path}: no such file")
        files = discover(path) if path.is_dir() or path.suffix == ".py" else []
        if not files:
            what = "a folder without implementations" if path.is_dir() else "not a Python file"
            raise SelectionError(f"--impl {path}: {what}; give a .py file, or a folder of them")
        paths |= {file.resolve(): file for file in files}
    return tuple(implementations), tuple(paths.values())


def seed_number(text: str) -> int:
    """Return the value of `--seed`. Raises SelectionError."""
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise SelectionError(f"--seed {text}: must be a whole number from 0 to 10^18 - 1")
    return int(text)


def require_known(option: str, values: Sequence[str], choices: Iterable[str]) -> None:
    """Raise SelectionError for the first value that is none of the choices, with the nearest one."""
    names = sorted(choices)
    for value in values:
        if value not in names:
            raise SelectionError(f"{option} {value}: unknown{hint(value, names) or '.'} Choices: {', '.join(names)}")
