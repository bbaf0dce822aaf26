"""What a level requires of an implementation, from the tables that the suites are made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from conformance.checks import CHECKS, RequiredCheck
from conformance.execution.plan import BEHAVIOUR_PROBLEMS, small
from conformance.execution.selection import BEHAVIOUR
from conformance.operators import OPERATORS, takes
from conformance.problems import PROBLEMS, Problem, Variant, at_level
from conformance.training.tables import NETWORKS


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
    checks = CHECKS.items()
    return Due(
        verdicts=tuple(_verdicts(operator, level) for operator in OPERATORS),
        behaviour=tuple(
            _behaviour(operator, name, level) for name, one in checks if not one.problems for operator in one.operators
        ),
        measured=tuple(_measured(name, one, level) for name, one in checks if one.problems),
        networks=NETWORKS,
    )


def _verdicts(operator: str, level: str) -> Share:
    rows = [(problem, variants) for problem, variants in at_level(PROBLEMS, level) if takes(operator, problem.geometry)]
    slots = frozenset(_slot(operator, problem, variant) for problem, variants in rows for variant in variants)
    return Share(operator, "", slots, len(slots))


def _behaviour(operator: str, check: str, level: str) -> Share:
    problems = small(operator, (problem for problem, _ in at_level(PROBLEMS, level)))
    every = {(v.dtype, v.layout) for problem in PROBLEMS for v in problem.variants}
    slots = (_slot(operator, p, Variant(dtype, layout, BEHAVIOUR), check) for p in problems for dtype, layout in every)
    return Share(operator, check, frozenset(slots), min(len(problems), sum(BEHAVIOUR_PROBLEMS.values())))


def _measured(check: str, required: RequiredCheck, level: str) -> Share:
    variants = [Variant(dtype, "nchw", BEHAVIOUR) for dtype in required.dtypes]
    (operator,) = required.operators
    here = [problem for problem, _ in at_level(required.problems, level)]
    slots = frozenset(_slot(operator, problem, variant, check) for problem in here for variant in variants)
    return Share(operator, check, slots, len(slots))


def _slot(operator: str, problem: Problem, variant: Variant, check: str = "") -> Slot:
    return Slot(operator, problem.name, variant.dtype, variant.layout, variant.distribution, check)
