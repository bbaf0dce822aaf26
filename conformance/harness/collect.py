"""From a selection to cases, in the order that shares references: problem, dtype, arm, then implementations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from conformance.harness import registry
from conformance.harness.case import Absence, Case
from conformance.harness.devices import missing
from conformance.harness.implementation import Implementation
from conformance.harness.options import Selection, unknown
from conformance.operators import OPERATORS
from conformance.problems import Problem, Variant

Predicate = Callable[[Any], bool]


class Plan:
    """The implementations of a run and the cases that they are due."""

    def __init__(self, selection: Selection, folder: Path) -> None:
        self.selection = selection
        given = selection.paths
        found = list(given) if given and not selection.implementations else [*registry.discover(folder), *given]
        self.registry = registry.load(found)
        self._origins = {name: path for name, path in self.registry.paths.items() if Path(path) in given}
        if selection.implementations:
            self._restrict()

    def _restrict(self) -> None:
        """Keep what `--impl` names; files that are nobody's business then are not reported."""
        known, wanted = self.registry, set(self.selection.implementations)
        for name in wanted - known.implementations.keys() - known.unavailable.keys():
            trouble = [f"{path} is broken: {why}" for path, why in known.broken.items()]
            trouble += [f"{stem} is unavailable: {why}" for stem, why in known.unavailable.items()]
            error = unknown("--impl", name, known.implementations.keys() | known.unavailable.keys())
            raise pytest.UsageError("\n".join([str(error), *trouble]))
        wanted |= self._origins.keys()
        known.implementations = {n: i for n, i in known.implementations.items() if n in wanted}
        known.unavailable = {n: why for n, why in known.unavailable.items() if n in wanted}
        known.broken = {path: why for path, why in known.broken.items() if Path(path) in self.selection.paths}

    def cases(self, operator: str, when: Predicate | None) -> Iterator[Case | Absence]:
        """Everything due for an operator on the problems for which `when(geometry)` holds."""
        if operator not in self.selection.operators:
            return
        rows = [(p, vs) for p, vs in self.selection.rows() if when is None or when(p.geometry)]
        yield from self._rows(operator, rows)

    def timed(self, operator: str, problems: Iterable[Problem]) -> Iterator[Case | Absence]:
        """The cases of a benchmark table: dense fp32 data in the canonical layout."""
        if operator in self.selection.operators:
            yield from self._rows(operator, [(problem, (Variant("fp32", "nchw", "fixed"),)) for problem in problems])

    def _rows(self, operator: str, rows: list[tuple[Problem, tuple[Variant, ...]]]) -> Iterator[Case | Absence]:
        count = sum(len(variants) for _, variants in rows)
        if not count:
            return
        present = []
        for implementation in self.registry.implementations.values():
            absence = _absence(implementation, operator, count)
            if absence is None:
                present.append(implementation)
            else:
                yield absence
        for stem, reason in self.registry.unavailable.items():
            yield Absence(stem, operator, "", "unavailable", reason, count)
        yield from self._due(operator, rows, present)

    def _due(
        self, operator: str, rows: list[tuple[Problem, tuple[Variant, ...]]], present: list[Implementation]
    ) -> Iterator[Case]:
        for problem, variants in rows:
            shared = sorted(variants, key=lambda v: (v.dtype, v.arm))
            for _, same_tensors in groupby(shared, key=lambda v: (v.dtype, v.arm)):
                layouts = list(same_tensors)
                for implementation in present:
                    for variant in layouts:
                        origin = self._origins.get(implementation.name, "")
                        yield Case(implementation, OPERATORS[operator], problem, variant, self.selection.seed, origin)


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
