"""The files of a report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from conformance.reporting.page import markdown, render
from conformance.reporting.page.merge import load
from conformance.reporting.page.model import ReportError, legible
from conformance.reporting.page.tables import Digest

PAGE = "index.html"


def build(paths: Sequence[Path], folder: Path, title: str) -> tuple[Path, tuple[str, ...]]:
    """Write the report of some files; return its page, and what could not be read. Raises ReportError."""
    digest = Digest(load(paths))
    write(folder, texts(digest, title))
    return folder / PAGE, digest.results.errors


def texts(digest: Digest, title: str) -> dict[str, str]:
    """Name -> text of what a report consists of. The page comes last: it names the other."""
    title = legible(title.encode("utf-8", "replace").decode("utf-8"))
    return {"summary.md": markdown.summary(digest, title), PAGE: render.page(digest, title)}


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Files of a folder, in their order. Raises ReportError.

    Everything is written beside the place where it belongs before the first file is moved there: neither an interrupt
    nor a full disk leaves half a report, and the one that was there before stays whole.
    """
    made: list[Path] = []
    try:
        made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as beside:
            for name, content in files.items():
                with Path(beside, name).open("wb") as file:
                    file.write(content.encode("utf-8") if isinstance(content, str) else content)
                    file.flush()
                    os.fsync(file.fileno())  # a move may otherwise outlive the bytes
            for name in files:
                Path(beside, name).replace(folder / name)
    except OSError as problem:
        raise ReportError(f"{folder}: cannot be written ({problem.strerror or problem})") from None
    finally:
        for parent in made:
            with suppress(OSError):  # holds a report
                parent.rmdir()
