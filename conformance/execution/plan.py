"""From a selection to cases, in the order that shares references: problem, dtype, distribution, then
implementations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from conformance.execution import behaviour_cases
from conformance.execution.case import Absence, Case
from conformance.execution.trial import DISTRIBUTION
from conformance.implementations import registry
from conformance.implementations.devices import missing
from conformance.implementations.implementation import Implementation
from conformance.operators import OPERATORS, takes
from conformance.plugin.options import Selection, unknown
from conformance.problems import Problem, Variant, at_level

Predicate = Callable[[Any], bool]


class Plan:
    """The implementations of a run and the cases that they are due."""

    def __init__(self, selection: Selection, folder: Path) -> None:
        self.selection = selection
        self.registry = registry.load(selection.paths)
        self._origins = dict(self.registry.paths)
        if not selection.paths or set(selection.implementations) - self._origins.keys():
            given = {path.resolve() for path in selection.paths}
            others = (path for path in registry.discover(folder) if path.resolve() not in given)
            registry.load(others, self.registry)
        if selection.implementations:
            self._restrict()

    def _restrict(self) -> None:
        """Keep what `--impl` names, and of given files all that they define unless a name singles one out; files that
        are nobody's business then are not reported."""
        known, wanted = self.registry, set(self.selection.implementations)
        for name in wanted - known.implementations.keys() - known.unavailable.keys():
            trouble = [f"{path} is broken: {why}" for path, why in known.broken.items()]
            trouble += [f"{stem} is unavailable: {why}" for stem, why in known.unavailable.items()]
            error = unknown("--impl", name, known.implementations.keys() | known.unavailable.keys())
            raise pytest.UsageError("\n".join([str(error), *trouble]))
        singled_out = {self._origins.get(name) for name in wanted}
        wanted |= {name for name, path in self._origins.items() if path not in singled_out}
        known.implementations = {n: i for n, i in known.implementations.items() if n in wanted}
        wanted |= {path.stem for path in self.selection.paths}
        known.unavailable = {stem: why for stem, why in known.unavailable.items() if stem in wanted}
        known.broken = {path: why for path, why in known.broken.items() if Path(path) in self.selection.paths}

    def cases(self, operator: str, when: Predicate | None) -> Iterator[Case | Absence]:
        """Everything due for an operator on the problems for which `when(geometry)` holds."""
        if operator not in self.selection.operators:
            return
        due = (row for row in self.selection.rows() if takes(operator, row[0].geometry))
        rows = [(problem, variants) for problem, variants in due if when is None or when(problem.geometry)]
        yield from self._rows(operator, rows)

    def timed(self, operator: str, problems: Iterable[Problem]) -> Iterator[Case | Absence]:
        """The cases of a benchmark table: dense fp32 data in the canonical layout.

        A bridge says why a call through it is not its kernel's time: `untimed`.
        """
        variants: tuple[Variant, ...] = (Variant("fp32", "nchw", "fixed"),)
        rows = [(problem, variants) for problem in problems]
        if operator not in self.selection.operators or not rows:
            return
        present: list[Implementation] = []
        yield from self._absences(operator, len(rows), present)
        untimed = {one.name: reason for one in present if (reason := getattr(one.arrays, "untimed", ""))}
        for one in (one for one in present if one.name in untimed):
            yield Absence(one.name, operator, one.device, "unsupported", f"no time: {untimed[one.name]}", len(rows))
        yield from self._due(operator, rows, [one for one in present if one.name not in untimed])

    def measured(self, operator: str, problems: Iterable[Problem], dtypes: Sequence[str]) -> Iterator[Case | Absence]:
        """The cases of a check of memory: its own problems at the level asked for, in the canonical layout."""
        asked = self.selection
        variants = tuple(Variant(dtype, "nchw", DISTRIBUTION) for dtype in dtypes if dtype in asked.dtypes)
        if operator in asked.operators and DISTRIBUTION in asked.distributions and "nchw" in asked.layouts:
            rows = [(problem, variants) for problem, _ in at_level(problems, asked.level)]
            yield from self._rows(operator, rows)

    def behaviour(self, operators: Sequence[str]) -> Iterator[Case | Absence]:
        """What a check of behaviour is due on: a few small problems of every implementation and operator."""
        asked = self.selection
        for operator in (name for name in operators if name in asked.operators and DISTRIBUTION in asked.distributions):
            problems = behaviour_cases.small(
                operator, (problem for problem, _ in at_level(asked.problems, asked.level))
            )
            if not problems:
                continue
            present: list[Implementation] = []
            yield from self._absences(operator, min(len(problems), behaviour_cases.MOST), present)
            for implementation in present:
                due = list(behaviour_cases.chosen(implementation, operator, problems, asked.dtypes, asked.layouts))
                for problem, variant in due:
                    yield self._case(implementation, operator, problem, variant)
                if not due:
                    yield _refusal(implementation, operator)

    def simulators(self, device: str) -> dict[str, list[str]]:
        """Marker -> implementations that could run here and execute kernels of `device` on another one.

        A bridge says of which devices: `stands_for`.
        """
        found: dict[str, list[str]] = {}
        for name, implementation in self.registry.implementations.items():
            meant = getattr(implementation.arrays, "stands_for", ())
            if device in meant and not (missing(implementation.device) or implementation.arrays.unavailable()):
                found.setdefault(implementation.device, []).append(name)
        return found

    def _rows(self, operator: str, rows: list[tuple[Problem, tuple[Variant, ...]]]) -> Iterator[Case | Absence]:
        count = sum(len(variants) for _, variants in rows)
        if not count:
            return
        present: list[Implementation] = []
        yield from self._absences(operator, count, present)
        yield from self._due(operator, rows, present)

    def _absences(self, operator: str, count: int, present: list[Implementation]) -> Iterator[Absence]:
        """Who cannot run `count` cases of an operator; adds the others to `present`."""
        for implementation in self.registry.implementations.values():
            absence = _absence(implementation, operator, count)
            if absence is None:
                present.append(implementation)
            else:
                yield absence
        for stem, reason in self.registry.unavailable.items():
            yield Absence(stem, operator, "", "unavailable", reason, count)

    def _due(
        self, operator: str, rows: list[tuple[Problem, tuple[Variant, ...]]], present: list[Implementation]
    ) -> Iterator[Case]:
        for problem, variants in rows:
            shared = sorted(variants, key=lambda v: (v.dtype, v.distribution))
            for _, same_tensors in groupby(shared, key=lambda v: (v.dtype, v.distribution)):
                layouts = list(same_tensors)
                for implementation in present:
                    for variant in layouts:
                        yield self._case(implementation, operator, problem, variant)

    def _case(self, implementation: Implementation, operator: str, problem: Problem, variant: Variant) -> Case:
        return Case(
            implementation=implementation,
            operator=OPERATORS[operator],
            problem=problem,
            variant=variant,
            seed=self.selection.seed,
            method=self.selection.method,
            origin=self._origins.get(implementation.name, ""),
        )


def _refusal(implementation: Implementation, operator: str) -> Absence:
    reason = "takes no small problem of those asked for, so that its behaviour was not checked"
    return Absence(implementation.name, operator, implementation.device, "unsupported", reason, 1)


def _absence(implementation: Implementation, operator: str, count: int) -> Absence | None:
    """Why an implementation has no cases of an operator at all, if it has none."""
    reason = missing(implementation.device) or implementation.arrays.unavailable()
    if reason:
        status = "unavailable"
    elif not implementation.offers(operator):
        status, reason = "unsupported", f"{operator} is not implemented"
    else:
        return None
    return Absence(implementation.name, operator, implementation.device, status, reason, count)
