"""The library of known mistakes of all families, which diagnosis compares with and calibration plants."""

from __future__ import annotations

from conformance.operators import FAMILIES
from conformance.operators.mistakes import Mistake

LIBRARY: tuple[Mistake, ...] = tuple(dict.fromkeys(m for family in FAMILIES.values() for m in family.mistakes))


def operators_of(mistake: Mistake) -> tuple[str, ...]:
    """The operators that a mistake exists for: of those families that list it, all or the ones that it names."""
    listed = [
        operator.name for family in FAMILIES.values() if mistake in family.mistakes for operator in family.operators
    ]
    return tuple(name for name in listed if not mistake.operators or name in mistake.operators)


__all__ = ["LIBRARY", "Mistake", "operators_of"]
