"""The files of a report: the page, which is one file that needs no network, and the summary beside it.

Templates are Jinja's because it escapes all texts from outside unless told not to. It is told not to for two texts: the
suite's own style sheet and its own script.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from conformance import __version__
from conformance.files import require_regular
from conformance.implementations.errors import printable
from conformance.reporting.groups import amount
from conformance.reporting.page import charts, markdown, tables
from conformance.reporting.page.merge import load
from conformance.reporting.page.sections import sections
from conformance.reporting.page.tables import Digest
from conformance.reporting.page.verdict_list import packed
from conformance.reporting.report import total
from conformance.reporting.report_command import ReportError
from conformance.reporting.table import many

PAGE = "index.html"
LEGEND = {
    "pass": "passes",
    "fail": "fails, with the number of cases",
    "error": "raises an error, with the number of cases",
    "waived": "fails as expected (waived)",
}
"""Status -> text of the matrix's legend."""
GROUPS = 100
"""Largest number of groups of failures that are shown; the list has all failures."""
LINK = re.compile(r"""(https?://[^\s()<>"']*[^\s()<>"'.,;:!?])""")
"""An address in a text; a stop or comma after it ends the sentence."""
TEMPLATES = files("conformance.reporting.page") / "templates"


def build(paths: Sequence[Path], folder: Path) -> tuple[Path, Digest]:
    """Write the report of some files; return its page, and the digest that it shows. Raises ReportError."""
    digest = Digest(load(paths))
    write(folder, texts(digest))
    return folder / PAGE, digest


def texts(digest: Digest, title: str = "") -> dict[str, str]:
    """Return name -> text of the files of a report. The page comes last: it names the other."""
    title = printable(title.encode("utf-8", "replace").decode("utf-8"))
    return {"summary.md": markdown.summary(digest, title or digest.title), PAGE: page(digest, title)}


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files to a folder, in their order. Raises ReportError.

    Every file is written beside its place before the first one is moved there: neither an interrupt nor a full disk
    leaves half a report, and a report that was there before stays whole.
    """
    new_folders: list[Path] = []
    try:
        new_folders = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as beside:
            for name, content in files.items():
                with Path(beside, name).open("wb") as file:
                    file.write(content.encode("utf-8") if isinstance(content, str) else content)
                    file.flush()
                    os.fsync(file.fileno())  # else a move may reach the disk before the bytes
            for name in files:
                place = folder / name
                if place.exists() and not place.is_dir():  # a move by root would replace /dev/null
                    require_regular(place.stat(), place)
                Path(beside, name).replace(place)
    except OSError as problem:
        raise ReportError(f"{folder}: cannot be written ({problem.strerror or problem})") from None
    finally:
        for parent in new_folders:
            with suppress(OSError):  # a folder that holds a report stays
                parent.rmdir()


def page(digest: Digest, title: str = "", survey: Mapping[str, Any] | None = None) -> str:
    """Return the whole page as text: of a run, or of a `survey`, which has the contents that only its page shows and
    the `link` to the pages of its engines, with their failures and verdicts."""
    css, script = (Markup((TEMPLATES / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    # the page may apply its own style and run its own script; it may load nothing at all
    allowed = f"style-src '{content_hash(css)}'; script-src '{content_hash(script)}'"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    values = {
        "title": title or digest.title,
        "long_title": title or digest.long_title,
        "digest": digest,
        "shown": sections(digest),
        "survey": survey,
        "shows_matrix": not survey and sum(map(len, digest.report.tally.ran.values())) > 1,
        "data": "" if survey else packed(digest),
    }
    text = (
        template_environment()
        .get_template("page.html")
        .render(version=__version__, css=css, script=script, policy=policy, **values)
    )
    return printable(text)


def content_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def template_environment() -> jinja2.Environment:
    loader = jinja2.FunctionLoader(lambda name: (TEMPLATES / name).read_text(encoding="utf-8"))
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"links": links, "breakable": _breakable, "amount": amount}
    environment.filters |= {"many": many, "total": total}
    environment.globals |= {
        "LEGEND": LEGEND,
        "PASSING": tables.PASSING,
        "GROUPS": GROUPS,
        "WIDTH": charts.WIDTH,
    }
    return environment


def links(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a text, and whether each is an address, which begins with http:// or https://."""
    for place, part in enumerate(LINK.split(text)):
        if part:
            yield part, bool(place % 2)


def _breakable(name: str, after: str = "_") -> Markup:
    """Let a line break after any of these characters."""
    return Markup("<wbr>").join(re.split(f"(?<=[{re.escape(after)}])", name))
