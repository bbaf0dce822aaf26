"""A random sample of a submission's verdicts, reached once more on this machine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.dtypes import STORAGE
from conformance.execution.case import Case
from conformance.execution.plan import IMPLS, Plan
from conformance.execution.selection import Selection
from conformance.execution.verify import verify
from conformance.implementations.devices import missing
from conformance.inputs import DISTRIBUTIONS
from conformance.inputs.golden import SEED
from conformance.operators import OPERATORS
from conformance.problems import LAYOUTS, PROBLEMS, Variant
from conformance.reporting.submission.contents import Contents
from conformance.results.reading import shown
from conformance.results.schema import VERIFIED, Attempt, CaseRecord

AGREES, OTHER, NOT_HERE = "agrees", "DIFFERS", "not run"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one verdict, or of an implementation that is not here."""

    word: str
    text: str


def repeated(found: Contents, count: int, drawn: int, paths: Sequence[Path]) -> Iterator[Outcome]:
    """Run `count` verdicts again, drawn by the seed `drawn` among those that compared results.

    Nothing of the archive is executed: kernels are those of this machine, whose sources must be the recorded ones, and
    a case is looked up by its names in the tables here.
    """
    try:
        plan = Plan(_selection(found, paths), IMPLS)
    except pytest.UsageError as problem:
        yield Outcome(NOT_HERE, "; ".join(str(problem).splitlines()))
        return
    here: list[CaseRecord] = []
    for name in found.statement.implementations:
        reason = _absent(plan, name, found)
        if reason:
            yield Outcome(NOT_HERE, f"{shown(name)}: {reason}")
        else:
            # verdicts of a comparison with the reference, which one call repeats
            mine = (record for record in found.of(name) if isinstance(record, CaseRecord))
            here += [r for r in mine if r.status in VERIFIED and r.distribution in DISTRIBUTIONS]
    for record in random.Random(drawn).sample(here, min(count, len(here))):
        yield _outcome(plan, record)


def _selection(found: Contents, paths: Sequence[Path]) -> Selection:
    names = () if paths else found.statement.implementations
    return Selection(
        names, tuple(paths), found.statement.level, PROBLEMS, tuple(OPERATORS), tuple(STORAGE), LAYOUTS,
        tuple(DISTRIBUTIONS),
        SEED, "auto", required=(),
    )  # fmt: skip


def _absent(plan: Plan, name: str, found: Contents) -> str:
    """Why the verdicts on an implementation cannot be reached here; empty if they can."""
    implementation = plan.registry.implementations.get(name)
    if implementation is None:
        why = [*plan.registry.broken.values(), *plan.registry.unavailable.values()]
        return "; ".join(["is not here; give --impl=PATH", *map(shown, why)])
    if any(r.source != implementation.source for r in found.of(name) if isinstance(r, Attempt)):
        return "the sources here are not those of the submission"
    if any(record.device != implementation.device for record in found.of(name)):
        return f"runs on {implementation.device} here"
    return missing(implementation.device) or implementation.arrays.unavailable()


def _outcome(plan: Plan, record: CaseRecord) -> Outcome:
    problem = next(problem for problem in PROBLEMS if problem.name == record.problem)
    implementation = plan.registry.implementations[record.implementation]
    variant = Variant(record.dtype, record.layout, record.distribution)
    method = "probes" if record.method == "probes" else "exact"
    case = Case(implementation, OPERATORS[record.operator], problem, variant, SEED, method)
    status = verify(case).status
    text = shown(f"{record.operator} {case.id}: {record.status}")
    return Outcome(AGREES, text) if status == record.status else Outcome(OTHER, f"{text}, here {status}")
