"""The two files of a report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from conformance.reporting.page import markdown, render
from conformance.reporting.page.merge import load
from conformance.reporting.page.model import ReportError, legible
from conformance.reporting.page.tables import Digest

PAGE = "index.html"
FILES: Mapping[str, Callable[[Digest, str], Iterable[str]]] = {
    "summary.md": lambda digest, title: [markdown.summary(digest, title)],
    PAGE: lambda digest, title: [render.page(digest, title)],
}
"""Name -> what makes its text, in pieces, from results and a title. The page comes last: it names the others."""


def build(paths: Sequence[Path], folder: Path, title: str) -> tuple[Path, tuple[str, ...]]:
    """Write the report of some files; return its page, and what could not be read. Raises ReportError.

    Everything is written beside the place where it belongs before the first file is moved there: neither an interrupt
    nor a full disk leaves half a report, and the one that was there before stays whole.
    """
    digest = Digest(load(paths))
    title = title.encode("utf-8", "replace").decode("utf-8")
    made: list[Path] = []
    try:
        made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as beside:
            for name, make in FILES.items():
                with Path(beside, name).open("w", encoding="utf-8", newline="") as file:
                    file.writelines(map(legible, make(digest, title)))
                    file.flush()
                    os.fsync(file.fileno())  # a move may otherwise outlive the bytes
            for name in FILES:
                Path(beside, name).replace(folder / name)
    except OSError as problem:
        raise ReportError(f"{folder}: cannot be written ({problem.strerror or problem})") from None
    finally:
        for parent in made:
            with suppress(OSError):  # holds a report
                parent.rmdir()
    return folder / PAGE, digest.results.errors
