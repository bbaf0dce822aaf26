"""Reads the tables of problems, text files `operators/FAMILY/problems.txt` with one problem per line.

    # Layers of a network, at reduced size.
    [network]  standard
    run:      fp32 nchw integer,fixed
    in turn:  bf16 nchw fixed / fp16 nchw fixed + fp32 nhwc fixed

    network.first   n1 c3 h64 w64 k64 r7 s7 u2 p3     # the only one with a window of 7
    network.second  n2 c64 h28 w28 k64 r3 s3 p1

A section has a name and the lowest level that runs its problems. `run` lists dtypes, layouts and distributions; each
problem is run in every combination as a variant. There may be several `run` lines. `all` stands for all values. Layouts
are written as in two dimensions, and stand for the same kind in one or three; `grouped` stands for the layouts with
groups as an axis.

`in turn` adds to every row the next of several alternatives, which are separated by `/` and continued by further lines;
`+` joins the parts of one alternative. Mistakes that need a certain shape and a certain dtype together are rare;
mistakes of one shape, or of one dtype, are found either way. With `in turn, one row in 7` only every seventh row takes
an alternative.

`spread: fp32 nchw` says that cases in fp32 nchw at level standard are run in a dtype and layout that the kernel
declares, which differ from row to row (`conformance.execution.share`): networks run in all of them at the cost of one.

A row is a name and a descriptor. Below a line such as `names: sizes.` a row is only a descriptor, and its name is
`sizes.` followed by the descriptor. The ranking decides which problems belong to level smoke. `#` begins a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from conformance.dtypes import DECLARABLE, DTYPES
from conformance.files import LARGEST_SOURCE, content_of
from conformance.layouts import grouped_of, in_rank, layouts_of
from conformance.operators import FAMILIES, GeometryError, parse
from conformance.problems.table import LEVELS, SPARSE, Problem, Variant, grouped, variants
from conformance.resources import of_family

TABLE = "problems.txt"
GROUPED = "grouped"
"""Word in a table for all layouts with groups as an axis."""
_SECTION = re.compile(r"\[([^\]\s]+)\]\s+(\w+)")
_HEADING = re.compile(r"(run|names|in turn|spread)(?:, one row in ([1-9]\d*))?:(.*)")
_NAME = re.compile(r"[\w-]+(\.[\w@-]+)+")


class MalformedTable(ValueError):
    """A table that cannot be read; the message names the file and the line, and says what is expected there."""


@dataclass(slots=True)
class Section:
    """Problems that are run in the same way."""

    name: str
    level: str
    run: list[str] = field(default_factory=list)
    in_turn: list[tuple[str, ...]] = field(default_factory=list)
    """The alternatives, each with one line for `variants` or more."""
    one_in: int = 1
    """One row in this many takes an alternative."""
    prefix: str = ""
    """Beginning of names, if rows are only descriptors."""
    spread: tuple[str, str] | None = None
    """Dtype and layout (written as in two dimensions) whose cases are run in a dtype and layout of the kernel."""
    problems: list[Problem] = field(default_factory=list)


def of_section(family: str, *names: str) -> tuple[Problem, ...]:
    """Return the problems of some sections of a family's table, without the storages that `with_storage` adds."""
    sections = table_of(family)
    return tuple(problem for name in names for problem in sections[name].problems)


@cache
def table_of(family: str) -> dict[str, Section]:
    """Return the sections of a family's table by name. Raises MalformedTable."""
    return read(of_family(family, TABLE), family)


def read(path: Path, family: str) -> dict[str, Section]:
    """Read the sections of a file, by name, in the file's order. Raises MalformedTable."""
    sections: dict[str, Section] = {}
    section: Section | None = None
    line_of: dict[str, int] = {}
    for number, text in _lines(path):
        try:
            if text.startswith("["):
                section = _section(text)
                if section.name in sections:
                    raise MalformedTable(f"there is a section [{section.name}] above; choose another name")
                sections[section.name] = section
            elif section is None:
                raise MalformedTable("stands above the first section; begin one, as with `[edges]  standard`")
            elif heading := _HEADING.fullmatch(text):
                _head(section, family, *heading.groups())
            else:
                problem = _row(section, family, text)
                if problem.name in line_of:
                    raise MalformedTable(
                        f"{problem.name} stands in line {line_of[problem.name]} too; remove one of them"
                    )
                line_of[problem.name] = number
                section.problems.append(problem)
        except MalformedTable as error:
            raise MalformedTable(f"{path}, line {number}: {error}") from None
    for section in sections.values():
        if not section.problems:
            raise MalformedTable(f"{path}: section [{section.name}] has no rows; add some, or remove it")
    return sections


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not empty, with their numbers and without comments."""
    try:
        lines = content_of(path, LARGEST_SOURCE).decode().splitlines()
    except UnicodeDecodeError:
        raise MalformedTable(f"{path}: is not a text file in UTF-8; save it as one") from None
    for number, line in enumerate(lines, 1):
        if text := line.partition("#")[0].strip():
            yield number, text


def _section(text: str) -> Section:
    match = _SECTION.fullmatch(text)
    if not match:
        raise MalformedTable(f"{text!r}: a section begins with its name and level, as `[edges]  standard`")
    name, level = match.groups()
    if level not in LEVELS[1:]:
        hint = " (which the ranking chooses)" if level == LEVELS[0] else ""
        raise MalformedTable(f"{level!r} is no level of a section{hint}; choices: {', '.join(LEVELS[1:])}")
    return Section(name, level)


def _head(section: Section, family: str, key: str, one_in: str | None, text: str) -> None:
    """Add a heading line, such as `run: ...`, to its section."""
    if section.problems:
        raise MalformedTable(f"`{key}:` stands below rows of [{section.name}]; move it above them, or begin a section")
    if one_in and key != "in turn":
        raise MalformedTable(f"`one row in {one_in}` is for `in turn` alone; remove it")
    if key == "names":
        section.prefix = text.strip()
        if not section.prefix.endswith("."):
            raise MalformedTable(f"{section.prefix!r}: what names begin with ends in a point, as `names: sizes.`")
        return
    if key == "spread":
        dtype, _, layout = text.strip().partition(" ")
        if dtype not in DTYPES or layout not in layouts_of(FAMILIES[family].rank):
            raise MalformedTable(f"{text.strip()!r}: must be a dtype and a layout, as `spread: fp32 nchw`")
        section.spread = dtype, layout
        return
    if key == "run":
        section.run.append(_way(family, text))
        return
    section.one_in = int(one_in or section.one_in)
    for alternative in text.split("/"):
        section.in_turn.append(tuple(_way(family, way) for way in alternative.split("+")))


def _way(family: str, text: str) -> str:
    """Return the normalised line for `variants`. Raises MalformedTable if it is not valid for the family."""
    words, rank = text.split(), FAMILIES[family].rank
    if len(words) != 3:
        raise MalformedTable(f"{text.strip()!r}: must be dtypes, layouts and distributions, as `fp32,bf16 nchw fixed`")
    choices = {
        "dtype": DECLARABLE,
        "layout": (*layouts_of(rank), *grouped_of(rank), *[GROUPED][:rank]),
        "distribution": (*FAMILIES[family].distributions, SPARSE),
    }
    for word, (kind, valid) in zip(words, choices.items(), strict=True):
        for name in word.split(",") if word != "all" else ():
            if name not in valid:
                raise MalformedTable(f"{name!r} is no {kind} of {family}; choices: {', '.join(valid)}")
    line = " ".join(words)
    if not _variants(family, (line,), rank):
        raise MalformedTable(f"{line!r}: none of these distributions exists in these dtypes; change one of both")
    return line


def _row(section: Section, family: str, text: str) -> Problem:
    """Return the problem of a line, with the variants of its section and of the next alternative."""
    if section.prefix:
        descriptor = " ".join(text.split())
        name = section.prefix + descriptor.replace(" ", "_")
    else:
        name, descriptor = (*text.split(maxsplit=1), "")[:2]
        if not descriptor or not _NAME.fullmatch(name):
            raise MalformedTable(
                f"{text!r}: must be a name that has a point and a descriptor, as `edge.tall  n2 c5 h12 w10 k7 r5 s1`; "
                "or a heading: run, in turn, names"
            )
    if not (section.run or (section.in_turn and section.one_in == 1)):
        raise MalformedTable(f"[{section.name}] does not say how it is run; add a line as `run: fp32 nchw fixed`")
    try:
        geometry = parse(descriptor)
    except GeometryError as error:
        raise MalformedTable(f"{descriptor!r}: {error}") from None
    if geometry.family != family:
        raise MalformedTable(
            f"{descriptor!r} is a problem of {geometry.family}; move the line to its {TABLE}, or write the "
            f"first word of {family}"
        )
    turn, rest = divmod(len(section.problems), section.one_in)
    alternative = section.in_turn[turn % len(section.in_turn)] if section.in_turn and not rest else ()
    spread = section.spread and (section.spread[0], in_rank(section.spread[1], geometry.rank))
    variants = _variants(family, (*section.run, *alternative), geometry.rank)
    return Problem(name, geometry, section.level, variants, spread=spread)


@cache
def _variants(family: str, lines: tuple[str, ...], rank: int) -> tuple[Variant, ...]:
    """Return the variants of lines like that of `run`, without duplicates."""
    result: list[Variant] = []
    for line in lines:
        dtypes, layouts, distributions = line.split()
        if layouts == GROUPED:
            last = variants(family, f"{dtypes} {layouts_of(2)[1]} {distributions}", rank=rank)
            result += grouped(last, rank)
        else:
            result += variants(family, line, rank=rank)
    return tuple(dict.fromkeys(result))
