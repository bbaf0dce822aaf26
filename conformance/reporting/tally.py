"""Counts by status, from records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from conformance.reporting.accuracy import Profile
from conformance.reporting.traffic import Moved

STATUSES = ("pass", "fail", "error", "unsupported", "waived", "unavailable")
VERIFIED = frozenset({"pass", "fail", "waived"})
"""Statuses that say something about a kernel's results."""


class Tally:
    """What a run amounted to."""

    def __init__(self) -> None:
        self.cells: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        """(implementation, operator) -> cases by status."""
        self.devices: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Device -> cases by status."""
        self.absent: dict[str, str] = {}
        """Implementation -> why it was unavailable."""
        self.broken: dict[str, str] = {}
        """File -> why it could not be used."""
        self.profiles: defaultdict[tuple[str, str], Profile] = defaultdict(Profile)
        """(implementation, dtype) -> the worst of every number over its cases."""
        self.moved: defaultdict[tuple[str, str], list[Moved]] = defaultdict(list)
        """(implementation, operator) -> what was counted of its cases."""
        self.seconds: Counter[str] = Counter()
        """Phase -> seconds over all cases."""
        self.own: list[float] = []
        """Seconds of each verdict that are neither the kernel's nor the reference's."""
        self.refusals: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Implementation -> reasons of unsupported cases."""
        self.answered: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Implementation -> impossible requests that it does not refuse, and how often it was asked."""
        self.waivers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Implementation -> reasons of waived cases."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Count one record."""
        name, status, cases = record["implementation"], record["status"], record["cases"]
        self.cells[name, record["operator"]][status] += cases
        self.devices[record["device"]][status] += cases
        if "kernel" in record.get("seconds", {}):
            self._add_seconds(record["seconds"])
        if "dtype" in record:
            self.profiles[name, record["dtype"]].add(record)
        if (moved := Moved.of(record)) is not None:
            self.moved[name, record["operator"]].append(moved)
        for request in record.get("accepts_invalid", ()):
            self.answered[name][f"{record['operator']}: {request}"] += 1
        if not record["operator"]:
            self.broken[name] = record["reason"]
        if status == "unavailable":
            self.absent[name] = record["reason"]
        elif status == "unsupported":
            self.refusals[name][record["reason"]] += cases
        elif status == "waived":
            self.waivers[name][record["reason"].partition("\n")[0].removeprefix("waived: ")] += cases

    def _add_seconds(self, seconds: Mapping[str, float]) -> None:
        self.seconds.update(seconds)
        self.own.append(seconds["total"] - seconds["kernel"] - seconds.get("reference", 0.0))

    @property
    def totals(self) -> Counter[str]:
        """Cases by status over everything."""
        return sum(self.cells.values(), Counter())

    @property
    def verified(self) -> int:
        """Cases whose results were compared."""
        return sum(self.totals[status] for status in VERIFIED)

    def verified_on(self, device: str) -> int:
        """Cases whose results on `device` were compared."""
        return sum(self.devices[device][status] for status in VERIFIED)
