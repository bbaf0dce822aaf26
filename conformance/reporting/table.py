"""A table of text, for the terminal, for Markdown and for the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Headings, rows of text, and how many columns of names come first; the others are numbers, flush right."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1
    note: str = ""

    def lines(self) -> Iterator[str]:
        """Aligned, headings first, without title and note."""
        every = [self.heads, *self.rows]
        widths = [max(map(len, column)) for column in zip(*every, strict=True)]
        for row in every:
            cells = [
                text.ljust(width) if place < self.names else text.rjust(width)
                for place, (text, width) in enumerate(zip(row, widths, strict=True))
            ]
            yield "  ".join(cells).rstrip()

    def markdown(self) -> Iterator[str]:
        """A table of Markdown and the note below it, for text that needs no escaping."""
        marks = ("---" if place < self.names else "--:" for place in range(len(self.heads)))
        yield from (f"| {' | '.join(row)} |" for row in (self.heads, marks, *self.rows))
        yield from ("", f"{self.note}.") if self.note else ()
