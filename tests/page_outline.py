"""The page as text: a line for each element that begins one, with what a reader and a script see of it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

INLINE = frozenset({"a", "b", "button", "code", "select", "span", "svg", "td", "th"})
"""Elements whose text continues the line of the element around them."""
BOXES = frozenset({"section", "details", "ul", "table"})
"""Elements whose contents are indented."""
UNSEEN = frozenset({"head", "header", "footer", "form", "script", "title"})
"""Elements that are left out, with all that is in them: they do not depend on results."""
VOID = frozenset({"circle", "input", "line", "meta", "wbr"})


class Outline(HTMLParser):
    """Collects the lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, str, str]] = []
        """Indentation, name of the element, and text of each line."""
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID or not UNSEEN.isdisjoint((*self._open, tag)):
            self._open += [tag] * (tag not in VOID)
            return
        given = {name: value or "" for name, value in attrs}
        if tag not in INLINE:
            kind = "".join(f".{name}" for name in given.get("class", "").split() if name.startswith("s-"))
            place = f"#{given['id']}" if "id" in given else ""
            name = f"{tag}{place}{kind}{' open' * ('open' in given)}"
            self.lines.append((sum(name in BOXES for name in self._open), name, ""))
        self._open.append(tag)
        spaced = tag in ("a", "b", "button", "code", "span")
        label = given.get("aria-label", "") if tag in ("a", "button", "svg") else ""
        said = " ".join(filter(None, (given.get("href"), label)))
        self.handle_data(" | " * (tag in ("td", "th")) + " " * spaced + f"<{said}> " * bool(said))

    def handle_endtag(self, tag: str) -> None:
        while tag not in VOID and self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.lines and UNSEEN.isdisjoint(self._open):
            depth, name, text = self.lines[-1]
            self.lines[-1] = depth, name, text + data


def outline(text: str) -> str:
    """Return the lines of a page that have text, or can be folded."""
    found, lines = Outline(), list[str]()
    found.feed(text.replace("<wbr>", ""))
    for depth, name, said in found.lines:
        if said.strip() or name.startswith("details"):
            told = said.strip().splitlines() if name.startswith("pre") else [re.sub(r"\s+", " ", said).strip()]
            lines += [f"{'  ' * depth}{name}: {line}".rstrip(": ") for line in told]
    return "\n".join(lines)
