"""Where a kernel fails, by the verdicts of a run: which verdicts are evidence, and the conditions they show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from conformance.diagnosis.conditions import holds
from conformance.diagnosis.nearby import Tried
from conformance.diagnosis.where import FEWEST, TRIES, Runs, Where, where
from conformance.explaining import Tell, explaining
from conformance.operators import FAMILIES, OPERATORS, Geometry, GeometryError, parse
from conformance.problems import Variant
from conformance.problems.features import axes
from conformance.reporting.failures import (
    ORDINARY,
    by_storage,
    confused,
    differs,
    has,
    is_deciding,
    is_not_run,
    is_wrong,
    kinds_of_storage,
    signature,
    stored_so,
)
from conformance.results.schema import Record

Verified = Callable[[Any, Variant], Record | None]
"""Verifies another problem and returns its record; None if the kernel does not take it, or there is no more time."""
LONGEST = 1 << 26
"""Largest product of outputs and window along an axis for which the features of a problem are examined."""
OF_CHECKS = 12
"""Number of problems run to locate a failing behaviour check, which makes many calls and waits between them. For wrong
results it is `TRIES`."""
Place = tuple[str, str, str]
"""Implementation, operator and behaviour check, which is empty for results."""


class RunEvidence:
    """The passing cases of a run, and the cases with wrong results, which are examined together because one mistake
    shows in several ways. `tell` is called with every explanation that fails."""

    def __init__(self, records: Iterable[Record] = (), tell: Tell | None = None) -> None:
        self.explaining = explaining if tell is None else partial(explaining, tell=tell)
        self._passed: defaultdict[Place, list[Record]] = defaultdict(list)
        self._wrong: defaultdict[Place, list[Record]] = defaultdict(list)
        self._conditions: dict[Place, list[Where]] = {}
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Add a record. A case that did not run says nothing about problems, a behaviour check says nothing about plain
        results, and the record of a case with a reading repeats the case, which was added before."""
        place = _place(record)
        if not record.descriptor or (record.reading and any(wrong.case == record.case for wrong in self._wrong[place])):
            return
        if record.status == "pass":
            self._passed[place].append(record)
        elif is_wrong(record) and not record.check and not differs(record) and not by_storage(record):
            self._wrong[place].append(record)
        self._conditions.pop(place, None)

    def passed(self, record: Record) -> Sequence[Record]:
        """Return the passing cases of the same implementation, operator and behaviour check."""
        return self._passed[_place(record)]

    def wrong(self, implementation: str, operator: str) -> list[Where]:
        """Return the condition, or two, under which results of an operator are wrong; empty if evidence is lacking."""
        place = implementation, operator, ""
        if place not in self._conditions:
            self._conditions[place] = self._conditions_of(self._wrong[place])
        return self._conditions[place]

    def of(self, records: Sequence[Record]) -> list[Where]:
        """Return the condition of failures that are examined by themselves, such as a kernel's exceptions."""
        return self._conditions_of(_telling(records))

    def decide(self, records: Sequence[Record], verified: Verified) -> None:
        """Run a few more problems that decide the condition of failures. They are ordinary cases: the code that
        verifies them also adds them."""
        first, failing = records[0], _telling(records)
        wrongly = is_wrong(first) and not first.check and not by_storage(first)
        if failing and wrongly:
            failing = [*self._wrong[_place(first)]]
        if any(map(is_deciding, failing)):
            return  # already done, for other wrong results of this operator or by the run that this one continues
        if not wrongly and len(failing) > TRIES and not self._passed[_place(first)]:
            return  # it always raises, often because of the machine

        def alike(record: Record) -> bool:
            if confused(first):
                return confused(record)[1:] == confused(first)[1:]
            if by_storage(first):
                return by_storage(record) and not {*first.causes}.isdisjoint(record.causes)
            return is_wrong(record) if wrongly else signature(record) == signature(first)

        def fails(geometry: Geometry, variant: Variant) -> bool | None:
            record = verified(geometry, variant)
            if record is None or record.status == "pass":
                return None if record is None else False
            return True if alike(record) else None

        self._conditions_of(failing, fails)

    def has(self, record: Record, condition: Where) -> bool:
        """Return whether a condition holds for a case."""
        tried = _tried(record)
        return tried is not None and holds(condition.condition, tried.traits)

    def _conditions_of(self, failing: Sequence[Record], runs: Runs | None = None) -> list[Where]:
        if not failing:
            return []
        first, conditions = failing[0], list[Where]()
        passed = [record for record in self._passed[_place(first)] if is_deciding(record) or not confused(first)]
        with self.explaining(f"{first.implementation} {first.operator} on {first.descriptor!r}"):
            conditions = where(_comparable(failing, passed), runs, OF_CHECKS if first.check else TRIES)
            storage = _storage_needed(failing, passed)
            conditions = [replace(condition, storage=storage) for condition in conditions]
        return conditions if sum(condition.fails for condition in conditions) >= FEWEST else []


@lru_cache(maxsize=1 << 14)
def _tried_on(descriptor: str, variant: Variant, failed: bool) -> Tried | None:
    try:
        geometry = parse(descriptor)
    except GeometryError:
        return None  # a problem of another version of the suite
    if any(axis.outputs * axis.window > LONGEST for axis in axes(geometry)):
        return None  # a problem of 10^12 rows, which nobody has run
    return Tried(geometry, variant, failed)


def _tried(record: Record) -> Tried | None:
    variant = Variant(record.dtype, record.layout, record.distribution, record.storage)
    problem = (*confused(record), record.descriptor)[0]
    return _tried_on(problem, variant, record.status != "pass")


def _place(record: Record) -> Place:
    return record.implementation, record.operator, record.check


def _telling(records: Sequence[Record]) -> list[Record]:
    """Return the failures of a group that are evidence of where it fails: the cases that ran, of the operator and the
    behaviour check of the first record. (An exception may concern several families, whose parameters have other names.)
    Empty if results of the first record differ from call to call: that such a case passed once says nothing. Nor does
    a missing golden or reference tell where a kernel fails, or a failure that came once."""
    first = records[0]
    if not first.descriptor or differs(first) or has(first, "golden", "reference", "not repeatable"):
        return []
    return [
        record
        for record in records
        if _place(record) == _place(first) and by_storage(record) == by_storage(first) and not is_not_run(record)
    ]


def _storage_needed(failing: Sequence[Record], passed: Sequence[Record]) -> str:
    """Return the operand and the kind of storage that is the cause of all failures, if the operand passes in others."""
    pairs = {pair for record in failing for pair in stored_so(record)}
    if len(pairs) != 1:
        return ""
    ((operand, kind),) = pairs
    passing_kinds = {kinds_of_storage(record).get(operand, kind) for record in passed} - {kind}
    return f"{operand}:{kind}" if passing_kinds else ""


def _comparable(failing: Sequence[Record], passed: Sequence[Record]) -> Iterator[Tried]:
    """Yield the cases that are evidence about each other: other inputs can hide a mistake that shows on ordinary ones,
    and a failure on special inputs alone passes on ordinary ones."""
    # problems that were run to locate a failure resemble the others: they do not choose the distributions
    sampled = [record for record in failing if not is_deciding(record)] or failing
    failing_on = {record.distribution for record in sampled}
    ordinary = failing_on & ORDINARY
    plain = {"fixed", *(FAMILIES[OPERATORS[record.operator].family].distributions[0] for record in sampled[:1])}
    distributions = {"fixed"} if "fixed" in ordinary else ordinary or failing_on | plain
    # if the storage of operands is the cause, the group already says so
    storages = {record.storage for record in sampled}
    storages = storages if all(map(by_storage, sampled)) else {""} if "" in storages else set[str]()
    for record in (*failing, *passed):
        if record.distribution not in distributions or (storages and record.storage not in storages):
            continue
        if (tried := _tried(record)) is not None:
            yield tried
