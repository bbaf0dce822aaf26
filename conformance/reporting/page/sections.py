"""The sections of a report, as its page and its summary show them. A section that fails is left out, with a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from conformance.explaining import explaining
from conformance.reporting import emulator_counts, training
from conformance.reporting.page import charts, speeds, tables
from conformance.reporting.page.speeds import Banner, Speed
from conformance.reporting.page.tables import Digest
from conformance.reporting.table import Table


@dataclass(slots=True)
class Sections:
    """The sections by name; empty if a report has none."""

    modules: Table | None = None
    findings: Sequence[Table] = ()
    profile: Table | None = None
    speeds: Sequence[Speed] = ()
    speed_tables: Sequence[Table] = ()
    banners: Sequence[Banner] = ()
    speed_chart: charts.Chart | None = None
    counted: Sequence[Table] = ()
    memory: Sequence[Table] = ()
    training: Table | None = None
    unsupported: Table | None = None
    machines: Table | None = None


MADE: dict[str, Callable[[Digest, Sections], Any]] = {
    "modules": lambda digest, _: digest.modules,
    "findings": lambda digest, _: digest.findings,
    "profile": lambda digest, _: tables.profiles(digest),
    "speeds": lambda digest, _: speeds.speeds(digest),
    "speed_tables": lambda digest, known: speeds.speed_tables(digest, known.speeds),
    "banners": lambda _, known: speeds.banners(known.speeds),
    "speed_chart": lambda digest, known: charts.speed(digest, known.speeds),
    "counted": lambda digest, _: emulator_counts.tables(digest.tally.moved),
    "memory": lambda digest, _: training.memory_tables(digest.named),
    "training": lambda digest, _: training.table(digest.named),
    "unsupported": lambda digest, _: digest.unsupported,
    "machines": lambda digest, _: digest.machines,
}
"""Name of a section -> the function that makes it, from the digest and the sections before it."""


@lru_cache(maxsize=1)
def sections(digest: Digest) -> Sections:
    """Return the sections of a report. They are cached, so that page and summary report a failure only once."""
    found = Sections()
    for name, made in MADE.items():
        with explaining(f"{name.replace('_', ' ')} of the report"):
            setattr(found, name, made(digest, found))
    return found
