"""The regression table: a text file of cases that failed once, for later runs (`--problems FILE`).

A line is a case, `operator | descriptor | dtype layout distribution | seed`. Where a failure needs calls before it in
the same process, they stand before it in the line, with `;` between cases. `#` begins a comment.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from conformance.dtypes import DECLARABLE
from conformance.layouts import grouped_of, layouts_of
from conformance.operators import FAMILIES, OPERATORS, GeometryError, parse, takes
from conformance.problems.table import Variant, applies
from conformance.storage import StorageError

FORM = "operator | descriptor | dtype layout distribution [storage] | seed"


class TableError(ValueError):
    """A file that is no regression table; the message names the file, the line and what must stand there."""


@dataclass(frozen=True, slots=True)
class CaseSpec:
    """One case, whatever the implementation."""

    operator: str
    geometry: Any
    variant: Variant
    seed: int

    @property
    def name(self) -> str:
        """The descriptor in one word."""
        return str(self.geometry.descriptor).replace(" ", "_")

    def __str__(self) -> str:
        how = " ".join(filter(None, astuple(self.variant)))
        return " | ".join((self.operator, self.geometry.descriptor, how, str(self.seed)))


def row(text: str) -> CaseSpec:
    """The case of a text. Raises TableError."""
    parts = [part.strip() for part in text.split("|")]
    if len(parts) != 4 or not 3 <= len(parts[2].split()) <= len(Variant.__dataclass_fields__):
        raise TableError(f"{text.strip()!r}: must be: {FORM}")
    operator, descriptor, how, seed = parts
    if operator not in OPERATORS:
        raise TableError(f"{operator!r} is no operator; choices: {', '.join(OPERATORS)}")
    try:
        geometry = parse(descriptor)
    except GeometryError as error:
        raise TableError(f"{descriptor!r}: {error}") from None
    if not takes(operator, geometry):
        raise TableError(f"{operator} does not take {descriptor!r}")
    variant = Variant(*how.split())
    known, layouts = FAMILIES[geometry.family].distributions, layouts_of(geometry.rank)
    layouts += grouped_of(geometry.rank) if hasattr(geometry, "groups") else ()
    if variant.dtype not in DECLARABLE or variant.layout not in layouts or variant.distribution not in known:
        raise TableError(f"{how!r}: must be a dtype, a layout and a distribution of {geometry.family}")
    if variant.dtype not in OPERATORS[operator].dtypes or not applies(variant.distribution, variant.dtype):
        raise TableError(f"{how!r}: there is no such distribution in {variant.dtype}")
    try:
        stored = variant.suits(operator, geometry)
    except StorageError as error:
        raise TableError(f"{how!r}: storage {error}") from None
    if not (stored and applies(variant.distribution, variant.dtype, variant.storage)):
        raise TableError(f"{how!r}: {operator} has no one right result of {descriptor!r} so, or no operand of the name")
    if not (seed.isascii() and seed.isdigit() and len(seed) <= 18):
        raise TableError(f"{seed!r}: the seed must be a whole number from 0 to 10^18 - 1")
    return CaseSpec(operator, geometry, variant, int(seed))


def rows(text: str) -> tuple[CaseSpec, ...]:
    """The cases of a line, in the order of their calls. Raises TableError."""
    return tuple(map(row, text.split(";")))


def read(path: Path) -> list[tuple[CaseSpec, ...]]:
    """The lines of a file. Raises TableError, and OSError where it cannot be read."""
    found = []
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise TableError(f"{path}: is not a text file in UTF-8") from None
    for number, line in enumerate(lines, 1):
        if text := line.partition("#")[0].strip():
            try:
                found.append(rows(text))
            except TableError as error:
                raise TableError(f"{path}, line {number}: {error}") from None
    return found
