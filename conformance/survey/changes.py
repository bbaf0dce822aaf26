"""What differs between runs of one engine: variants from their base, and a version from the one before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from packaging.version import InvalidVersion, Version

from conformance.reporting.page.merge import CASE
from conformance.reporting.page.model import dtype_place, operator_place
from conformance.reporting.table import many
from conformance.results.schema import VERIFIED, Attempt, Record
from conformance.survey.matrix import FAILING, Environment, Line

ABSENT = ("unsupported", "unavailable")
Key = tuple[object, ...]


def cases(records: Iterable[Record]) -> dict[Key, Record]:
    """The cases that were attempted, by what tells them apart; an implementation's or several implementations'."""
    attempts = (record for record in records if isinstance(record, Attempt))
    return {(r.implementation, r.device, *(getattr(r, name) for name in CASE)): r for r in attempts}


@dataclass(frozen=True, slots=True)
class Difference:
    """A variant beside its base.

    shared      cases in which both were compared with the reference, and something was measured
    differing   those of them in which a measured number differs
    broken      cases that the base passes and the variant does not
    """

    line: Line
    shared: int
    differing: int
    broken: int

    @property
    def words(self) -> str:
        """In one sentence."""
        if not self.shared:
            return "nothing was measured in both"
        if not self.differing:
            return f"same numbers in all {many(self.shared, 'case')}: the setting has no effect here"
        return f"other numbers in {self.differing:,} of {many(self.shared, 'case')}"


def differences(found: Iterable[Line]) -> list[Difference]:
    """Of each variant of the usual version from its base: that of its own environment, if there is one, else that of
    most cases."""
    rows = {(line.environment, line.row): line for line in sorted(found, key=lambda line: len(line.records))}
    by_engine = {(line.environment.engine, line.row): line for line in rows.values()}
    return [
        _difference(line, rows.get((line.environment, line.base)) or by_engine[line.environment.engine, line.base])
        for line in rows.values()
        if line.base and not line.environment.surveyed.version
    ]


def _difference(line: Line, base: Line) -> Difference:
    before, after = ({key[1:]: r for key, r in cases(one.records).items()} for one in (base, line))
    both = [(before[key], after[key]) for key in before.keys() & after.keys()]
    measured = [
        (one, other)
        for one, other in both
        if {one.status, other.status} <= VERIFIED and (one.checks or one.profile or other.checks or other.profile)
    ]
    differing = sum((one.checks, one.profile) != (other.checks, other.profile) for one, other in measured)
    broken = sum(one.status == "pass" and other.status in FAILING for one, other in both)
    return Difference(line, len(measured), differing, broken)


@dataclass(frozen=True, slots=True)
class Change:
    """Cases whose status is another one from a version on.

    kind          "broken since", "fixed in", ...
    version       from which on; `before` is the one before
    failure       what failed, in the words of the report's groups; empty where nothing did
    environment   of the version that failed, or else of the newer one
    place         of the failure among the groups of that environment
    records       the first is the example
    """

    kind: str
    before: str
    version: str
    implementation: str
    operator: str
    dtype: str
    failure: str
    environment: Environment
    place: int | None
    records: tuple[Record, ...]

    @property
    def bad(self) -> bool:
        """Whether what passed does not pass any more."""
        return self.kind.startswith("broken")


def histories(environments: Sequence[Environment]) -> dict[str, list[Environment]]:
    """Engines of which several versions were asked for -> an environment of each, that of most cases, the oldest
    version first."""
    found: defaultdict[str, dict[str, Environment]] = defaultdict(dict)
    for environment in sorted(environments, key=lambda one: one.plain.total()):
        engine, version = environment.engine
        found[engine][version] = environment
    return {engine: ordered([*held.values()]) for engine, held in sorted(found.items()) if len(held) > 1}


def ordered(environments: Sequence[Environment]) -> list[Environment]:
    """In order of versions; of their texts where one is no version."""
    try:
        return sorted(environments, key=lambda environment: Version(environment.version))
    except InvalidVersion:
        return sorted(environments, key=lambda environment: environment.version)


def changes(history: Sequence[Environment]) -> list[Change]:
    """Cases whose status changes between versions, grouped; a case that a version lacks is compared with the version
    before that. What is broken comes first, then what most cases have."""
    seen: defaultdict[Key, list[tuple[Environment, Record]]] = defaultdict(list)
    for environment in history:
        if environment.digest is not None:
            for key, record in cases(verdict.record for verdict in environment.digest.results.verdicts).items():
                seen[key].append((environment, record))
    groups: defaultdict[Key, list[tuple[Environment, Record]]] = defaultdict(list)
    for known in seen.values():
        for (old, was), (new, now) in pairwise(known):
            if was.status != now.status:
                where, record = (new, now) if now.status in FAILING or was.status not in FAILING else (old, was)
                text, place = _failure(where, record)
                names = (now.implementation, now.operator, now.dtype)
                groups[kind(was.status, now.status), old.version, new.version, *names, text, place, where.slug].append(
                    (where, record)
                )
    found = list(_grouped(groups))
    return sorted(found, key=lambda c: (not c.bad, -len(c.records), operator_place(c.operator), dtype_place(c.dtype)))


def _grouped(groups: dict[Key, list[tuple[Environment, Record]]]) -> Iterator[Change]:
    for key, held in groups.items():
        kind, before, version, implementation, operator, dtype, text, place, _ = key
        records = sorted((record for _, record in held), key=lambda r: (len(r.descriptor), r.descriptor, r.command))
        yield Change(
            kind=str(kind),
            before=str(before),
            version=str(version),
            implementation=str(implementation),
            operator=str(operator),
            dtype=str(dtype),
            failure=str(text),
            environment=held[0][0],
            place=place if isinstance(place, int) else None,
            records=tuple(records),
        )


def _failure(environment: Environment, record: Record) -> tuple[str, int | None]:
    """The group of a failure: its words and its place; of another record, why it did not pass."""
    assert environment.digest is not None
    found = environment.digest.grouped.get(id(record))
    return (found[1].text, found[0]) if found else (record.headline, None)


def kind(before: str, after: str) -> str:
    """What a change of status is called, before the version."""
    if after in FAILING:
        return "broken since" if before == "pass" else "fails since" if before in ABSENT else f"{before} to {after} in"
    if before in FAILING and after == "pass":
        return "fixed in"
    if after in ABSENT:
        return f"{after} since"
    return "supported since" if before in ABSENT else f"{before} to {after} in"
