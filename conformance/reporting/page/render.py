"""The page: one file that needs no network.

Templates are Jinja's because it escapes whatever comes from outside unless told not to; three things are told not to,
which are the suite's own style sheet, its own script and charts that were checked element by element.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import jinja2
from markupsafe import Markup

from conformance import __version__
from conformance.reporting import training
from conformance.reporting.page import charts, context, plots, speeds, tables
from conformance.reporting.page.packed_verdicts import packed
from conformance.reporting.page.tables import Digest

LINK = re.compile(r"""(https?://[^\s()<>"']*[^\s()<>"'.,;:!?])""")
"""A stop or comma after an address ends the sentence."""
TEMPLATES = files("conformance.reporting.page") / "templates"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A plot and its chart."""

    plot: plots.Plot
    svg: Markup


def page(digest: Digest, title: str) -> str:
    """The whole page as text."""
    css, script = (Markup((TEMPLATES / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    # the page may apply its own style and run its own script; it may load nothing at all
    allowed = f"style-src '{content_hash(css)}'; script-src '{content_hash(script)}'"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    timed = speeds.speeds(digest)
    speed_tables = speeds.speed_tables(digest, timed)
    parts = {
        "profile": tables.profiles(digest),
        "accuracy_charts": _drawn(digest, plots.accuracy(digest), 0),
        "speed_tables": speed_tables,
        "banners": speeds.banners(timed),
        "speed_charts": _drawn(digest, plots.speed(digest, timed), 10),
        "traffic": tables.moved(digest),
        "modelled": tables.modelled(digest),
        "memory": training.memory_tables(digest.named),
        "training": training.table(digest.named),
    }
    found = context.findings(digest)
    names = {"findings": found["findings_title"]}
    sections = {
        "failures": digest.groups,
        "matrix": True,
        "findings": found["findings"],
        "accuracy": parts["profile"] or parts["accuracy_charts"],
        "speed": speed_tables or parts["traffic"],
        "memory": parts["memory"],
        "training": parts["training"],
        "machines": True,
        "verdicts": True,
    }
    rendered: str = (
        template_environment()
        .get_template("page.html")
        .render(
            title=title,
            version=__version__,
            sections=[(name, names.get(name, name.capitalize())) for name, has in sections.items() if has],
            css=css,
            script=script,
            policy=policy,
            data=Markup(packed(digest)),
            **context.overview(digest),
            **context.matrix(digest),
            **found,
            **parts,
        )
    )
    return rendered


def content_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def template_environment() -> jinja2.Environment:
    loader = jinja2.FunctionLoader(lambda name: (TEMPLATES / name).read_text(encoding="utf-8"))
    found = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.filters |= {"links": links, "breakable": _breakable}
    return found


def links(text: str) -> Iterator[tuple[str, bool]]:
    """Parts of a text, and whether each is an address, which begins with http:// or https://."""
    for place, part in enumerate(LINK.split(text)):
        if part:
            yield part, bool(place % 2)


def _breakable(name: str, after: str = "_") -> Markup:
    """A line may be broken after any of these characters."""
    return Markup("<wbr>").join(re.split(f"(?<=[{re.escape(after)}])", name))


def _drawn(digest: Digest, found: Sequence[plots.Plot], first: int) -> list[Drawn]:
    rows = {digest.name(row) for row in (*digest.rows, *(c.row for c in digest.results.clocked))}
    names = sorted(rows | {point["implementation"] for plot in found for point in plot.points})
    return [Drawn(plot, Markup(charts.svg(plot, place, names))) for place, plot in enumerate(found, first)]
