"""What the files of one or several runs hold together."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from conformance.dtypes import STORAGE
from conformance.operators import OPERATORS
from conformance.results.schema import MachineState, Record
from conformance.timing.measurement import Interval, Ratio
from conformance.training.tables import OPERATOR as TRAINING

ORDER = {name: place for place, name in enumerate((*OPERATORS, TRAINING))}
"""Operators as the suite lists them; others come after, by name."""
DTYPES = tuple(STORAGE)
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML 1.0 document may hold, not even escaped, and on which what draws charts ends the process."""
ELEMENTS = "mismatched elements"
"""The check of results that must be exact. Its value is a count, and no share of a bound."""


class ReportError(Exception):
    """No report can be made; the message names the file and says what to do."""


def legible(text: str) -> str:
    """Text with these characters written as Python writes them, so that names stay apart; for whatever is drawn or
    written."""
    return _ILLEGAL.sub(lambda character: f"\\u{ord(character[0]):04x}", text)


@dataclass(frozen=True, slots=True, order=True)
class Machine:
    """Where verdicts were reached. `name` is what the framework or the system calls the device, where it tells."""

    device: str
    name: str = ""
    architecture: str = ""
    system: str = ""

    @classmethod
    def of(cls, record: Record) -> Machine:
        """As far as a record tells."""
        versions, device = record.versions, record.device
        name = versions.get("device", "")
        name = "" if name == device else name
        if device == "cpu":
            name = name or versions.get("processor", "")
        return cls(device, name, versions.get("machine", ""), versions.get("system", ""))

    @property
    def short(self) -> str:
        """The device, by name if it has one."""
        return self.name or self.device or "no device"

    @property
    def label(self) -> str:
        """Everything that tells machines apart."""
        device = f"{self.device} ({self.name})" if self.name else self.device or "no device"
        return ", ".join(filter(None, (device, f"{self.architecture} {self.system}".strip())))


Row = tuple[str, Machine]
"""An implementation on a machine: a row of every table."""


@dataclass(frozen=True, slots=True)
class ReportedVerdict:
    """A record, and what other files say of it.

    replaced   an earlier file had another verdict on the same case
    stale      a later file has verdicts on another source of the implementation
    """

    machine: Machine
    record: Record
    replaced: bool = False
    stale: bool = False

    @property
    def row(self) -> Row:
        return self.record.implementation, self.machine

    @property
    def title(self) -> str:
        """The case in words."""
        names = ("implementation", "operator", "problem", "dtype", "layout", "distribution", "storage", "check")
        return " ".join(filter(None, map(self.record.text, names)))

    @property
    def worst(self) -> float | None:
        """The largest of |value| over limit of the checks that have a bound; None where there are none."""
        shares = []
        for name, (value, limit) in (pair for checks in self.record.checks.values() for pair in checks.items()):
            if name == ELEMENTS:
                continue
            share = abs(float(value)) / (limit if limit > 0 else 1.0)
            shares.append(min(share, 1e300) if share == share else 1e300)
        return max(shares, default=None)

    @property
    def mismatched(self) -> int | None:
        """Elements of all outputs that are not the exact result; None where they need not be."""
        counts = [float(checks[ELEMENTS][0]) for checks in self.record.checks.values() if ELEMENTS in checks]
        return int(sum(counts)) if counts and math.isfinite(sum(counts)) else None


@dataclass(frozen=True, slots=True)
class Clocked:
    """A verified kernel's time.

    share     the roofline's time over it
    finding   why that is above 100%; if it is impossible, the time is shown, but compared with nothing
    interval  holds the time with 95%
    visits    the median of each visit to the kernel; none where the file has no rounds
    ratio     to torch in the same run, where the file has no visits to tell it from
    run       tells runs apart: visits of one follow those of another kernel in the same round
    state     of the machine in that run; None of files that do not judge it
    """

    machine: Machine
    implementation: str
    operator: str
    problem: str
    dtype: str
    layout: str
    seconds: float
    share: float | None = None
    finding: str = ""
    impossible: bool = False
    minimum: float | None = None
    interval: Interval | None = None
    visits: tuple[float, ...] = ()
    ratio: Ratio | None = None
    run: str = ""
    state: MachineState | None = None

    @property
    def usable(self) -> bool:
        """Whether it may be compared."""
        return not self.impossible and not (self.state and self.state.state == "unusable")

    @property
    def steady(self) -> bool:
        """Whether it may stand in a figure over several problems, which has no interval to warn the reader."""
        return self.state is None or self.state.state == "stable"

    @property
    def row(self) -> Row:
        return self.implementation, self.machine


@dataclass(frozen=True, slots=True, order=True)
class Conflict:
    """Two statuses of one case with the same source; the later file's stands."""

    case: str
    machine: str
    earlier: str
    later: str


@dataclass(frozen=True, slots=True)
class Results:
    """Everything, sorted, so that the same records give the same report however they were spread over files."""

    verdicts: tuple[ReportedVerdict, ...]
    clocked: tuple[Clocked, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    errors: tuple[str, ...] = ()
    """Lines that could not be read: file, line, why."""
    hosts: tuple[str, ...] = ()
    """Processors that benchmark files name."""


def operator_place(name: str) -> tuple[int, str]:
    """Sort key of an operator."""
    return ORDER.get(name, len(ORDER)), name


def dtype_place(name: str) -> tuple[int, str]:
    """Sort key of a dtype; what has none comes last."""
    return (DTYPES.index(name) if name in DTYPES else len(DTYPES) + (not name)), name
