"""The site's first page: the matrix, accuracy, variants, versions, and what could not be run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from conformance.reporting import accuracy, reproduce
from conformance.reporting.groups import described
from conformance.reporting.page import render
from conformance.reporting.page.context import GROUPS, LEGEND
from conformance.reporting.page.model import dtype_place, legible
from conformance.reporting.page.tables import Tile
from conformance.reporting.table import many
from conformance.reporting.terminal import LETTERS
from conformance.results.schema import VERIFIED
from conformance.survey.changes import Change, Difference, changes, differences, histories
from conformance.survey.matrix import Environment, Line, counted, lines, operators, parted, usual
from conformance.survey.model import Survey

TITLE = "Conformance of convolution, pooling and batch normalisation"
TEMPLATES = files("conformance.survey") / "templates"
MAX_CHANGES = 60
"""Groups of changes that are shown of an engine."""


@dataclass(frozen=True, slots=True)
class SurveyRun:
    """A survey in the site."""

    id: str
    started: datetime
    survey: Survey

    @property
    def date(self) -> str:
        return f"{self.started.day} {self.started:%B %Y}"


def page(run: SurveyRun, environments: Sequence[Environment], earlier: Sequence[SurveyRun], top: bool) -> str:
    """The page as text: for the top of the site, or for the run's own folder, where it stays."""
    css = Markup("\n").join(
        Markup((folder / name).read_text(encoding="utf-8"))
        for folder, name in ((render.TEMPLATES, "page.css"), (TEMPLATES, "survey.css"))
    )
    every = lines(environments)
    found = usual(every)
    prefix = f"runs/{run.id}/" if top else ""
    rows = [_row(line, prefix, place) for place, line in enumerate(found)]
    parts = {
        "accuracy": _accuracy(found),
        "variants": [_variant(one) for one in differences(every)],
        "versions": [_history(engine, held, prefix) for engine, held in histories(environments).items()],
        "missing": list(_missing(environments)),
    }
    names = {"matrix": "Matrix", "accuracy": "Accuracy", "variants": "Variants", "versions": "Versions"}
    names |= {"missing": "Not run", "reproduce": "Reproduce", "runs": "Runs"}
    rendered: str = (
        _templates()
        .get_template("survey.html")
        .render(
            title=TITLE,
            css=css,
            policy=f"default-src 'none'; style-src '{render.content_hash(css)}'; base-uri 'none'; form-action 'none'",
            sections=[(id, name) for id, name in names.items() if parts.get(id, True)],
            lead=lead(found),
            run=run,
            top=top,
            prefix=prefix,
            verified=sum(line.tally.totals[status] for line in found for status in VERIFIED),
            engines=len({line.environment.surveyed.engine for line in found}),
            operators=operators(found),
            rows=rows,
            legend=[(status, LETTERS[status], says) for status, says in LEGEND.items()],
            environments=[_environment(one, prefix) for one in environments],
            command=again(run.survey),
            earlier=earlier,
            **parts,
        )
    )
    return legible(rendered)


def lead(found: Sequence[Line]) -> list[tuple[str, str, list[str]]]:
    """(Status, what is said, implementations that it is true of), without variants."""
    right: list[str] = []
    wrong: list[str] = []
    rest: list[str] = []
    for line in (line for line in found if line.base is None):
        (wrong if line.fails else right if line.tally.verified else rest).append(line.name)
    said: list[tuple[str, str, list[str]]] = [
        ("fail", "Wrong results, or errors", wrong),
        ("pass", "All that was verified is right", right),
        ("unsupported", "Nothing was verified", rest),
    ]
    return [(status, f"{text} ({len(names)}):", names) for status, text, names in said if names]


def again(survey: Survey) -> str:
    """The command that makes the survey again."""
    engines = dict.fromkeys(one.engine for one in survey.environments if not one.version)
    others = (["--versions", f"{one.engine}=={one.version}"] for one in survey.environments if one.version)
    words = ["conformance", "survey", *engines, *(word for pair in others for word in pair)]
    return shlex.join([*words, "--level", survey.level, "--seed", str(survey.seed)])


def link(environment: Environment, prefix: str, place: int | None = None) -> str:
    """The address of its page, or of one of the groups of failures there; empty where there is none."""
    if environment.digest is None:
        return ""
    anchor = "" if place is None else f"#failure-{place}" if place < GROUPS else "#failures"
    return f"{prefix}{environment.slug}/index.html{anchor}"


def _row(line: Line, prefix: str, place: int) -> dict[str, Any]:
    environment = line.environment
    package, version = environment.main
    cells, glance = [], []
    for operator in line.digest.operators:
        tiles = [_tile(line, operator, tile, prefix) for tile in line.tiles(operator)]
        together = line.together(operator)
        cells.append((operator, tiles))
        glance += [(operator, _tile(line, operator, together, prefix))] if together else []
    return {
        "id": f"row-{place}",
        "name": line.name if line.base is None else f"[{parted(line.row[0])[1]}]",
        "full": line.name,
        "variant": line.base is not None,
        "version": f"{package} {version}".strip(),
        "machine": line.row[1].short,
        "incomplete": environment.incomplete,
        "counts": list(counted(line.tally.totals).items()),
        "status": line.total.status,
        "link": link(environment, prefix),
        "cells": dict(cells),
        "glance": dict(glance),
    }


def _tile(line: Line, operator: str, tile: Tile, prefix: str) -> dict[str, Any]:
    """The status that colours it, its counts, and where its failures are."""
    dtypes = [tile.dtype] if tile.dtype else [one.dtype for one in line.tiles(operator)]
    places = [place for dtype in dtypes if (place := line.failure(operator, dtype)) is not None]
    return {
        "status": tile.status,
        "dtype": tile.dtype or "other",
        "counts": [(status, f"{count:,}{LETTERS[status]}") for status, count in counted(tile.counts).items()],
        "failing": tile.counts["fail"] + tile.counts["error"],
        "weak": tile.weak,
        "label": f"{line.name}, {operator}{', ' * bool(tile.dtype)}{tile.dtype}: {tile.words}"
        + (f"; contract: {tile.weak}" if tile.weak else ""),
        "link": link(line.environment, prefix, min(places)) if places else "",
    }


def _accuracy(found: Sequence[Line]) -> dict[str, Any] | None:
    """Names of dtypes, and rows of (bits, worst error, rms, whether that exceeds the contract) for each of them: an
    error that exceeds it says nothing of precision."""
    rows = []
    for line in found:
        profiles = line.tally.profiles
        exceeds = {dtype for (_, dtype), profile in profiles.items() if not profile.share <= 1}
        cells = {
            dtype: ("-", error, "-", True) if dtype in exceeds else (bits, error, rms, False)
            for _, dtype, bits, error, rms, *_ in accuracy.rows(profiles)
        }
        rows += [(line.name, line.base is not None, cells)] if cells else []
    dtypes = sorted({dtype for _, _, cells in rows for dtype in cells}, key=dtype_place)
    return {"dtypes": dtypes, "rows": rows} if rows else None


def _variant(one: Difference) -> dict[str, Any]:
    base = one.line.base
    return {
        "name": one.line.name,
        "base": base[0] if base else "",
        "share": f"{one.differing / one.shared:.1%}" if one.shared else "-",
        "shared": f"{one.shared:,}",
        "broken": f"{one.broken:,}",
        "words": one.words,
        "same": not one.differing,
    }


def _history(engine: str, history: Sequence[Environment], prefix: str) -> dict[str, Any]:
    found = changes(history)
    versions = [
        {
            "version": environment.version,
            "counts": environment.plain,
            "link": link(environment, prefix),
            "note": "incomplete" if environment.incomplete else "",
        }
        for environment in history
    ]
    shown = [_change(one, prefix) for one in found[:MAX_CHANGES]]
    return {"engine": engine, "versions": versions, "changes": shown, "more": len(found) - len(shown)}


def _change(one: Change, prefix: str) -> dict[str, Any]:
    first = one.records[0]
    return {
        "status": "fail" if one.bad or one.kind.startswith("fails") else "pass" if one.kind == "fixed in" else "other",
        "title": f"{one.kind} {one.version}",
        "what": " ".join(filter(None, (one.operator, one.dtype))) + (f": {one.failure}" if one.failure else ""),
        "implementation": one.implementation,
        "before": one.before,
        "cases": many(sum(record.cases for record in one.records), "case"),
        "example": described(first),
        "command": reproduce.command(first),
        "version": one.environment.version,
        "link": link(one.environment, prefix, one.place),
    }


def _missing(environments: Sequence[Environment]) -> Iterator[dict[str, Any]]:
    """Engines that could not be installed or run, or not to the end, with the reason."""
    for environment in environments:
        one, digest = environment.surveyed, environment.digest
        reasons = [one.reason] if one.reason else []
        reasons += environment.notices
        if digest is not None:
            reasons += [v.record.reason for v in digest.results.verdicts if not v.record.operator]
            reasons += [why for _, _, why in digest.reasons("unavailable")]
        if not reasons and (digest is None or not digest.verified):
            reasons = ["no records" if digest is None else "nothing was verified"]
        if reasons:
            what = "not run" if digest is None else "incomplete" if digest.verified else "nothing verified"
            yield {"name": one.name, "version": environment.version, "what": what, "reasons": reasons[:20]}


def _environment(environment: Environment, prefix: str) -> dict[str, Any]:
    one = environment.surveyed
    return {
        "name": one.name,
        "packages": ", ".join(f"{name} {version}" for name, version in sorted(one.packages.items())),
        "seconds": f"{one.run_s:,.0f}",
        "link": link(environment, prefix),
        "records": f"{prefix}records/{environment.slug}.jsonl.gz" if environment.digest else "",
    }


@cache
def _templates() -> jinja2.Environment:
    """Those of the report's page, with its filters, and the survey's own."""

    def source(name: str) -> str:
        folder = TEMPLATES if name.startswith("survey") else render.TEMPLATES
        return (folder / name).read_text(encoding="utf-8")

    return render.template_environment().overlay(loader=jinja2.FunctionLoader(source))
