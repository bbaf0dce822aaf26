"""Cases that are required of an implementation: a pure function of what it declares and of what is demanded.

In words: the cases of an implementation are the operators that it declares, on the problems of the level (a prefix of
the ranking), in its dtypes and layouts. Cases that it does not have are counted, with the reason; if they are claimed,
that is a failure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple

from conformance.execution.declared import Declared
from conformance.execution.selection import Selection, like_channels_last
from conformance.execution.share import Ranked
from conformance.execution.trial import Absence, Claim, Trial, with_claims
from conformance.failure import Undeclared
from conformance.implementations.devices import Unavailable
from conformance.implementations.implementation import (
    NOT_IMPLEMENTED,
    Implementation,
    ImplementationError,
    NotDeclared,
    Unsupported,
)
from conformance.implementations.modules import UNKNOWN_SHAPE
from conformance.layouts import GROUPED, is_optional, rank_of
from conformance.operators import OPERATORS, GeometryError, parse
from conformance.problems import Problem, Variant
from conformance.problems.case import Case
from conformance.problems.drawn import CANDIDATES, THIN, candidates, combinations_near, neighbours
from conformance.problems.features import feature_pairs, parameter_pairs
from conformance.problems.parameters import cost
from conformance.problems.ranking import SMOKE_CASES, Row
from conformance.problems.table import unlisted

Predicate = Callable[[Any], bool]
Keys = Callable[[], Sequence[Case]]
"""Function that returns the keys that some cases have in claims; called if there are claims."""

DRAWN_PROBLEMS = 3
"""Drawn problems of each operator that an implementation is verified on; of convolutions, dense and grouped each."""

MAX_PAIRING = 8
"""Most problems of each operator of a torch module that are chosen by their pairs of features; for a class that takes
little, a quarter of what it takes."""


class Lacking(NamedTuple):
    """A number of cases that an implementation does not have here, and why."""

    reason: str
    cases: int
    keys: Keys = list
    status: str = "unsupported"
    undeclared: Undeclared | None = None


class Demand(ABC):
    """Cases of one operator that a test asks of every implementation."""

    def __init__(self, selection: Selection, operator: str) -> None:
        self.selection, self.operator = selection, operator

    @property
    def is_asked(self) -> bool:
        """Return whether the selection of the run has the operator."""
        return self.operator in self.selection.operators

    def is_foreign(self, implementation: Implementation) -> bool:
        """Return whether the operator is not of a torch module's family, so that a thousand cases of others are not
        said to be absent; False if nothing of the module's own family is asked for."""
        family = (
            OPERATORS[implementation.adapted.operator].family
            if implementation.adapted is not None and implementation.adapted.operator
            else ""
        )
        families = {name: operator.family for name, operator in OPERATORS.items()}
        of_selection = {families[name] for name in self.selection.operators}
        return family in of_selection and families.get(self.operator, family) != family

    def require(self, implementation: Implementation) -> None:
        """Raise Unsupported if the demand does not apply to an implementation."""
        if implementation.adapted is not None and implementation.adapted.unmapped:
            raise Unsupported(implementation.adapted.unmapped)
        if not any(kernel.operator == self.operator for kernel in implementation.kernels):
            undeclared = Undeclared(kind="operator", what=self.operator)
            raise NotDeclared(NOT_IMPLEMENTED.format(self.operator), undeclared)

    @abstractmethod
    def everything(self, device: str) -> tuple[int, Keys]:
        """Return how many cases an unusable implementation on a device lacks, and a function returning their keys."""

    @abstractmethod
    def cases(self, implementation: Implementation, claimed: frozenset[Case]) -> Iterator[Any]:
        """Yield what is to be run of an implementation that can be used, cases or trainings, and what is `Lacking`."""

    def trial(self, implementation: Implementation, problem: Problem, variant: Variant, place: int = 0) -> Trial:
        """Return a case with the selection's seed and method."""
        seed, method = self.selection.seed, self.selection.method
        return Trial(implementation, OPERATORS[self.operator], problem, variant, seed, method, place=place)


def required(implementation: Implementation, demand: Demand, claims: Sequence[Claim] = ()) -> Iterator[Any]:
    """Yield what a demand requires of an implementation: cases (or trainings) and absences, always the same ones.

    The implementation's `claims` must still hold: what is claimed and absent fails.
    """
    try:
        implementation.require()
        if demand.is_foreign(implementation) and not claims:
            return
        demand.require(implementation)
    except (Unavailable, Unsupported) as absence:
        yield from absent(implementation.name, implementation.device, demand, absence, claims)
        return
    for case in demand.cases(implementation, frozenset[Case]().union(*(claim.cases for claim in claims))):
        if isinstance(case, Lacking):
            subject = implementation.name, demand.operator, implementation.device
            lacking = Absence(*subject, case.status, case.reason, case.cases, undeclared=case.undeclared)
            yield from with_claims(lacking, claims, case.keys() if claims else ())
        else:
            yield case


def absent(
    name: str, device: str, demand: Demand, reason: Unavailable | Unsupported, claims: Sequence[Claim]
) -> Iterator[Absence]:
    """Yield all that a demand requires of an implementation that cannot be used for it, or of a file that cannot be
    imported here, of which nobody knows the device."""
    status = "unavailable" if isinstance(reason, Unavailable) else "unsupported"
    undeclared = reason.undeclared if isinstance(reason, Unsupported) else None
    absence = Absence(name, demand.operator, device, status, str(reason), 1, undeclared=undeclared)
    if undeclared is not None and undeclared.kind == "operator" and not claims:
        if demand.selection.concerns(demand.operator):  # nobody needs to know how many cases it has: tables stay unread
            yield absence
        return
    count, selected = demand.everything(device)
    yield from with_claims(replace(absence, cases=count), claims, selected() if claims else ())


class VerificationDemand(Demand):
    """Demand for right results on the problems for which `when(geometry)` holds."""

    def __init__(self, ranked: Ranked, operator: str, when: Predicate | None = None) -> None:
        super().__init__(ranked.selection, operator)
        self.ranked, self._when = ranked, when or (lambda geometry: True)

    @cached_property
    def _level(self) -> list[Row]:
        """Rows of the level in the dtypes and layouts that are asked for."""
        rows, listed, *_ = self.ranked.rows(self.operator)
        here = ((p, variants) for p, variants in rows[:listed] if self._when(p.geometry))
        return [(p, included) for p, variants in here if (included := tuple(filter(self.selection.includes, variants)))]

    @cached_property
    def _alike(self) -> list[list[Row]]:
        """Rows of the level with one case each, those of one layout and storage together."""
        alike = defaultdict[tuple[str, str], list[Row]](list)
        for problem, variants in self._level:
            for variant in variants:
                alike[variant.layout, variant.storage].append((problem, (variant,)))
        return [*alike.values()]

    @cached_property
    def _usual(self) -> int:
        return sum(self._counts(v.layout) for _, variants in self._level for v in variants)

    def everything(self, device: str) -> tuple[int, Keys]:
        """Return the number of cases of the level, and a function that returns their keys."""
        return self._usual, partial(keys, self.operator, self._level)

    def _counts(self, layout: str) -> bool:
        """Return whether an implementation that does not declare a layout counts as lacking it. A layout that is run
        only where it is declared, one of many, would fill everybody's totals; if it is asked for by name, it counts."""
        return not (is_optional(layout) and self.selection.every_layout)

    def cases(self, implementation: Implementation, claimed: frozenset[Case]) -> Iterator[Trial | Lacking]:
        """Yield an implementation's cases: its share of the ranking, regression tables, and problems in no table."""
        declared = self.ranked.declared(implementation, self.operator)
        missing = defaultdict[tuple[str, Undeclared | None], list[Row]](list)
        for rows in self._alike:  # what no case of it has is said once, not for each
            _, (variant,) = rows[0]
            absence = declared.lacks(variant)
            if absence is not None:
                counts = self._counts(variant.layout) or variant.layout in declared.layouts
                said = [(p, (v,)) for p, (v,) in rows if counts or Case.of(self.operator, p.geometry, v) in claimed]
                missing[str(absence), absence.undeclared] += said
        adapted, ranked = implementation.adapted, self.ranked.rows(self.operator).rows
        unknown = adapted.unknown if adapted is not None and adapted.operator == self.operator else ""
        unverified = adapted.unverified if adapted is not None and adapted.operator == self.operator else ""
        # said by one of the operator's demands alone: the one with the first problem
        if ranked and self.selection.is_of_tables and self._when(ranked[0][0].geometry):
            if unknown:
                yield Lacking(UNKNOWN_SHAPE + unknown, 1, undeclared=Undeclared(kind="shape", what=unknown))
            if unverified:
                yield Lacking(unverified, 1)
        for (reason, undeclared), lacking in missing.items():
            yield Lacking(reason, len(lacking), partial(keys, self.operator, lacking), undeclared=undeclared)

        shares = zip(ranked, self.ranked.share(declared), strict=True)
        of_ranking = (
            self.trial(implementation, problem, variant, place)
            for place, ((problem, _), share) in enumerate(shares)
            if share and self._when(problem.geometry)
            for variant in share
            if not declared.lacks(variant)
        )
        near = [*self._own(implementation)]
        cases = {trial.case for trial in near}
        chosen = [*near, *(trial for trial in of_ranking if trial.case not in cases)]
        if adapted is not None and self.selection.is_of_tables:
            chosen += self._pairs(declared, chosen)
        if claimed and self.selection.is_of_tables:
            reported = {Case.of(self.operator, p.geometry, v) for lacking in missing.values() for p, (v,) in lacking}
            reported |= {replace(trial.case, seed=0) for trial in chosen}
            chosen += self._lost(declared, claimed - reported)
        yield from with_kernel(declared, chain(chosen, self._regressions(implementation)), claimed)
        if self.selection.level != "smoke" and self.selection.is_of_tables:
            yield from self._drawn(declared)

    def _lost(self, declared: Declared, claimed: Iterable[Case]) -> Iterator[Trial]:
        """Yield claimed cases that the implementation no longer takes and that are not of its share: a share of the
        rest of the ranking took their place, and at smoke nothing said that support was lost."""
        for case in sorted(claimed, key=str):
            variant = Variant(case.dtype, case.layout, case.distribution, case.storage)
            if case.operator != self.operator or case.check or not self.selection.includes(variant):
                continue
            try:
                geometry = parse(case.problem)
                if self._when(geometry):
                    declared.kernel(geometry, variant.dtype, variant.layout)
            except GeometryError:  # of another version of the suite
                continue
            except ImplementationError:  # a predicate's error is the verdict of a case that is run
                continue
            except Unsupported:
                problem = unlisted(geometry, "table", "standard", (variant,))
                yield self.trial(declared.implementation, problem, variant)

    def _own(self, implementation: Implementation) -> Iterator[Trial]:
        """Yield, before all others, the problem that a torch module is made for and those near it that its `__init__`
        can express: the tables have few that a class with few arguments takes."""
        adapted = implementation.adapted
        if (
            adapted is None
            or adapted.operator != self.operator
            or not adapted.problem
            or not self.selection.is_of_tables
        ):
            return
        try:
            base = parse(adapted.problem)
        except GeometryError:  # not from a module that was adapted
            return
        layout = next(kernel.layouts[0] for kernel in implementation.kernels if kernel.operator == self.operator)
        variant = Variant(adapted.dtype, layout, "fixed")
        for geometry in dict.fromkeys((base, *neighbours(base))):
            is_included = self._when(geometry) and self.selection.includes(variant)
            if is_included and (
                geometry is base or implementation.supports(self.operator, geometry, variant.dtype, variant.layout)
            ):
                problem = unlisted(geometry, "own" if geometry is base else "near", "smoke", (variant,))
                if geometry is base and adapted.whole:  # the module may be made for a larger batch
                    problem = replace(problem, name=adapted.whole.replace(" ", "_"))
                yield self.trial(implementation, problem, variant, place=-1)

    def _pairs(self, declared: Declared, chosen: Sequence[Trial]) -> Iterator[Trial]:
        """Yield small problems that a torch module can express, each with most pairs of features that no case before it
        has, those of parameters first. They are in the tables behind the `chosen` cases, or are drawn near the module's
        own shape or, if that is not known, near the first problem that it takes.

        A module with few arguments takes little of the tables, and its neighbours differ in one parameter alone: a
        module that lost its bias where it was dilated passed every level.
        """
        adapted = declared.implementation.adapted
        trials = [trial for trial in chosen if declared.takes(trial.problem, trial.variant)]
        # cases that every level has, so that a higher one chooses the same
        taken = [trial.problem.geometry for trial in trials[:SMOKE_CASES]]
        if adapted is None or not taken:
            return
        base = parse(adapted.problem) if adapted.problem else taken[0]
        variant = Variant(*declared.pairs[0], "fixed")
        rows = self.ranked.rows(self.operator)
        listed = (p for p, _ in rows.rows[: rows.usual] if p.geometry.rank == base.rank and cost(p.geometry) <= THIN)
        near = (unlisted(geometry, "near", "smoke", (variant,)) for geometry in combinations_near(base))
        descriptors = {geometry.descriptor for geometry in taken}
        offered = {p.geometry.descriptor: p for p in chain(listed, near) if p.geometry.descriptor not in descriptors}
        declared.learn([problem.geometry for problem in offered.values()])
        remaining = [
            problem
            for problem in offered.values()
            if self._when(problem.geometry)
            and self.selection.includes(variant)
            and variant.suits(self.operator, problem.geometry)
            and declared.takes(problem, variant)
        ]
        run = {(trial.problem.name, trial.variant) for trial in trials}
        of_parameters = {pair for geometry in taken for pair in parameter_pairs(geometry)}
        of_features = {pair for geometry in taken for pair in feature_pairs(geometry)}

        def new(problem: Problem) -> tuple[int, int]:
            pairs = parameter_pairs(problem.geometry), feature_pairs(problem.geometry)
            return len(pairs[0] - of_parameters), len(pairs[1] - of_features)

        for _ in range(min(MAX_PAIRING, -(-len(taken) // 4)) if remaining else 0):
            problem = max(remaining, key=new)
            if new(problem) == (0, 0):
                return
            of_parameters |= parameter_pairs(problem.geometry)
            of_features |= feature_pairs(problem.geometry)
            if (problem.name, variant) not in run:
                yield self.trial(declared.implementation, problem, variant, place=-1)

    def _regressions(self, implementation: Implementation) -> Iterator[Trial]:
        """Yield the lines of regression tables that end in the operator, each after the calls that stand before it."""
        for cases in self.selection.regressions:
            if cases[-1].operator == self.operator and self._when(cases[-1].geometry):
                *before, last = (Trial.of(implementation, case, "drawn", self.selection.method) for case in cases)
                yield replace(last, after=tuple(before))

    def _drawn(self, declared: Declared) -> Iterator[Trial | Lacking]:
        """Yield problems that no table has: in each number of dimensions the first drawn ones that the kernels take.

        A kernel that knows the tables, and is right on nothing else, is detected here.
        """
        selection, offered, taken, behind = self.selection, 0, 0, len(self.ranked.rows(self.operator).rows)
        for rank in CANDIDATES:
            has_layout = any(rank_of(layout) == rank for layout in declared.layouts)
            remaining = DRAWN_PROBLEMS if has_layout else 0
            for problem, variants in candidates(self.operator, selection.seed, rank) if remaining else ():
                if not self._when(problem.geometry):
                    continue
                channels_last = like_channels_last(problem, variants, (*GROUPED, *selection.declared))
                included = [variant for variant in (*variants, *channels_last) if selection.includes(variant)]
                offered += bool(included)
                variant = next((v for v in included if declared.takes(problem, v)), None)
                if variant is not None:
                    yield self.trial(declared.implementation, problem, variant, behind)
                    taken, remaining = taken + 1, remaining - 1
                if not remaining:
                    break
        if offered and not taken:
            yield Lacking(f"takes none of the {offered} problems drawn from seed {selection.seed}", 1)


def with_kernel(
    declared: Declared, cases: Iterable[Trial], claimed: frozenset[Case], check: str = ""
) -> Iterator[Trial | Lacking]:
    """Yield the cases that there is a kernel for, and how many there is none for. Of the latter, a claimed case is run,
    and fails. A case whose predicate raises is run too; the error is its verdict."""
    refused = Counter[tuple[str, Undeclared | None]]()
    for trial in cases:
        v = trial.variant
        try:
            declared.kernel(trial.problem.geometry, v.dtype, v.layout)
        except Unsupported as refusal:
            if not claimed or Case.of(declared.operator, trial.problem.geometry, v, check=check) not in claimed:
                refused[str(refusal), refusal.undeclared] += 1
                continue
        except ImplementationError:
            pass
        yield trial
    for (reason, undeclared), count in refused.items():
        yield Lacking(reason, count, undeclared=undeclared)


def keys(operator: str, rows: Iterable[Row], check: str = "") -> list[Case]:
    """Return the keys of the rows' variants in claims."""
    return [
        Case.of(operator, problem.geometry, variant, check=check) for problem, variants in rows for variant in variants
    ]
