"""`conformance report`: a page and a summary from files of records, or a badge."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from conformance.exit_codes import ExitCode
from conformance.files import require_own_kind
from conformance.implementations.devices import Unavailable

MAX_LISTED = 20
"""Largest number of defects of files that are named on the terminal."""


class ReportError(Exception):
    """No report can be made; the message names the file and says what to do."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Make the report of records: a verdict on each kernel, a page, or a badge."""
    parser.add_argument(
        "results", nargs="+", type=Path, metavar="RESULTS",
        help="what pytest --records=FILE or pytest --benchmark-json=FILE wrote; of two verdicts on one case that of "
        "the later run counts",
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="where to write a page and a summary")
    parser.add_argument(
        "--badge", type=Path, metavar="FILE.svg", help="write an image of one line: level, and how many cases pass"
    )
    parser.epilog = (
        "Ends with 0 where it is written, whatever it says; with 1 where something is wrong with a file, or units of a "
        "divided run are missing."
    )
    parser.set_defaults(run=_run)


def require() -> None:
    """Import the packages of a report, before a kernel can put something else in their place. Raises Unavailable, with
    how to get the missing package, if one is not installed."""
    if find_spec("jinja2") is None:
        raise Unavailable("needs jinja2: pip install jinja2")
    import_module("conformance.reporting.page.render")


def of_run(records: Path, folder: Path) -> list[str]:
    """Write the report of a run that has just ended; return the lines that say where it is. Raises ReportError."""
    # the code for charts takes a second to load, which a run without a report need not wait for
    from conformance.reporting.page.render import build

    page, digest = build([records], folder)
    return [*_listed(digest.results.errors), f"report: {page}"]


def _listed(errors: Sequence[str]) -> list[str]:
    """Return lines for the first errors; the page has the others."""
    more = [f"report: and {len(errors) - MAX_LISTED:,} more"] if len(errors) > MAX_LISTED else []
    return [*(f"report: {error}" for error in errors[:MAX_LISTED]), *more]


@contextmanager
def _garbage_left() -> Iterator[None]:
    """Collect no garbage in the block: the objects of a report live to its end, and each collection traverses them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_garbage_left()
def _run(arguments: argparse.Namespace) -> int:
    """Write a report; whatever its verdicts are, the exit status is 0. It is 1 if something is wrong with the files, or
    with how their runs ended, and 4 if no report can be written."""
    folder, image = arguments.output, arguments.badge
    if folder or image:
        try:
            require()
        except Unavailable as absence:
            print(f"report: {absence}", file=sys.stderr)
            return ExitCode.UNUSABLE
        from conformance.reporting.page.render import PAGE, texts, write
    from conformance.reporting.badge import badge
    from conformance.reporting.page.merge import load
    from conformance.reporting.page.tables import Digest
    from conformance.reporting.terminal import harmless

    try:
        if image:
            try:
                require_own_kind(image, "SVG", b"<svg")
            except OSError as problem:
                raise ReportError(f"{image}: cannot be written ({problem.strerror})") from None
        digest = Digest(load(arguments.results))
        if folder:
            write(folder, texts(digest))
        if image:
            write(image.parent, {image.name: badge(digest)})
    except ReportError as problem:
        print(f"report: {problem}", file=sys.stderr)
        return ExitCode.UNUSABLE
    for line in _listed(digest.results.errors):
        print(line, file=sys.stderr)
    for path in (folder and folder / PAGE, image):
        if path:
            print(path)
    if not (folder or image):
        lines = [*map(str, digest.report.verdicts)]
        for line in [*lines, digest.lead] if len(lines) > 1 else lines or [digest.lead]:
            print(harmless(line))
    return ExitCode.BAD if digest.results.errors else ExitCode.GOOD
