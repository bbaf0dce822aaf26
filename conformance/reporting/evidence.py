"""Where a kernel fails, by the verdicts of a run: which of them are evidence, and how it is said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from conformance.diagnosis.where import Tried, Where, where
from conformance.operators import GeometryError, parse
from conformance.problems import Variant
from conformance.reporting.groups import ORDINARY, Group, is_wrong
from conformance.reporting.table import many
from conformance.results.schema import Record

FEWEST = 3
"""Failing cases without which nothing is said."""


class _Kind(NamedTuple):
    """Verdicts that are looked at together: those on an operator of an implementation that are wrong results, that are
    the same error, or that passed."""

    implementation: str
    operator: str
    how: str


WRONG, PASSED = "wrong", "passed"
Verified = Callable[[Any, Variant], Record | None]
"""The record of another problem; None where the kernel does not take it, or there is no more time."""


class RunEvidence:
    """The cases of a run that passed or failed, by how they did."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._known: defaultdict[_Kind, list[tuple[str, Variant]]] = defaultdict(list)
        self._said: dict[_Kind, list[Where]] = {}
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Behaviour checks, and what did not run, say nothing about problems."""
        if record.status in ("pass", "fail", "error") and record.descriptor and not record.check:
            variant = Variant(record.dtype, record.layout, record.distribution, record.storage)
            self._known[_kind(record)].append((record.descriptor, variant))

    def where(self, group: Group, verified: Verified | None = None) -> list[Where]:
        """The condition, or two, under which the smallest case of a group fails as it does; none where the evidence
        names none; `verified` runs a few problems that decide. Groups of one kind share it: a diagnosis does not reach
        every case of a mistake."""
        if group.smallest.check or not group.smallest.descriptor:
            return []
        kind = _kind(group.smallest)
        if kind not in self._said:
            found = where(self._cases(kind), None if verified is None else partial(_fails, kind, verified))
            self._said[kind] = found if sum(one.fails for one in found) >= FEWEST else []
        return self._said[kind]

    def _cases(self, kind: _Kind) -> Iterator[Tried]:
        failing, passed = self._known[kind], self._known[kind._replace(how=PASSED)]
        comparable = _comparable([variant for _, variant in failing])
        stored = all(variant.storage for _, variant in failing)
        for cases, failed in ((failing, True), (passed, False)):
            for descriptor, variant in cases:
                if variant.distribution in comparable and (stored or not variant.storage):
                    try:
                        geometry = parse(descriptor)
                    except GeometryError:
                        continue  # a problem of another version of the suite
                    yield Tried(geometry, variant, failed)


def _kind(record: Record) -> _Kind:
    how = PASSED if record.status == "pass" else WRONG if is_wrong(record) else record.headline
    return _Kind(record.implementation, record.operator, how)


def _fails(kind: _Kind, verified: Verified, geometry: Any, variant: Variant) -> bool | None:
    """Whether a problem fails as the kind does; None where it says nothing about that."""
    record = verified(geometry, variant)
    if record is None or record.status == "pass":
        return None if record is None else False
    return True if _kind(record) == kind else None


def _comparable(failing: Sequence[Variant]) -> frozenset[str]:
    """The distributions of cases that can be compared: a mistake that shows on ordinary inputs can be hidden by others,
    and what fails on special inputs alone passes on ordinary ones."""
    found = {variant.distribution for variant in failing}
    ordinary = found & ORDINARY
    return frozenset({"fixed"} if "fixed" in ordinary else ordinary or found | {"fixed"})


def said(found: Sequence[Where]) -> str:
    """In one line; empty where nothing is known."""
    if not found:
        return ""
    conditions = "; and where ".join(f"{one}: {one.fails:,} of {many(one.such, 'such case')}" for one in found)
    drawn = sum(one.drawn for one in found)
    conditions += f" ({drawn} of them drawn)" if drawn else ""
    others = f", none of {found[0].others:,} others" if len(found) == 1 and found[0].others else ""
    nearest = f"; passes with {found[0].differs}" if found[0].differs else ""
    return f"fails where {conditions}{others}{nearest}"
