"""The environments of a survey, and what differs between them: variants from their base, and a version from the one
before it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from conformance.reporting.page.merge import CASE, ResultsFile, merged
from conformance.reporting.page.model import dtype_place, operator_place
from conformance.reporting.page.tables import Digest
from conformance.reporting.table import many
from conformance.results.schema import VERIFIED, Attempt, Record
from conformance.survey.model import Surveyed

FAILING = ("fail", "error")
"""Statuses that say that an engine is wrong."""
ABSENT = ("unsupported", "unavailable")
Key = tuple[object, ...]


@dataclass(frozen=True, eq=False)
class SurveyedEnvironment:
    """An environment of a survey, with what its records hold.

    slug      its folder in the site: letters, digits and few signs
    source    None where there are no records, or none that can be read
    error     why they cannot be read
    """

    surveyed: Surveyed
    slug: str
    source: ResultsFile | None = None
    error: str = ""

    @cached_property
    def digest(self) -> Digest | None:
        """What its records amount to."""
        return None if self.source is None else Digest(merged([self.source]))

    @property
    def notices(self) -> list[str]:
        """What could not be read."""
        return [*(self.source.errors if self.source else ()), *([self.error] if self.error else ())]

    @property
    def version(self) -> str:
        """Of the engine's package as it was installed, or as it was asked for."""
        engine = canonicalize_name(self.surveyed.engine)
        packages = {canonicalize_name(name): version for name, version in self.surveyed.packages.items()}
        named = [version for name, version in packages.items() if name.startswith(engine)]  # opencv-python-headless
        return packages.get(engine) or next(iter([*named, *packages.values()]), self.surveyed.version)

    @cached_property
    def plain(self) -> Counter[str]:
        """Cases by status, without those of variants."""
        found: Counter[str] = Counter()
        for verdict in self.digest.results.verdicts if self.digest else ():
            if not parted(verdict.record.implementation)[1]:
                found[verdict.record.status] += verdict.record.cases
        return found

    @property
    def reasons(self) -> list[str]:
        """Why it was not run, or not to the end."""
        found = [self.surveyed.reason] if self.surveyed.reason else []
        found += self.notices
        if self.digest is not None:
            found += [v.record.reason for v in self.digest.results.verdicts if not v.record.operator]
            found += [why for _, _, why in self.digest.reasons("unavailable")]
        if not found and (self.digest is None or not self.digest.verified):
            return ["no records" if self.digest is None else "nothing was verified"]
        return found


def parted(name: str) -> tuple[str, str]:
    """The implementation and the label in the name of a variant; the label of others is empty."""
    base, bracket, label = name.partition("[")
    return (base, label.removesuffix("]")) if base and bracket and label.endswith("]") else (name, "")


def cases(records: Iterable[Record]) -> dict[Key, Record]:
    """The cases that were attempted, by what tells those of an implementation apart."""
    return {tuple(getattr(r, name) for name in CASE): r for r in records if isinstance(r, Attempt)}


@dataclass(frozen=True, slots=True)
class Difference:
    """A variant beside its base.

    shared      cases in which both were compared with the reference, and something was measured
    differing   those of them in which a measured number differs
    broken      cases that the base passes and the variant does not
    """

    name: str
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


def differences(environments: Iterable[SurveyedEnvironment]) -> Iterator[Difference]:
    """Of each variant of the usual version from its base: that of its own environment, if there is one, else that of
    most cases."""
    held: defaultdict[Key, list[Record]] = defaultdict(list)
    for environment in environments:
        if environment.digest is not None and not environment.surveyed.version:
            for verdict in environment.digest.results.verdicts:
                record = verdict.record
                held[environment.slug, environment.surveyed.engine, record.implementation, record.device].append(record)
    most = {key[1:]: records for key, records in sorted(held.items(), key=lambda item: len(item[1]))}
    for (slug, engine, name, device), records in sorted(held.items(), key=lambda item: str(item[0][2])):
        base, label = parted(str(name))
        before = held.get((slug, engine, base, device)) or most.get((engine, base, device))
        if label and before:
            yield _difference(str(name), before, records)


def _difference(name: str, before: Iterable[Record], after: Iterable[Record]) -> Difference:
    base, own = cases(before), cases(after)
    both = [(base[key], own[key]) for key in base.keys() & own.keys()]
    measured = [
        (one, other)
        for one, other in both
        if {one.status, other.status} <= VERIFIED and (one.checks or one.profile or other.checks or other.profile)
    ]
    differing = sum((one.checks, one.profile) != (other.checks, other.profile) for one, other in measured)
    broken = sum(one.status == "pass" and other.status in FAILING for one, other in both)
    return Difference(name, len(measured), differing, broken)


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
    environment: SurveyedEnvironment
    place: int | None
    records: tuple[Record, ...] = ()

    @property
    def bad(self) -> bool:
        """Whether what passed does not pass any more."""
        return self.kind.startswith("broken")

    @property
    def status(self) -> str:
        """That it is shown as."""
        return "fail" if self.bad or self.kind.startswith("fails") else "pass" if self.kind == "fixed in" else "other"


def histories(environments: Sequence[SurveyedEnvironment]) -> dict[str, list[SurveyedEnvironment]]:
    """Engines of which several versions were asked for -> an environment of each, that of most cases, the oldest
    version first."""
    found: defaultdict[str, dict[str, SurveyedEnvironment]] = defaultdict(dict)
    for environment in sorted(environments, key=lambda one: one.plain.total()):
        found[environment.surveyed.engine][environment.surveyed.version] = environment
    return {engine: ordered([*held.values()]) for engine, held in sorted(found.items()) if len(held) > 1}


def ordered(environments: Sequence[SurveyedEnvironment]) -> list[SurveyedEnvironment]:
    """In order of versions; of their texts where one is no version."""
    try:
        return sorted(environments, key=lambda environment: Version(environment.version))
    except InvalidVersion:
        return sorted(environments, key=lambda environment: environment.version)


def changes(history: Sequence[SurveyedEnvironment]) -> list[Change]:
    """Cases whose status changes between versions, grouped; a case that a version lacks is compared with the version
    before that. What is broken comes first, then what most cases have."""
    seen: defaultdict[Key, list[tuple[SurveyedEnvironment, Record]]] = defaultdict(list)
    for environment in history:
        if environment.digest is not None:
            for record in (verdict.record for verdict in environment.digest.results.verdicts):
                for key in cases([record]):
                    seen[record.implementation, record.device, *key].append((environment, record))
    groups: defaultdict[Change, list[Record]] = defaultdict(list)
    for known in seen.values():
        for (old, was), (new, now) in pairwise(known):
            if was.status != now.status:
                where, record = (new, now) if now.status in FAILING or was.status not in FAILING else (old, was)
                versions = kind(was.status, now.status), old.version, new.version
                case = now.implementation, now.operator, now.dtype
                text, place = _failure(where, record)
                groups[Change(*versions, *case, text, where, place)].append(record)
    found = [replace(change, records=tuple(sorted(records, key=_size))) for change, records in groups.items()]
    return sorted(found, key=lambda c: (not c.bad, -len(c.records), operator_place(c.operator), dtype_place(c.dtype)))


def _size(record: Record) -> tuple[int, str, str]:
    """The shortest descriptor first: it is the example."""
    return len(record.descriptor), record.descriptor, record.command


def _failure(environment: SurveyedEnvironment, record: Record) -> tuple[str, int | None]:
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
