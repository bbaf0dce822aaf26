"""A random sample of a submission's verdicts, reached once more on this machine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.dtypes import STORAGE
from conformance.execution.case import Case
from conformance.execution.plan import Plan
from conformance.execution.selection import Selection, SelectionError
from conformance.execution.verify import verify
from conformance.implementations.devices import Unavailable
from conformance.inputs import DISTRIBUTIONS
from conformance.inputs.golden import SEED
from conformance.operators import OPERATORS
from conformance.problems import LAYOUTS, PROBLEMS, Variant
from conformance.reporting.submission.contents import Contents
from conformance.resources import IMPLS
from conformance.results.reading import shown
from conformance.results.schema import VERIFIED, Attempt, CaseRecord, Record

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
    selection = Selection(
        () if paths else found.statement.implementations, tuple(paths), found.statement.level, PROBLEMS,
        tuple(OPERATORS), tuple(STORAGE), LAYOUTS, tuple(DISTRIBUTIONS), SEED, "auto", required=(),
    )  # fmt: skip
    try:
        plan = Plan(selection, IMPLS)
    except SelectionError as problem:
        yield Outcome(NOT_HERE, "; ".join(str(problem).splitlines()))
        return
    here: list[CaseRecord] = []
    for name in found.statement.implementations:
        try:
            _require_same(plan, name, found.of(name))
        except LookupError as problem:
            yield Outcome(NOT_HERE, f"{shown(name)}: {problem}")
            continue
        # verdicts of a comparison with the reference, which one call repeats
        mine = (record for record in found.of(name) if isinstance(record, CaseRecord))
        here += [r for r in mine if r.status in VERIFIED and r.distribution in DISTRIBUTIONS]
    problems = {problem.name: problem for problem in PROBLEMS}
    for record in random.Random(drawn).sample(here, min(count, len(here))):
        implementation, operator = plan.registry.implementations[record.implementation], OPERATORS[record.operator]
        variant = Variant(record.dtype, record.layout, record.distribution)
        method = "probes" if record.method == "probes" else "exact"
        case = Case(implementation, operator, problems[record.problem], variant, SEED, method)
        status = verify(case).status
        text = shown(f"{record.operator} {case.id}: {record.status}")
        yield Outcome(AGREES, text) if status == record.status else Outcome(OTHER, f"{text}, here {status}")


def _require_same(plan: Plan, name: str, records: Sequence[Record]) -> None:
    """Raises LookupError where the implementation that records are about is not here, or cannot run."""
    implementation = plan.registry.implementations.get(name)
    if implementation is None:
        why = [*plan.registry.broken.values(), *plan.registry.unavailable.values()]
        raise LookupError("; ".join(["is not here; give --impl=PATH", *map(shown, why)]))
    if any(record.source != implementation.source for record in records if isinstance(record, Attempt)):
        raise LookupError("the sources here are not those of the submission")
    if any(record.device != implementation.device for record in records):
        raise LookupError(f"runs on {implementation.device} here")
    try:
        implementation.require()
    except Unavailable as absence:
        raise LookupError(str(absence)) from None
