"""A badge: two words side by side, as an SVG that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree.ElementTree import Element, SubElement, tostring

from conformance.reporting.page.model import legible

LABEL = "conformance"
GREEN, RED, AMBER, GREY, DARK = "#1b7f4b", "#c0182b", "#8a5200", "#5f6873", "#3a3f45"
"""Behind white text: each has a contrast of at least 5 to 1 with it."""
HEIGHT, PADDING, SIZE = 20, 6, 11
WIDTHS = {" ": 3.9, ",": 4.0, "i": 3.0, "l": 3.0, "f": 3.9, "t": 4.3, "r": 4.7, "m": 10.7, "w": 9.0}
"""Of characters in Verdana of this size; of the others about `WIDTH`. Texts are fitted to what these add up to."""
WIDTH = 7.0


def words(counts: Mapping[str, int], verified: int, complete: bool) -> tuple[str, str]:
    """What a badge says of cases by status, and its colour: green only where all that was verified passes, something
    was, and no part of the run is missing."""
    said = [f"{counts[status]:,} {status}" for status in ("pass", "fail", "error", "waived") if counts.get(status)]
    if counts.get("fail") or counts.get("error"):
        colour = RED
    elif not verified:
        return "nothing verified", GREY
    elif not complete:
        said, colour = [*said, "incomplete"], GREY
    else:
        colour = AMBER if counts.get("waived") else GREEN
    return ", ".join(said), colour


def svg(text: str, colour: str, title: str) -> str:
    """The badge; `title` is what it is called for those who hear it."""
    text, title = legible(text), legible(title)
    left, right = (_width(one) + 2 * PADDING for one in (LABEL, text))
    root = Element(
        "svg",
        {"xmlns": "http://www.w3.org/2000/svg", "width": f"{left + right}", "height": f"{HEIGHT}", "role": "img"},
    )
    root.set("aria-label", title)
    SubElement(root, "title").text = title
    # rounded at the four outer corners; without ids, of which a page with several badges would have each twice
    pane = {"height": f"{HEIGHT}", "rx": "3"}
    SubElement(root, "rect", pane, width=f"{left + right}", fill=DARK)
    SubElement(root, "rect", pane, x=f"{left}", width=f"{right}", fill=colour)
    SubElement(root, "rect", x=f"{left}", width="4", height=f"{HEIGHT}", fill=colour)
    font = {"fill": "#fff", "font-family": "Verdana, Geneva, DejaVu Sans, sans-serif", "font-size": f"{SIZE}"}
    texts = SubElement(root, "g", font)
    for x, one in ((PADDING, LABEL), (left + PADDING, text)):
        SubElement(texts, "text", x=f"{x}", y="14", textLength=f"{_width(one)}").text = one
    return tostring(root, encoding="unicode") + "\n"


def _width(text: str) -> int:
    return round(sum(WIDTHS.get(character, WIDTH) for character in text))
