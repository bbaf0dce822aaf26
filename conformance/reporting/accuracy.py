"""The accuracy profile of an implementation in one dtype: the worst number of every kind over its verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Profile:
    """Worst case over fixed-distribution verdicts; `lambda_share` is the worst error as a share of what the contract
    allows."""

    cases: int = 0
    effective_bits: float = math.inf
    lambda_share: float = 0.0
    rms: float = 0.0
    gain_z: float = 0.0
    offset_z: float = 0.0
    rank: int = -1
    inferred: str = ""
    conservative: bool = True
    repeatable: bool | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in one record; those without a profile only say whether calls repeat to the bit."""
        if "repeatable" in record:
            self.repeatable = record["repeatable"] and self.repeatable is not False
        for output, numbers in record.get("profile", {}).items():
            self._add_numbers({name: float(value) for name, value in numbers.items()})
            self._add_inferred(record["inferred"][output])

    def _add_numbers(self, numbers: Mapping[str, float]) -> None:
        """Bits, gain and offset are known of plain sums only."""
        self.cases += 1
        self.effective_bits = min(self.effective_bits, numbers.get("effective_bits", math.inf))
        self.lambda_share = max(self.lambda_share, numbers["lambda"] / numbers["lambda_limit"])
        self.rms = max(self.rms, numbers["rms"])
        self.gain_z = max(self.gain_z, abs(numbers.get("gain_z", 0.0)))
        self.offset_z = max(self.offset_z, abs(numbers.get("offset_z", 0.0)))

    def _add_inferred(self, inferred: Mapping[str, Any]) -> None:
        self.conservative &= inferred["conservative"]
        if inferred["rank"] > self.rank:
            self.rank, self.inferred = inferred["rank"], inferred["contract"]


HEADINGS = ("implementation", "dtype", "bits", "error", "rms", "gain", "offset", "repeats", "contract inferred")


def table(profiles: Mapping[tuple[str, str], Profile]) -> Iterator[tuple[str, ...]]:
    """Rows of text, headings first; implementations without a fixed-distribution verdict have none."""
    yield HEADINGS
    for (name, dtype), profile in sorted(profiles.items()):
        if profile.cases:
            yield (name, dtype, *_row(profile))


def _short(value: float, digits: int) -> str:
    """A column's width, whatever a wrong kernel does."""
    return f"{value:.{digits}f}" if value < 1000 else f"{value:.0e}"


def _row(profile: Profile) -> tuple[str, ...]:
    bits = "exact" if math.isinf(profile.effective_bits) else f"{profile.effective_bits:.1f}"
    repeats = {None: "?", True: "yes", False: "no"}[profile.repeatable]
    note = " (declares less)" if profile.conservative else ""
    return (
        bits,
        f"{profile.lambda_share:.0%}" if profile.lambda_share < 10 else "> 999%",
        _short(profile.rms, 2),
        _short(profile.gain_z, 1),
        _short(profile.offset_z, 1),
        repeats,
        profile.inferred + note,
    )
