"""A table of text, for the terminal, for Markdown and for the page."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Table:
    """A table: headings, rows of text, and how many columns of names come first; other columns hold numbers, flush
    right."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1
    note: str = ""

    def lines(self, width: int) -> Iterator[str]:
        """Yield aligned lines, headings first, without title and note; last columns that do not fit are only named."""
        # a heading is broken between its words where its column is narrower
        heads = [
            textwrap.wrap(head, max(map(len, (*head.split(), *cells))))
            for head, *cells in zip(self.heads, *self.rows, strict=True)
        ]
        widths = [max(map(len, (*head, *cells))) for head, *cells in zip(heads, *self.rows, strict=True)]
        fit = sum(end <= width for end in accumulate(w + 2 for w in widths))
        depth = max(map(len, heads))
        tops = zip(*([""] * (depth - len(head)) + head for head in heads), strict=True)
        for row in (*tops, *self.rows):
            cells = [
                text.ljust(columns) if place < self.names else text.rjust(columns)
                for place, (text, columns) in enumerate(zip(row, widths, strict=True))
            ]
            yield "  ".join(cells[:fit]).rstrip()
        if fit < len(widths):
            yield f"not shown for want of width: {', '.join(self.heads[fit:])}"

    def markdown(self, escaped: Callable[[str], str] = str) -> Iterator[str]:
        """Yield the lines of a Markdown table and the note below it; `escaped` is for texts that could be markup."""
        marks = ("---" if place < self.names else "--:" for place in range(len(self.heads)))
        lines = [map(escaped, self.heads), marks, *(map(escaped, row) for row in self.rows)]
        yield from (f"| {' | '.join(cells)} |" for cells in lines)
        yield from ("", f"{escaped(self.note)}.") if self.note else ()


def many(count: int, noun: str) -> str:
    """Return a number and the noun that it counts."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
