"""A badge for a kernel: an SVG of one line that says how many of the cases that ran pass."""

from __future__ import annotations

from html import escape

from conformance.implementations.errors import printable
from conformance.reporting.page.tables import Digest
from conformance.reporting.report import fraction

LETTER, MARGIN = 6.6, 6
"""Average width of a letter in the wider fonts, and margin beside a text."""
LABEL = "conformance"
RIGHT, WRONG, NOTHING = "#15693d", "#b3152a", "#59616b"


def badge(digest: Digest) -> str:
    """Return the SVG of `conformance | standard: 131 of 131 pass`; its title has the whole verdict, when and where.

    A run of some cases only is `standard, part: 3 of 3 pass`, with the options that chose them in the title.
    """
    if digest.verified:
        wrong = any(verdict.failed for verdict in digest.report.verdicts) or digest.results.errors
        text, color = fraction(digest.report.verdicts), WRONG if wrong else RIGHT
    else:
        text, color = "nothing verified", NOTHING
    chosen = digest.results.chosen
    text = ": ".join(filter(None, (", ".join([*digest.levels, *(["part"] if chosen else [])]), text)))
    width_left, width_right = (round(len(words) * LETTER) + 2 * MARGIN for words in (LABEL, text))
    title = " · ".join([digest.long_title, *chosen])
    title, text = (escape(printable(words)) for words in (title, text))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{width_left + width_right}" height="20" role="img">
<title>{title}</title>
<rect width="{width_left + width_right}" height="20" rx="3" fill="#3b4148"/>
<path d="M{width_left} 0h{width_right - 3}q3 0 3 3v14q0 3 -3 3H{width_left}z" fill="{color}"/>
<g fill="#fff" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11" text-anchor="middle">
<text x="{width_left / 2}" y="14">{LABEL}</text>
<text x="{width_left + width_right / 2}" y="14">{text}</text>
</g>
</svg>
"""
