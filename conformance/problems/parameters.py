"""A geometry as a flat dictionary of whole numbers, to draw, change or shrink problems of any family.

A name is the letter of a convolution's descriptor, followed by an index if the field has several numbers: `u0 u1` are
the strides, `p0 p1 p2 p3` the padding above, below, left and right. `c` and `k` are counted within a group, so that
every number of groups fits. 0 stands for an absent divisor. A factor is counted in parts of 1. A
word stands for its place among those of its field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache, lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from conformance.operators import FAMILIES
from conformance.operators.descriptor import DECIMAL, EXTENTS, FLAG, NEGATED_FLAG, PARTS, SIDES, Field, rank_of
from conformance.operators.spatial import RESULT, GeometryError
from conformance.problems.table import Variant

Parameters = dict[str, int]
Feature = tuple[str, Any]
"""Name of a parameter, and the bucket that its value falls into."""

BUCKETS = (5, 8, 16, 64, 256, 4096)
"""Largest value of each bucket; values up to the first have a bucket each."""


@cache
def _names(field: Field, rank: int) -> list[str]:
    count = rank * {EXTENTS[rank]: 1, SIDES[rank]: 2}.get(field.form, 0) if rank else 0
    return [f"{field.role}{place}" for place in range(count)] or [field.role]


def _simplest(field: Field) -> int:
    """Return the default of an option; for other fields, the smallest possible value."""
    if field.attribute in ("padding", "output_padding") or field.default is None:
        return 0
    if field.form is DECIMAL:
        return int(field.default * PARTS)
    if field.form.words:
        return field.form.words.index(field.default)
    return int(field.default) if isinstance(field.default, int) else field.least


SIMPLEST: dict[tuple[str, int], Parameters] = {
    (name, rank): {part: _simplest(field) for field in fields for part in _names(field, rank)}
    for name, family in FAMILIES.items()
    for rank, fields in family.geometry.FIELDS.items()
}
"""(family, rank) -> values that a problem is shrunk towards."""


def parameters(geometry: Any) -> Parameters:
    """Return a geometry's parameters."""
    values: Parameters = {}
    for field in geometry.fields:
        value = field.of(geometry)
        parts = [value] if not isinstance(value, tuple) else value
        if field.attribute == "padding":
            parts = [side for sides in value for side in sides]
        if field.form is DECIMAL:
            parts = [value * PARTS]
        if field.form.words:
            parts = [field.form.words.index(value)]
        values |= zip(_names(field, geometry.rank), (int(part or 0) for part in parts), strict=True)
    for field in geometry.fields if "g" in values else ():
        if field.role in "ck" and not field.per_group:
            values[field.role] //= values["g"]
    return values


def geometry(family: str, parameters: Mapping[str, int]) -> Any:
    """Return the geometry with these parameters. Raises GeometryError."""
    kind = FAMILIES[family].geometry
    rank = FAMILIES[family].rank and rank_of(parameters)
    values: dict[str, Any] = {}
    for field in kind.FIELDS[rank]:
        parts = [parameters[name] for name in _names(field, rank)]
        value: Any = parts[0]
        if field.form in (FLAG, NEGATED_FLAG):
            value = bool(value)
        elif field.form is DECIMAL:
            value /= PARTS
        elif field.form.words:
            if not 0 <= value < len(field.form.words):
                raise GeometryError(f"{field.letter} has {len(field.form.words)} words; there is no word {value}")
            value = field.form.words[value]
        elif rank and field.form is EXTENTS[rank]:
            value = tuple(parts)
        elif rank and field.form is SIDES[rank]:
            value = tuple(zip(parts[::2], parts[1::2], strict=True))
        elif field.default is None:
            value = value or None
        elif field.role in "ck" and "g" in parameters and not field.per_group:
            value *= parameters["g"]
        field.put(values, value)
    return kind(**values)


@lru_cache(maxsize=1 << 12)
def cost(geometry: Any) -> tuple[int, int]:
    """Return FLOPs and elements, including those of the padded image, of the family's most expensive operator."""
    operators = FAMILIES[geometry.family].operators
    image = math.prod(size + sum(sides) for size, sides in zip(geometry.size, geometry.padding, strict=True))
    elements = geometry.n * geometry.c * image + max(operator.elements(geometry) for operator in operators)
    return max(operator.flops(geometry) for operator in operators), elements


def bucket(value: int) -> int:
    """Return the largest value of the bucket that a value falls into."""
    return value if value <= BUCKETS[0] else next((most for most in BUCKETS if value <= most), 1 << 62)


def features(geometry: Any, variant: Variant | None = None) -> list[Feature]:
    """Return the features of a case: its parameters and its output's extents by bucket, and its variant."""
    buckets: dict[str, Any] = {name: bucket(value) for name, value in parameters(geometry).items()}
    buckets |= zip(RESULT[geometry.rank].upper(), map(bucket, geometry.output_size), strict=True)
    if variant is not None:
        buckets |= {field.name: getattr(variant, field.name) for field in fields(variant)}
    return [*buckets.items()]


class Coverage:
    """Features, pairs of features and (with `width` 3) triples that occurred in the cases of an operator."""

    VALUES = 16
    """Largest number of values of a parameter that are distinguished."""

    def __init__(self, width: int = 2) -> None:
        self._width = width
        self._ids: list[dict[Any, int]] = []
        self._places: list[np.ndarray] = []
        self._seen: list[np.ndarray] = []

    def _codes(self, case_features: list[Feature]) -> list[np.ndarray]:
        """Return, for each size up to `width`, the codes of the values of all combinations of `size` parameters."""
        if not self._ids:
            self._ids = [{} for _ in case_features]
            for size in range(1, self._width + 1):
                self._places.append(np.array([*combinations(range(len(case_features)), size)]))
                self._seen.append(np.zeros((len(self._places[-1]), self.VALUES**size), bool))
        values = [
            min(ids.setdefault(v, len(ids)), self.VALUES - 1)
            for ids, (_, v) in zip(self._ids, case_features, strict=True)
        ]
        return [np.array(values)[places] @ self.VALUES ** np.arange(places.shape[1]) for places in self._places]

    def add(self, case_features: list[Feature]) -> None:
        for codes, covered in zip(self._codes(case_features), self._seen, strict=True):
            covered[np.arange(len(codes)), codes] = True

    def new(self, case_features: list[Feature]) -> int:
        """Count features and pairs that no case had. A feature weighs as much as all of its pairs (about twenty)."""
        single, pairs, *_ = (
            int(np.count_nonzero(~covered[np.arange(len(codes)), codes]))
            for codes, covered in zip(self._codes(case_features), self._seen, strict=True)
        )
        return len(case_features) * single + pairs

    def share(self, size: int) -> tuple[int, int]:
        """Return how many combinations of `size` features occurred, and how many the values that occurred could form.

        Some combinations exist in no problem, such as a window of 5 in an unpadded image of 3.
        """
        if not self._seen:
            return 0, 0
        counts = self._seen[0].sum(axis=1)
        return int(self._seen[size - 1].sum()), int(counts[self._places[size - 1]].prod(axis=1).sum())
