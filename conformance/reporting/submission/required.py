"""What a level asks of an implementation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import chain

from conformance.checks.required import CHECKS, VERIFIED
from conformance.execution.behaviour import BEHAVIOUR_PROBLEMS, small
from conformance.execution.claims import Key
from conformance.execution.plan import DRAWN_PROBLEMS
from conformance.execution.selection import BEHAVIOUR
from conformance.inputs.manifest import SEED
from conformance.layouts import NAMES, is_optional, layouts_of
from conformance.operators import takes
from conformance.operators.spatial import RANKS
from conformance.problems import PROBLEMS, Problem, Variant, at_level
from conformance.problems.drawn import candidates
from conformance.training.tables import networks

CHANNELS_LAST = tuple(layouts_of(rank)[1] for rank in RANKS)


@dataclass(frozen=True, slots=True)
class Share:
    """What one test function requires: all of it, or one absence that counts `cases` of it.

    `keys` name problems as the tables do: each has exactly one verdict.
    """

    operator: str
    check: str
    keys: frozenset[Key]
    """Everything it may give a verdict on."""
    cases: int
    """How many of them it does; a behaviour check chooses by what the implementation takes."""
    few: bool = True
    """Of a behaviour check: whether it is made on the cases that the others are made on."""
    optional: frozenset[Key] = frozenset()
    """What is required too of who declares the layout."""

    def in_layouts(self, given: Iterable[Key]) -> frozenset[Key]:
        """Of verdicts in layouts that only some declare, all that the same ones require. One that an implementation
        names itself is run in what channels last is; which letters it has is not known here."""
        found: set[Key] = set()
        for name in {key.layout for key in given if is_optional(key.layout)}:
            mine = {key for key in given if key.layout == name}
            likes = () if name in NAMES and self.optional else CHANNELS_LAST
            every = [{key._replace(layout=name) for key in self.keys if key.layout == last} for last in likes]
            found |= set[Key]().union(*(keys for keys in every if keys & mine))
            found |= {key for key in self.optional if key.layout == name}
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class Required:
    """Everything that a level requires."""

    verdicts: tuple[Share, ...]
    behaviour: tuple[Share, ...]
    measured: tuple[Share, ...]
    drawn: tuple[Share, ...]
    """Drawn problems: an implementation has verdicts on the first ones that it takes."""
    networks: tuple[str, ...]
    quota: dict[str, int]
    """Dtype -> problems that behaviour is checked on."""


@cache
def required_cases(level: str) -> Required:
    """The required cases of every implementation at a level."""
    verdicts = []
    for operator, when in VERIFIED:
        fitting = (row for row in at_level(PROBLEMS, level) if takes(operator, row[0].geometry))
        rows = [(problem, variants) for problem, variants in fitting if when is None or when(problem.geometry)]
        pairs = ((problem, v) for problem, variants in rows for v in variants if v.suits(operator, problem.geometry))
        keys = _keys(operator, pairs)
        usual = frozenset(key for key in keys if not is_optional(key.layout))
        verdicts.append(Share(operator, "", usual, len(usual), optional=keys - usual))
    behaviour, measured, quota = [], [], BEHAVIOUR_PROBLEMS[level]
    every = {Variant(v.dtype, v.layout, BEHAVIOUR) for problem in PROBLEMS for v in problem.variants}
    for check, required in CHECKS.items():
        for operator in required.operators:
            if required.problems:
                variants = [Variant(dtype, "nchw", BEHAVIOUR) for dtype in required.dtypes]
                taken = (problem for problem in required.problems if takes(operator, problem.geometry))
                pairs = ((problem, v) for problem, _ in at_level(taken, level) for v in variants)
                if keys := _keys(operator, pairs, check):
                    measured.append(Share(operator, check, keys, len(keys)))
            else:
                problems = small(operator, (problem for problem, _ in at_level(PROBLEMS, level)))
                keys = _keys(operator, ((problem, v) for problem in problems for v in every), check)
                few = required.paths is None
                count = min(len(problems), sum(quota.values()) if few else 1)
                behaviour.append(Share(operator, check, keys, count, few))
    drawn = []
    for operator, when in VERIFIED if level != "smoke" else ():
        offered = chain.from_iterable(candidates(operator, SEED, rank) for rank in RANKS)
        rows = [(p, variants) for p, variants in offered if when is None or when(p.geometry)]
        keys = _keys(operator, ((problem, variant) for problem, variants in rows for variant in variants))
        drawn.append(Share(operator, "", keys, DRAWN_PROBLEMS))
    return Required(tuple(verdicts), tuple(behaviour), tuple(measured), tuple(drawn), networks(level), quota)


def _keys(operator: str, pairs: Iterable[tuple[Problem, Variant]], check: str = "") -> frozenset[Key]:
    return frozenset(
        Key(operator, problem.name, v.dtype, v.layout, v.distribution, check, v.storage) for problem, v in pairs
    )
