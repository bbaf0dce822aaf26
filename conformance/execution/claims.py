"""Support claims: what an implementation once verified must not be lost unnoticed.

`conformance.results.claims_file` reads and writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from conformance.execution.case import Absence
from conformance.implementations.devices import missing


class Key(NamedTuple):
    """What tells a case of an implementation from its others, at every level and seed."""

    operator: str
    problem: str
    """Its descriptor in claims, which stays when a table names it anew; its name where two names of one descriptor are
    two cases; of a training, the network."""
    dtype: str
    layout: str
    distribution: str
    check: str = ""
    storage: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one implementation has verified, as a file beside it says."""

    implementation: str
    source: Path
    """The implementation's own file or folder."""
    file: Path
    device: str
    packages: tuple[str, ...]
    problems: Mapping[str, str]
    """Name -> descriptor."""
    cases: frozenset[Key]

    @property
    def can_run(self) -> bool:
        """Whether the device and the packages that it was verified with are here."""
        return not missing(self.device) and all(map(_installed, self.packages))

    @property
    def place(self) -> str:
        """The file as messages name it: acme.claims.json, or acme/claims.json for a folder."""
        return self.file.relative_to(self.source.parent).as_posix()

    def lost(self, status: str, reason: str) -> str:
        """The reason of a failure: a claimed case is `status`."""
        anew = f"write the claims again with `conformance claims write {self.source} RECORDS`"
        return f"claimed in {self.place}, but {status}: {reason}; support it again, or {anew}"


def compared(absence: Absence, claims: Iterable[Claim], selected: Sequence[Key]) -> Iterator[Absence]:
    """Absent cases as they are reported: those that are claimed failed, unless what they need is not here."""
    held = [claim for claim in claims if absence.status == "unsupported" or claim.can_run]
    keys = frozenset[Key]().union(*(claim.cases for claim in held))
    count = min(absence.cases, sum(key in keys for key in selected))
    if count:
        reason = held[0].lost(absence.status, absence.reason)
        # the claimed device: a file that cannot be imported names none
        yield replace(absence, device=held[0].device, status="fail", reason=reason, cases=count)
    if absence.cases > count:
        yield replace(absence, cases=absence.cases - count)


def _installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return find_spec(package) is not None
