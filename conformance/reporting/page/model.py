"""The merged contents of the files of one or several runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from conformance.dtypes import STORAGE
from conformance.reporting.tally import operator_place as operator_place
from conformance.results.schema import Record, Timing
from conformance.timing.measurement import Interval

DTYPES = tuple(STORAGE)
ELEMENTS = "mismatched elements"
"""The check of results that must be exact. Its value is a count, not a share of a bound."""
NOT_JUDGED = "not judged"
"""State of a machine about which a file says nothing."""


@dataclass(frozen=True, slots=True, order=True)
class Machine:
    """Where verdicts were reached. `name` is the framework's or the system's name of the device, if it is known."""

    device: str
    name: str = ""
    architecture: str = ""
    system: str = ""

    @classmethod
    def of(cls, record: Record) -> Machine:
        """Return the machine of a record, as far as the record describes it."""
        versions, device = record.versions, record.device
        name = versions.get("device", "")
        name = "" if name == device else name
        if device == "cpu":
            name = name or versions.get("processor", "")
        return cls(device, name, versions.get("machine", ""), versions.get("system", ""))

    @property
    def short(self) -> str:
        """Name of the device, or its kind if it has no name."""
        return self.name or self.device or "no device"

    @property
    def label(self) -> str:
        """Text that contains everything that distinguishes machines."""
        device = f"{self.device} ({self.name})" if self.name else self.device or "no device"
        return ", ".join(filter(None, (device, f"{self.architecture} {self.system}".strip())))


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """When a run began and ended; the same time twice if the end is unknown."""

    began: datetime
    ended: datetime

    @classmethod
    def of(cls, began: str, ended: str = "") -> Period | None:
        """Parse the times in a file; None if they are not times."""
        try:
            first, last = (datetime.fromisoformat(text).astimezone(UTC) for text in (began, ended or began))
        except (ValueError, OverflowError):
            return None
        return cls(first, last)

    def __str__(self) -> str:
        """`26 November 2026, 11:02 UTC, 3 min`."""
        text = f"{self.began.day} {self.began:%B %Y, %H:%M} UTC"
        seconds = (self.ended - self.began).total_seconds()
        if seconds <= 0:
            return text
        return f"{text}, {seconds:.0f} s" if seconds < 100 else f"{text}, {seconds / 60:.0f} min"


Row = tuple[str, Machine]
"""An implementation on a machine: a row of every table."""


@dataclass(frozen=True, slots=True)
class ReportedVerdict:
    """A record, and the machine that it was reached on."""

    machine: Machine
    record: Record

    @property
    def row(self) -> Row:
        return self.record.implementation, self.machine

    @property
    def worst(self) -> float | None:
        """The largest |value| / limit of the checks that have a bound; None if there are none."""
        shares = []
        for name, (value, limit) in (pair for checks in self.record.checks.values() for pair in checks.items()):
            if name == ELEMENTS:
                continue
            share = abs(float(value)) / (limit if limit > 0 else 1.0)
            shares.append(min(share, 1e300) if share == share else 1e300)
        return max(shares, default=None)

    @property
    def mismatched(self) -> int | None:
        """Number of elements of all outputs that differ from the exact result; None if they may differ."""
        counts = [float(checks[ELEMENTS][0]) for checks in self.record.checks.values() if ELEMENTS in checks]
        return int(sum(counts)) if counts and math.isfinite(sum(counts)) else None


@dataclass(frozen=True, slots=True)
class Clocked:
    """A verified kernel's time, with the record of the verdict before it.

    share     the roofline's time over it
    timing    further measurements of the run
    visits    the median of each visit to the kernel; empty if the file has no rounds
    run       distinguishes runs: visits of one follow those of another kernel in the same round
    """

    machine: Machine
    record: Record
    seconds: float
    timing: Timing
    share: float | None = None
    visits: tuple[float, ...] = ()
    run: str = ""

    @property
    def implementation(self) -> str:
        return self.record.implementation

    @property
    def operator(self) -> str:
        return self.record.operator

    @property
    def problem(self) -> str:
        """Problem, with dtype and layout if they are not the default."""
        variant = self.record.dtype, self.record.layout
        return " ".join((self.record.problem, *(() if variant == ("fp32", "nchw") else variant)))

    @property
    def finding(self) -> str:
        """Reason for a share of the roofline above 100%; if that is impossible, the time is compared with nothing."""
        return self.timing.doubt or self.timing.finding

    @property
    def impossible(self) -> bool:
        return bool(self.timing.doubt)

    @property
    def interval(self) -> Interval | None:
        """The 95% interval of the time."""
        low, high = self.timing.low_s, self.timing.high_s
        return (low, high) if low and high and low <= high else None

    @property
    def state(self) -> str:
        """State of the machine in that run."""
        return self.timing.machine.state if self.timing.machine else NOT_JUDGED

    @property
    def usable(self) -> bool:
        """True if the time may be compared."""
        return not self.impossible and self.state != "unusable"

    @property
    def steady(self) -> bool:
        """True if the time may be part of a figure over several problems, which has no interval to warn the reader."""
        return self.state in ("stable", NOT_JUDGED)

    @property
    def row(self) -> Row:
        return self.implementation, self.machine


@dataclass(frozen=True, slots=True)
class Results:
    """All results, sorted, so that the same records give the same report however they were spread over files."""

    verdicts: tuple[ReportedVerdict, ...]
    clocked: tuple[Clocked, ...] = ()
    errors: tuple[str, ...] = ()
    """Defects of the files: file, line, reason."""
    periods: tuple[Period, ...] = ()
    """Times of the runs, the first one first."""
    chosen: tuple[str, ...] = ()
    """Options by which every run was of some cases only, as words of a command line; empty if one was of all."""
