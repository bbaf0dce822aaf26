"""A summary in Markdown, for a comment on a pull request or the summary of a job."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from conformance.reporting.page import since, tables
from conformance.reporting.page.context import lead, notices
from conformance.reporting.page.tables import Digest, Table, Tile
from conformance.reporting.tally import STATUSES
from conformance.reporting.terminal import LEGEND, LETTERS

LIMIT = 60_000
"""Bytes. A comment may have 65,536 characters."""
SHOWN = 20
"""Failures with their diagnosis."""
LONGEST = 700
"""Characters of a text from elsewhere."""
_SPECIAL = re.compile(r"[\\`*\[\]!|~<>&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""What Markdown, GitHub's mathematics or HTML would act on in the middle of a line; each becomes an entity."""
_CALL = re.compile(r"(?<!\w)([@#])(?=\w)")
"""What would notify somebody, or refer to an issue; entities would not prevent it, an invisible space does."""


def summary(digest: Digest, title: str) -> str:
    """At most LIMIT bytes: sections that do not fit are left out and named."""
    kept, size, left_out = [f"# {escaped(title)}\n"], len(title.encode()) + 200, []
    for name, text in _sections(digest):
        weight = len(text.encode()) + 1
        if size + weight > LIMIT:
            left_out.append(name)
        else:
            kept.append(text)
            size += weight
    if left_out:
        kept.append(f"Too long for this summary, see index.html: {', '.join(left_out)}.\n")
    return "\n".join(kept)


def escaped(text: str) -> str:
    """Text from elsewhere on one line, with nothing in it that Markdown or HTML would act on; addresses work."""
    words = " ".join(text.split())
    words = words if len(words) <= LONGEST else f"{words[:LONGEST]} ..."
    parts = re.split(r"(https?://[\w./?=&%#~:,+-]*[\w/=&%#~+-])", words)
    return "".join(f"<{p}>" if place % 2 else _plain(p) for place, p in enumerate(parts))


def _plain(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", _CALL.sub("\\1\u200b", text))


def _code(text: str) -> str:
    """Lines as they are, indented: nothing in them is markup, and no fence can be ended."""
    return "\n".join(f"    {line}" for line in text[:4000].splitlines())


def _sections(digest: Digest) -> Iterator[tuple[str, str]]:
    counts = ", ".join(f"**{digest.totals[s]:,}** {s}" for s in STATUSES if digest.totals[s])
    of = f"{digest.cases:,} cases" + (f", level {escaped(', '.join(digest.levels))}" if digest.levels else "")
    yield "counts", f"{escaped(lead(digest))}\n\n{of}: {counts or 'none'}.\n"
    for notice in notices(digest):
        lines = "".join(f"- {escaped(line)}\n" for line in notice.lines[:SHOWN])
        yield "notices", f"**{escaped(notice.title)}**\n\n{lines}"
    yield from _failures(digest)
    yield "matrix", f"## Matrix\n\n{_grid(_matrix(digest))}\n{LEGEND}\n"
    speeds = tables.speed_tables(digest, tables.speeds(digest))
    profile, trained = tables.profiles(digest), tables.training(digest)
    yield from ((t.title, f"## {escaped(t.title)}\n\n{_grid(t)}") for t in (profile, *reversed(speeds), trained) if t)
    for step in since.changes(list(since.steps(digest.results.runs))):
        yield "history", f"## {escaped(step.title)}\n\n{_grid(step)}\n{escaped(step.note)}.\n"
    for status in ("waived", "unavailable", "unsupported"):
        lines = "".join(f"- {escaped(n)}: {count:,} x {escaped(why)}\n" for n, count, why in digest.reasons(status))
        if lines:
            yield status, f"## {status.capitalize()}\n\n{lines}"
    yield from ((t.title, f"## {escaped(t.title)}\n\n{_grid(t)}") for t in tables.memory(digest))


def _failures(digest: Digest) -> Iterator[tuple[str, str]]:
    """One at a time, so that a long one does not take the others with it."""
    failures = digest.failures
    for place, verdict in enumerate(failures[:SHOWN]):
        head = f"## Failures ({len(failures):,})\n\n" if place == 0 else ""
        command = verdict.text("command")
        told = f"{verdict.record['reason']}\n" + (f"reproduce: {command}" if command else "")
        yield f"failure {place + 1}", f"{head}**{verdict.status}** {escaped(verdict.title)}\n\n{_code(told)}\n"


def _matrix(digest: Digest) -> Table:
    rows = [
        (digest.name(row), *(_cell(digest.matrix.get((row, operator), ())) for operator in digest.operators))
        for row in digest.rows
    ]
    return Table("", ("implementation", *digest.operators), tuple(rows))


def _cell(tiles: Iterable[Tile]) -> str:
    counts = sum((tile.counts for tile in tiles), start=Counter())
    return " ".join(f"{counts[s]}{LETTERS[s]}" for s in STATUSES if counts[s]) or "-"


def _grid(table: Table) -> str:
    """A table with a note below it."""
    marks = ["---" if place < table.names else "--:" for place in range(len(table.heads))]
    lines = [_line(map(escaped, table.heads)), _line(marks), *(_line(map(escaped, row)) for row in table.rows)]
    return "\n".join((*lines, *(["", escaped(table.note)] if table.note else []), ""))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
