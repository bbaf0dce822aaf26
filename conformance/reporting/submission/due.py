"""What a level asks of an implementation, read off the suites themselves."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import pytest

from conformance import suites
from conformance.execution import behaviour_cases
from conformance.execution.trial import DISTRIBUTION
from conformance.operators import OPERATORS, takes
from conformance.problems import PROBLEMS, Problem, Variant, at_level

KINDS = ("verifies", "behaves", "measures", "trains")


class Slot(NamedTuple):
    """What has exactly one verdict. `check` is empty where results are compared with the reference."""

    operator: str
    problem: str
    dtype: str
    layout: str
    distribution: str
    check: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """What one test function asks for: all of it, or one absence that counts `cases` of it."""

    operator: str
    check: str
    slots: frozenset[Slot]
    """Everything it may give a verdict on."""
    cases: int
    """How many of them it does; a check of behaviour chooses by what the implementation takes."""


@dataclass(frozen=True, slots=True)
class Due:
    """Everything that a level asks for."""

    verdicts: tuple[Share, ...]
    behaviour: tuple[Share, ...]
    measured: tuple[Share, ...]
    networks: tuple[str, ...]


@cache
def due(level: str) -> Due:
    """What every implementation owes at a level."""
    found = list(_tests())
    return Due(
        verdicts=tuple(_verdicts(mark, level) for mark, _ in found if mark.name == "verifies"),
        behaviour=tuple(
            _behaviour(operator, check, level)
            for mark, check in found
            if mark.name == "behaves"
            for operator in mark.args or OPERATORS
        ),
        measured=tuple(_measured(mark, check, level) for mark, check in found if mark.name == "measures"),
        networks=tuple(mark.args[0] for mark, _ in found if mark.name == "trains"),
    )


def _tests() -> Iterator[tuple[pytest.Mark, str]]:
    """The mark of each test function of the suites, and the name of the check that it makes, if it makes one."""
    for module_info in pkgutil.iter_modules(suites.__path__):
        module = import_module(f"{suites.__name__}.{module_info.name}")
        for name, function in vars(module).items():
            if not name.startswith("test_"):
                continue
            for mark in (*_marks(function), *_marks(module)):  # the closest first, as pytest has it
                if mark.name in KINDS:
                    yield mark, "" if mark.name in ("verifies", "trains") else _check(function)
                    break


def _marks(holder: Any) -> Iterator[pytest.Mark]:
    found = getattr(holder, "pytestmark", [])
    for mark in found if isinstance(found, list) else [found]:
        yield mark if isinstance(mark, pytest.Mark) else mark.mark


def _check(test: Callable[..., None]) -> str:
    """The name of the check that a test function hands to its fixture."""
    seen: list[str] = []
    test(kept=lambda case, check: seen.append(check.__name__), case=None)
    return seen[0]


def _verdicts(mark: pytest.Mark, level: str) -> Share:
    (operator,), when = mark.args, mark.kwargs.get("when")
    rows = [
        (problem, variants)
        for problem, variants in at_level(PROBLEMS, level)
        if takes(operator, problem.geometry) and (when is None or when(problem.geometry))
    ]
    slots = frozenset(_slot(operator, problem, variant) for problem, variants in rows for variant in variants)
    return Share(operator, "", slots, len(slots))


def _behaviour(operator: str, check: str, level: str) -> Share:
    small = behaviour_cases.small(operator, (problem for problem, _ in at_level(PROBLEMS, level)))
    every = {(v.dtype, v.layout) for problem in PROBLEMS for v in problem.variants}
    slots = (_slot(operator, p, Variant(dtype, layout, DISTRIBUTION), check) for p in small for dtype, layout in every)
    return Share(operator, check, frozenset(slots), min(len(small), behaviour_cases.MOST))


def _measured(mark: pytest.Mark, check: str, level: str) -> Share:
    problems: Iterable[Problem] = mark.kwargs["problems"]
    variants = [Variant(dtype, "nchw", DISTRIBUTION) for dtype in mark.kwargs["dtypes"]]
    here = [problem for problem, _ in at_level(problems, level)]
    slots = frozenset(_slot(mark.args[0], problem, variant, check) for problem in here for variant in variants)
    return Share(mark.args[0], check, slots, len(slots))


def _slot(operator: str, problem: Problem, variant: Variant, check: str = "") -> Slot:
    return Slot(operator, problem.name, variant.dtype, variant.layout, variant.distribution, check)
