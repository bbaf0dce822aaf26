"""What the pages of the documentation say, one rule a row, with kernels that keep it and that break it.

The rows stand in the files of the folder beside this one, by the page that says so:

    says    the rule, in words of this project
    keeps   lines of a kernel that keeps it
    gives   what the tile t holds after them, an expression of the arguments a, b and c (for defaults and results)
    within  relative distance that is allowed from it, 0 unless given
    breaks  lines of a kernel that breaks it, of which the last one is refused, or the one that is marked so
    rule    that the refusal names
    target  gen2 unless given
    before  lines of the file before the kernel
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

from nki_emulator.tests.refusals import FOLDER
from nki_emulator.tests.sources import HEADER, SETUP, Refused, indented, marked

_STORE = """
result = nl.ndarray(t.shape, dtype=t.dtype, buffer=nl.shared_hbm)
nl.store(result, t)
return result"""


_FUTURE = "from __future__ import annotations\n"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One rule of one page."""

    page: str
    says: str
    keeps: str = ""
    gives: str = ""
    within: float = 0.0
    breaks: str = ""
    rule: str = ""
    target: str = "gen2"
    before: str = ""

    def _source(self, body: str) -> str:
        first, decorator = HEADER.removesuffix("@nki.jit\n"), "@nki.jit\n"
        rest = self.before.strip().removeprefix(_FUTURE)
        first = f"{_FUTURE}{first}" if rest != self.before.strip() else first
        before = f"{rest.strip()}\n\n\n" if rest else ""
        return f"{first}{before}{decorator}def kernel(a, b, c):\n{indented(SETUP + body.strip(chr(10)))}"

    @property
    def kept(self) -> str:
        """The file of the kernel that keeps it."""
        if _returns(self.keeps):
            return self._source(self.keeps)
        return self._source(self.keeps + (_STORE if self.gives else "\nreturn out"))

    @property
    def broken(self) -> Refused:
        """The file of the kernel that breaks it."""
        body = marked(self.breaks)
        source = self._source(body if _returns(body) else body + "\nreturn out")
        return Refused(self.rule, source, self.target)


def _returns(body: str) -> bool:
    """Whether the kernel itself does, and not a function inside of it."""
    return any(line.startswith("return") for line in body.splitlines())


def _rows() -> Iterator[Row]:
    for path in sorted((FOLDER / "documented").glob("*.toml")):
        for page, rows in tomllib.loads(path.read_text()).items():
            for row in rows:
                yield Row(page=page, **row)


ROWS = tuple(_rows())
