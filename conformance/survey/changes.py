"""The environments of a survey, and the differences between variants and their base."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from packaging.utils import canonicalize_name

from conformance.reporting.page.merge import CASE, ResultsFile, merged
from conformance.reporting.page.tables import Digest
from conformance.reporting.table import many
from conformance.results.schema import VERIFIED, Attempt, Record
from conformance.survey.survey_file import Surveyed

FAILING = ("fail", "error")
"""Statuses that say that an engine is wrong."""
Key = tuple[object, ...]


@dataclass(frozen=True, eq=False)
class SurveyedEnvironment:
    """An environment of a survey, with its records.

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
        """Digest of the records; None without any."""
        return None if self.source is None else Digest(merged([self.source]))

    @property
    def notices(self) -> list[str]:
        """Errors in reading the records."""
        return [*(self.source.errors if self.source else ()), *([self.error] if self.error else ())]

    @property
    def version(self) -> str:
        """Installed version of the engine's package."""
        engine = canonicalize_name(self.surveyed.engine)
        packages = {canonicalize_name(name): version for name, version in self.surveyed.packages.items()}
        named = [version for name, version in packages.items() if name.startswith(engine)]  # opencv-python-headless
        return packages.get(engine) or next(iter([*named, *packages.values()]), "")

    @cached_property
    def plain(self) -> Counter[str]:
        """Number of cases by status, without those of variants."""
        counts: Counter[str] = Counter()
        for verdict in self.digest.results.verdicts if self.digest else ():
            if not parted(verdict.record.implementation)[1]:
                counts[verdict.record.status] += verdict.record.cases
        return counts

    @property
    def reasons(self) -> list[str]:
        """Reasons why the engine was not run, or not to the end."""
        reasons = [self.surveyed.reason] if self.surveyed.reason else []
        reasons += self.notices
        if self.digest is not None:
            reasons += [v.record.reason for v in self.digest.results.verdicts if not v.record.operator]
            reasons += [why for texts in self.digest.report.tally.reasons["unavailable"].values() for why in texts]
        if not reasons and (self.digest is None or not self.digest.verified):
            return ["no records" if self.digest is None else "nothing was verified"]
        return reasons


def parted(name: str) -> tuple[str, str]:
    """Split the name of a variant into its implementation and its label; the label of other names is empty."""
    base, bracket, label = name.partition("[")
    return (base, label.removesuffix("]")) if base and bracket and label.endswith("]") else (name, "")


def cases(records: Iterable[Record]) -> dict[Key, Record]:
    """Return the attempted cases, by the fields that tell the cases of an implementation apart."""
    return {tuple(getattr(r, name) for name in CASE): r for r in records if isinstance(r, Attempt)}


@dataclass(frozen=True, slots=True)
class Difference:
    """A variant beside its base.

    shared      cases in which both were compared with the reference, and something was measured
    differing   those of the shared cases in which a measured number differs
    broken      cases that the base passes and the variant does not
    """

    name: str
    shared: int
    differing: int
    broken: int

    @property
    def words(self) -> str:
        """Difference in one sentence."""
        if not self.shared:
            return "nothing was measured in both"
        if not self.differing:
            return f"same numbers in all {many(self.shared, 'case')}: the setting has no effect here"
        return f"other numbers in {self.differing:,} of {many(self.shared, 'case')}"


def differences(environments: Iterable[SurveyedEnvironment]) -> Iterator[Difference]:
    """Yield the difference of each variant from its base: the base in its own environment, if there is one, else the
    base with most cases."""
    by_engine: defaultdict[Key, list[Record]] = defaultdict(list)
    for environment in environments:
        if environment.digest is not None:
            for verdict in environment.digest.results.verdicts:
                record = verdict.record
                by_engine[environment.slug, environment.surveyed.engine, record.implementation, record.device].append(
                    record
                )
    most = {key[1:]: records for key, records in sorted(by_engine.items(), key=lambda item: len(item[1]))}
    for (slug, engine, name, device), records in sorted(by_engine.items(), key=lambda item: str(item[0][2])):
        base, label = parted(str(name))
        before = by_engine.get((slug, engine, base, device)) or most.get((engine, base, device))
        if label and before:
            yield _difference(str(name), before, records)


def _difference(name: str, before: Iterable[Record], after: Iterable[Record]) -> Difference:
    base, changed = cases(before), cases(after)
    both = [(base[key], changed[key]) for key in base.keys() & changed.keys()]
    measured = [
        (former, other)
        for former, other in both
        if {former.status, other.status} <= VERIFIED
        and (former.checks or former.profile or other.checks or other.profile)
    ]
    differing = sum((former.checks, former.profile) != (other.checks, other.profile) for former, other in measured)
    broken = sum(former.status == "pass" and other.status in FAILING for former, other in both)
    return Difference(name, len(measured), differing, broken)
