"""The accuracy profile of an implementation in one dtype: the worst number of every kind over its verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
        for found in record.profile.values():
            bits = math.inf if found.effective_bits is None else float(found.effective_bits)
            self.cases += 1
            self.effective_bits = min(self.effective_bits, bits)
            self.share = max(self.share, found.share)
            self.rms = max(self.rms, float(found.rms))
            self.gain_z = max(self.gain_z, abs(float(found.gain_z or 0)))
            self.offset_z = max(self.offset_z, abs(float(found.offset_z or 0)))
            self.conservative &= found.inferred.conservative
            if self.inferred is None or found.inferred.rank > self.inferred.rank:
                self.inferred = found.inferred


HEADS = ("implementation", "dtype", "bits", "error", "rms", "gain", "offset", "repeats", "inferred precision")
NOTE = (
    "bits: input precision that the worst error of a plain sum leaves; error: the worst, as a share of what the "
    "contract allows; rms, gain, offset: statistics of whole tensors; repeats: whether calls repeat to the bit; "
    "conservative: the contract declares less precision than was inferred"
)


def rows(profiles: Mapping[tuple[str, str], AccuracyProfile]) -> Iterator[tuple[str, ...]]:
    """Yield rows of text by implementation and dtype; none for implementations without a fixed-distribution verdict."""
    for (name, dtype), found in sorted(profiles.items()):
        if found.inferred is None:
            continue
        yield (
            name,
            dtype,
            "exact" if math.isinf(found.effective_bits) else f"{found.effective_bits:.1f}",
            f"{found.share:.0%}" if found.share < 10 else "> 999%",
            _short(found.rms, 2),
            _short(found.gain_z, 1),
            _short(found.offset_z, 1),
            {None: "?", True: "yes", False: "no"}[found.repeatable],
            found.inferred.precision + (" (conservative)" if found.conservative else ""),
        )


def _short(value: float, digits: int) -> str:
    """Format a number within a column's width, whatever a wrong kernel returns."""
    return f"{value:.{digits}f}" if value < 1000 else f"{value:.0e}"
