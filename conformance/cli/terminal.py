"""The screen of `conformance run`: lines, headings, and one line of progress, by rich."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from conformance.engine.progress import Progress
from conformance.reporting.terminal import harmless
from conformance.streams import TolerantStream

SIGN = 10.0
"""Seconds between two lines of progress where there is no terminal."""
WIDEST = 10_000
"""Most columns of a line."""
PICTURES = 4
"""Updates of the line of progress in a second, on a terminal."""


class Terminal:
    """A screen for `conformance.engine.summary`. `is_live` says whether a line of progress may be written over."""

    def __init__(self, verbosity: int, *, is_live: bool) -> None:
        self.verbosity = verbosity
        stream = cast("IO[str]", TolerantStream(sys.stdout))
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
        if self._console.width > WIDEST:  # of COLUMNS, whatever stands there
            self._console.width = WIDEST
        self._live: Live | None = None
        self._is_live = is_live and self._console.is_terminal and not os.environ.get("CI")

    @property
    def width(self) -> int:
        """Columns of a line that does not wrap."""
        return self._console.width - 1

    def line(self, text: str, color: str = "", *, bold: bool = False) -> None:
        """Write a line."""
        style = " ".join(filter(None, ("bold" * bold, color)))
        self._console.print(Text(text, style=style), soft_wrap=True)

    def section(self, title: str) -> None:
        """Write a heading."""
        self.line(f" {title} ".center(self._console.width, "="))

    def last(self, text: str, color: str) -> None:
        """Write the verdict of the run: between signs, if it fits and more was written."""
        fits = len(text) <= self._console.width - 4
        self.line(f" {text} ".center(self._console.width, "=") if fits and self.verbosity >= 0 else text, color)

    @contextmanager
    def showing(self, progress: Progress) -> Iterator[None]:
        """Show the progress of the run during the block: a case may take minutes, in which nothing ends."""
        begin = time.monotonic()
        if self.verbosity != 0:
            yield
        elif self._is_live:
            picture = _Picture(progress, begin, self.width)
            with Live(picture, console=self._console, refresh_per_second=PICTURES, transient=True):
                yield
        else:
            over = threading.Event()
            thread = threading.Thread(target=self._sign, args=(progress, begin, over), daemon=True)
            thread.start()
            try:
                yield
            finally:
                over.set()
                thread.join()

    def _sign(self, progress: Progress, begin: float, over: threading.Event) -> None:
        while not over.wait(SIGN):
            if progress.done < progress.tests or not progress.tests:
                self.line(harmless(progress.text(time.monotonic() - begin)))


class _Picture:
    """The line of progress as it is at the moment."""

    def __init__(self, progress: Progress, begin: float, width: int) -> None:
        self._progress, self._begin, self._width = progress, begin, width

    def __rich__(self) -> Any:
        text = harmless(self._progress.text(time.monotonic() - self._begin))
        return Text(text[: self._width], no_wrap=True)
