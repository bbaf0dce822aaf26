"""A table of text, for the terminal, for Markdown and for the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


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
        """Yield aligned lines, headings first, without title and note. Where the table is too wide, headings of narrow
        columns are broken, and columns that still do not fit follow below, again beside the names."""
        heads = [[head] for head in self.heads]
        widths = [max(map(len, column)) for column in zip(self.heads, *self.rows, strict=True)]
        broken = [_broken(head, [len(row[place]) for row in self.rows]) for place, head in enumerate(self.heads)]
        for saved, place in sorted(((widths[p] - size, p) for p, (_, size) in enumerate(broken)), reverse=True):
            if saved and sum(widths) + 2 * (len(widths) - 1) > width:
                heads[place], widths[place] = broken[place]
        names = [*range(self.names if self.names < len(widths) else 1)]
        blocks = [[*names]]
        for place in range(len(names), len(widths)):
            if len(blocks[-1]) > len(names) and sum(widths[p] + 2 for p in blocks[-1]) + widths[place] > width:
                blocks.append([*names])
            blocks[-1].append(place)
        for number, block in enumerate(blocks):
            yield from [""] * (number > 0)
            depth = max(len(heads[p]) for p in block)
            for row in (*zip(*([""] * (depth - len(head)) + head for head in heads), strict=False), *self.rows):
                cells = (row[p].ljust(widths[p]) if p < self.names else row[p].rjust(widths[p]) for p in block)
                yield "  ".join(cells).rstrip()

    def markdown(self, escaped: Callable[[str], str] = str) -> Iterator[str]:
        """Yield the lines of a Markdown table and the note below it; `escaped` is for texts that could be markup."""
        marks = ("---" if place < self.names else "--:" for place in range(len(self.heads)))
        lines = [map(escaped, self.heads), marks, *(map(escaped, row) for row in self.rows)]
        yield from (f"| {' | '.join(map(str.strip, cells))} |" for cells in lines)
        yield from ("", f"{escaped(self.note)}.") if self.note else ()


def _broken(head: str, cells: Sequence[int]) -> tuple[list[str], int]:
    """Break a heading at spaces, hyphens and underscores; return the lines, and the width of its column of `cells`."""
    words = re.split(r"(?<=[ _-])(?=[^ _-])", head)
    width = max(*cells, *(len(word.rstrip()) for word in words))
    lines = [""]
    for word in words:
        if len((lines[-1] + word).rstrip()) <= width:
            lines[-1] += word
        else:
            lines.append(word)
    return [line.rstrip() for line in lines], width


def many(count: int, noun: str) -> str:
    """Return a number and the noun that it counts."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
