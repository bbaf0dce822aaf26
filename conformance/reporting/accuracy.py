"""The accuracy profile of an implementation in one dtype: the worst number of every kind over its verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from conformance.dtypes import dtype_place
from conformance.reporting.table import Table
from conformance.results.schema import CheckRecord, Inferred, Record


@dataclass(slots=True)
class AccuracyProfile:
    """Worst values over the verdicts on the fixed distribution; `share` is the worst error as a share of what the
    contract allows."""

    cases: int = 0
    effective_bits: float = math.inf
    share: float = 0.0
    rms: float = 0.0
    gain_z: float = 0.0
    offset_z: float = 0.0
    inferred: Inferred | None = None
    conservative: bool = True
    repeatable: bool | None = None

    def add(self, record: Record) -> None:
        """Add one record; a record without a profile only says whether calls repeat to the bit."""
        if isinstance(record, CheckRecord) and record.facts.repeatable is not None:
            self.repeatable = record.facts.repeatable and self.repeatable is not False
        for profile in record.profile.values():
            bits = math.inf if profile.effective_bits is None else float(profile.effective_bits)
            self.cases += 1
            self.effective_bits = min(self.effective_bits, bits)
            self.share = max(self.share, math.inf if math.isnan(profile.share) else profile.share)
            self.rms = max(self.rms, float(profile.rms))
            self.gain_z = max(self.gain_z, abs(float(profile.gain_z or 0)))
            self.offset_z = max(self.offset_z, abs(float(profile.offset_z or 0)))
            self.conservative &= profile.inferred.conservative
            if self.inferred is None or profile.inferred.rank > self.inferred.rank:
                self.inferred = profile.inferred


HEADS = ("implementation", "dtype", "bits", "error", "rms", "gain", "offset", "repeats", "inferred precision")
NOTE = (
    "bits: input precision that the worst error of a plain sum leaves; error: the worst, as a share of what the "
    "contract allows; rms, gain, offset: statistics of whole tensors; repeats: whether calls repeat to the bit; "
    "conservative: the contract declares less precision than was inferred"
)


def table(profiles: Mapping[tuple[str, str], AccuracyProfile]) -> Table | None:
    """Return the table of profiles, without those of errors that exceed the contract: they say nothing about precision.
    None if no implementation has a fixed-distribution verdict."""
    rows, beyond = [], []
    for (name, dtype), profile in sorted(profiles.items(), key=lambda item: (item[0][0], dtype_place(item[0][1]))):
        if profile.share > 1:
            beyond.append(f"{name} {dtype}")
        elif profile.inferred is not None:
            row = (
                name,
                dtype,
                "exact" if math.isinf(profile.effective_bits) else f"{profile.effective_bits:.1f}",
                f"{profile.share:.0%}",
                _short(profile.rms, 2),
                _short(profile.gain_z, 1),
                _short(profile.offset_z, 1),
                {None: "?", True: "yes", False: "no"}[profile.repeatable],
                profile.inferred.precision + (" (conservative)" if profile.conservative else ""),
            )
            rows.append(row)
    note = NOTE + (f"; left out, because errors exceed the contract: {', '.join(beyond)}" if beyond else "")
    return Table("Accuracy profile", HEADS, tuple(rows), 2, note) if rows else None


def _short(value: float, digits: int) -> str:
    """Format a number within a column's width, whatever a wrong kernel returns."""
    return f"{value:.{digits}f}" if value < 1000 else f"{value:.0e}"
