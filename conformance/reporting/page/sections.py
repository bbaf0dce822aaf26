"""The sections of a report, as its page and its summary show them. A section that fails is left out, with a message."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from conformance.explaining import explaining
from conformance.reporting import training
from conformance.reporting.page import charts, speeds
from conformance.reporting.page.tables import Digest

MADE: dict[str, Callable[[Digest, Any], Any]] = {
    "modules": lambda digest, _: digest.modules,
    "findings": lambda digest, _: digest.report.findings,
    "accuracy": lambda digest, _: digest.report.accuracy,
    "speeds": lambda digest, _: speeds.speeds(digest),
    "speed_tables": lambda digest, earlier: speeds.speed_tables(digest, earlier["speeds"]),
    "banners": lambda _, earlier: speeds.banners(earlier["speeds"]),
    "speed_chart": lambda digest, earlier: charts.speed(digest, earlier["speeds"]),
    "counted": lambda digest, _: digest.report.counted,
    "memory": lambda digest, _: training.memory_tables(digest.records),
    "training": lambda digest, _: training.table(digest.records),
    "unsupported": lambda digest, _: digest.report.unsupported,
    "machines": lambda digest, _: digest.machines,
}
"""Name of a section -> the function that makes it from the digest and the sections before it: a table or several, a
chart, or the data for these."""


@lru_cache(maxsize=1)
def sections(digest: Digest) -> dict[str, Any]:
    """Return the sections of a report by name; what a report does not have is empty. They are cached, so that page and
    summary report a failure only once."""
    by_name: dict[str, Any] = dict.fromkeys(MADE, ())
    for name, make in MADE.items():
        with explaining(f"{name.replace('_', ' ')} of the report"):
            by_name[name] = make(digest, by_name)
    return by_name
