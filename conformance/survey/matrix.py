"""What the environments of a survey hold: a row for each implementation, those of variants below their base."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from packaging.utils import canonicalize_name

from conformance.reporting.page.model import Row, operator_place
from conformance.reporting.page.tables import Digest, Tile
from conformance.reporting.tally import Tally
from conformance.results.schema import STATUSES, VERIFIED, Record
from conformance.survey.model import Survey, Surveyed

FAILING = ("fail", "error")
"""Statuses that say that an engine is wrong."""


@dataclass(frozen=True, eq=False)
class Environment:
    """An environment of a survey, with what its records hold.

    slug      its folder in the site: letters, digits and few signs
    digest    None where there are no records, or none that can be read
    notices   what could not be read
    """

    surveyed: Surveyed
    slug: str
    digest: Digest | None = None
    notices: tuple[str, ...] = ()

    @property
    def main(self) -> tuple[str, str]:
        """The engine's package and its version; the version is empty where nothing was installed."""
        engine = canonicalize_name(self.surveyed.engine)
        packages = {canonicalize_name(name): (name, version) for name, version in self.surveyed.packages.items()}
        named = [pair for name, pair in packages.items() if name.startswith(engine)]  # opencv-python-headless of opencv
        return packages.get(engine) or next(iter([*named, *packages.values()]), (engine, self.surveyed.version))

    @property
    def engine(self) -> tuple[str, str]:
        """With the version that was asked for."""
        return self.surveyed.engine, self.surveyed.version

    @property
    def version(self) -> str:
        """Of the engine, as it was installed or asked for."""
        return self.main[1] or self.surveyed.version

    @cached_property
    def plain(self) -> Counter[str]:
        """Cases by status, without those of variants."""
        found: Counter[str] = Counter()
        for verdict in self.digest.results.verdicts if self.digest else ():
            if not parted(verdict.record.implementation)[1]:
                found[verdict.record.status] += verdict.record.cases
        return found

    @property
    def incomplete(self) -> bool:
        """Whether there is more to verify than the records hold."""
        return self.digest is None or bool(self.surveyed.reason or self.notices)


@dataclass(frozen=True, eq=False)
class Line:
    """An implementation on a machine; `base` is what it is a variant of, if that is here."""

    environment: Environment
    row: Row
    base: Row | None
    records: tuple[Record, ...] = field(repr=False)

    @property
    def digest(self) -> Digest:
        """Of its environment."""
        assert self.environment.digest is not None
        return self.environment.digest

    @property
    def name(self) -> str:
        """Of the implementation, with its machine where it ran on several."""
        return self.digest.name(self.row)

    @property
    def place(self) -> tuple[Any, ...]:
        """Sort key: variants after their base."""
        base = self.base or self.row
        return base[0].casefold(), base, self.base is not None, self.row, self.environment.slug

    @cached_property
    def tally(self) -> Tally:
        """What its records amount to."""
        found = Tally()
        for record in self.records:
            found.add(record)
        return found

    @property
    def total(self) -> Tile:
        """All of its cases in one tile."""
        return Tile("", self.tally.totals)

    @property
    def fails(self) -> bool:
        """Whether anything is wrong with it."""
        return self.total.status in FAILING

    def tiles(self, operator: str) -> Sequence[Tile]:
        """By dtype."""
        return self.digest.matrix.get((self.row, operator), [])

    def together(self, operator: str) -> Tile | None:
        """All dtypes of an operator in one tile."""
        counts = sum((tile.counts for tile in self.tiles(operator)), Counter())
        return Tile("", counts) if counts else None

    def failure(self, operator: str, dtype: str) -> int | None:
        """The place of the first group with a failure of a cell among the groups of failures of its environment."""
        places = (
            self.digest.grouped[id(record)][0]
            for record in self.records
            if (record.operator, record.dtype) == (operator, dtype) and id(record) in self.digest.grouped
        )
        return min(places, default=None)


def parted(name: str) -> tuple[str, str]:
    """The implementation and the label in the name of a variant; the label of others is empty."""
    base, bracket, label = name.partition("[")
    return (base, label.removesuffix("]")) if base and bracket and label.endswith("]") else (name, "")


def lines(environments: Iterable[Environment]) -> list[Line]:
    """Every implementation in every environment, in order of names, variants below their base. That may have run in
    another environment of the same engine and version: variants have fewer cases."""
    held: defaultdict[tuple[Environment, Row], list[Record]] = defaultdict(list)
    for environment in environments:
        for verdict in environment.digest.results.verdicts if environment.digest else ():
            if verdict.record.operator:
                held[environment, verdict.row].append(verdict.record)
    known = {(*environment.engine, row[0], row[1].device): row for environment, row in held}
    found = []
    for (environment, row), records in held.items():
        name, label = parted(row[0])
        base = known.get((*environment.engine, name, row[1].device)) if label else None
        found.append(Line(environment, row, base, tuple(records)))
    return sorted(found, key=lambda line: line.place)


def usual(found: Iterable[Line]) -> list[Line]:
    """Rows of the matrix: of engines in their usual version, an implementation once, where it has most cases. One that
    fails elsewhere alone is there twice."""
    chosen: defaultdict[tuple[str, Row], list[Line]] = defaultdict(list)
    for line in sorted(found, key=lambda line: -len(line.records)):
        if not line.environment.surveyed.version:
            held = chosen[line.environment.surveyed.engine, line.row]
            held += [line] if not held or (line.fails and not held[0].fails) else []
    return sorted((line for held in chosen.values() for line in held), key=lambda line: line.place)


def broken(environment: Environment) -> int:
    """Files and tests that could not be used: no row has them."""
    verdicts = environment.digest.results.verdicts if environment.digest else ()
    return sum(verdict.record.cases for verdict in verdicts if not verdict.record.operator)


def operators(found: Iterable[Line]) -> list[str]:
    """Those that one implementation at least was asked to compute."""
    attempted = {r.operator for line in found for r in line.records if r.status in VERIFIED or r.status == "error"}
    return sorted(attempted, key=operator_place)


def counted(counts: Mapping[str, int]) -> dict[str, int]:
    """Cases by status, in the usual order."""
    return {status: counts[status] for status in STATUSES if counts.get(status)}


def document(survey: Survey, run: str, environments: Sequence[Environment]) -> dict[str, Any]:
    """The matrix as data: rows of all environments, those of other versions too."""
    rows = [
        {
            "environment": line.environment.surveyed.name,
            "engine": line.environment.surveyed.engine,
            "version": line.environment.version,
            "usual": not line.environment.surveyed.version,
            "complete": not line.environment.incomplete,
            "implementation": line.row[0],
            "variant_of": line.base[0] if line.base else None,
            "machine": line.row[1].label,
            "counts": counted(line.tally.totals),
            "cells": {
                operator: {tile.dtype or "other": counted(tile.counts) for tile in line.tiles(operator)}
                for operator in line.digest.operators
                if line.tiles(operator)
            },
        }
        for line in lines(environments)
    ]
    missing = [
        {
            "environment": environment.surveyed.name,
            "engine": environment.surveyed.engine,
            "version": environment.version,
            "reason": "; ".join(filter(None, (environment.surveyed.reason, *environment.notices))),
        }
        for environment in environments
        if environment.incomplete
    ]
    facts = {"started": survey.started, "suite": survey.suite, "machine": survey.machine}
    rest = {"level": survey.level, "seed": survey.seed, "rows": rows, "incomplete": missing}
    return {"schema": 1, "run": run, **facts, **rest}
