"""A summary in Markdown, for a comment on a pull request or the summary of a job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from conformance.implementations.errors import printable
from conformance.reporting.groups import amount
from conformance.reporting.page.sections import sections
from conformance.reporting.page.tables import PASSING, Digest
from conformance.reporting.report import total
from conformance.reporting.table import Table, many

LIMIT = 60_000
"""Largest number of bytes. A comment may have 65,536 characters."""
SHOWN = 20
"""Largest number of lines of a notice, and of groups of failures."""
MAX_TEXT = 700
"""Largest number of characters of a text from a file."""
_SPECIAL = re.compile(r"[\\`*\[\]!|~<>&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""Characters that Markdown, GitHub's mathematics or HTML would act on within a line; each becomes an entity."""
_CALL = re.compile(r"(?<!\w)([@#])(?=\w)")
"""Signs that would notify somebody, or refer to an issue; entities do not prevent that, an invisible space does."""


def summary(digest: Digest, title: str, notes: Sequence[str] = ()) -> str:
    """Return at most LIMIT bytes, the notes first: sections that do not fit are left out and named."""
    kept, size, left_out = [f"# {escaped(title)}\n"], len(title.encode()) + 200, []
    for name, text in (*(("notes", f"**{escaped(note)}**\n") for note in notes), *_sections(digest)):
        weight = len(text.encode()) + 1
        if size + weight > LIMIT:
            left_out.append(name)
        else:
            kept.append(text)
            size += weight
    if left_out:
        kept.append(f"Too long for this summary, see index.html: {', '.join(dict.fromkeys(left_out))}.\n")
    return "\n".join(kept)


def relative(text: str) -> str:
    """Make paths below the current folder relative to it."""
    folder = str(Path.cwd())
    return re.sub(rf"(?<![\w./\\-]){re.escape(folder)}[/\\]", "", text) if Path(folder).name else text


def escaped(text: str) -> str:
    """Return text from a file on one line, without anything that Markdown or HTML would act on; addresses work."""
    words = printable(" ".join(relative(text).split()))
    words = words if len(words) <= MAX_TEXT else f"{words[:MAX_TEXT]} ..."
    parts = re.split(r"(https?://[\w./?=&%#~:,+-]*[\w/=&%#~+-])", words)
    for place, part in enumerate(parts):
        called = _CALL.sub("\\1\u200b", part)
        parts[place] = f"<{part}>" if place % 2 else _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", called)
    return "".join(parts)


def _sections(digest: Digest) -> Iterator[tuple[str, str]]:
    yield "facts", f"{escaped('; '.join(digest.facts))}\n"
    if digest.leads:
        yield "result", f"{escaped(digest.lead)}\n"
    yield from _verdicts(digest)
    if digest.idle:
        yield "idle", f"{escaped(digest.idle)}\n"
    if errors := digest.results.errors:
        lines = "".join(f"- {escaped(line)}\n" for line in errors[:SHOWN])
        yield "errors", f"**{many(len(errors), 'defect')} in the files**\n\n{lines}"
    shown = sections(digest)
    if shown["modules"]:
        yield _titled(shown["modules"])
    yield from _failures(digest)
    if shown["accuracy"]:
        yield _titled(shown["accuracy"])
    for place, banner in enumerate(shown["banners"]):
        head = "" if place else "## Speed\n\n"
        yield (
            "machine",
            f"{head}**{escaped(banner.text)}**\n\n" + "".join(f"- {escaped(why)}\n" for why in banner.reasons),
        )
    networks = [shown["training"]] if shown["training"] else []
    yield from map(_titled, (*reversed(shown["speed_tables"]), *networks, *shown["findings"], *shown["memory"]))
    if shown["unsupported"]:
        yield "unsupported", _folded("Unsupported", _markdown(shown["unsupported"]))


def _verdicts(digest: Digest) -> Iterator[tuple[str, str]]:
    """Yield a line for each kernel; many that pass are one line that opens."""
    for bad in (True, False):
        kernels = [verdict for verdict in digest.report.verdicts if bool(verdict.failed) == bad]
        lines = "".join(f"- {escaped(str(verdict))}\n" for verdict in kernels)
        if kernels:
            yield "verdicts", lines if bad or len(kernels) <= PASSING else _folded(total(kernels), lines)


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{escaped(title)}</summary>\n\n{text}\n</details>\n"


def _titled(table: Table) -> tuple[str, str]:
    return table.title, f"## {escaped(table.title)}\n\n{_markdown(table)}"


def _markdown(table: Table) -> str:
    return "\n".join((*table.markdown(escaped), ""))


def _failures(digest: Digest) -> Iterator[tuple[str, str]]:
    """Yield one group at a time, so that a long group does not take the others with it."""
    entries = [(name, groups, failures) for name, groups in digest.groups for failures in groups]
    head = "## Failures\n\n"
    for name, groups, failures in entries[:SHOWN]:
        if failures is groups[0]:
            head += f"### {escaped(name)}: {amount(groups)}\n\n"
        record = failures.smallest
        heading, observed = digest.report.heading(failures)
        title = f"**{escaped(heading)}**: {failures.counted}"
        title += f"; {escaped(observed)}" if observed else ""
        title += f"; {escaped(failures.shown)}" if failures.shown else ""
        explanation = relative(record.explanation)[:4000]
        again = failures.command and f"reproduce: {relative(failures.command)}"
        text = printable("\n".join(filter(None, (explanation, again))))
        # indented: nothing in it is markup, and no fence can be ended
        code = "\n".join(f"    {line}" for line in text.splitlines())
        yield "failures", f"{head}{title}\n\n{code}\n"
        head = ""
    if len(entries) > SHOWN:
        yield "failures", f"And {many(len(entries) - SHOWN, 'more group')}, see index.html.\n"
