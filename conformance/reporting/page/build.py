"""The four files of a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from conformance.reporting.page import junit, lines, markdown, render
from conformance.reporting.page.merge import load
from conformance.reporting.page.model import ReportError
from conformance.reporting.page.tables import Digest

PAGE = "index.html"
FILES: Mapping[str, Callable[[Digest, str], str]] = {
    PAGE: render.page,
    "summary.md": markdown.summary,
    "junit.xml": junit.document,
    "verdicts.csv": lines.as_csv,
}
"""Name -> what makes its text from results and a title."""


def build(paths: Sequence[Path], folder: Path, title: str, before: Sequence[Path] = ()) -> tuple[Path, tuple[str, ...]]:
    """Write the report of some files; return its page, and what could not be read. Raises ReportError.

    All texts are made before the first is written: a report is never half an old one.
    """
    digest = Digest(load(paths, before))
    title = title.encode("utf-8", "replace").decode("utf-8")
    texts = {name: make(digest, title) for name, make in FILES.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8", newline="")
    except OSError as problem:
        raise ReportError(f"{folder}: cannot be written ({problem.strerror})") from None
    return folder / PAGE, digest.results.errors
