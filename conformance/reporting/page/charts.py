"""Charts as SVG, drawn by Vega-Lite when the report is made: the page then needs neither a script nor a network for
them, and its style sheet gives them their colours, light and dark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import vl_convert

from conformance.reporting.page.model import legible
from conformance.reporting.page.plots import TOP, Plot

COLOURS, SHAPES = 8, ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
"""Colours are those of Okabe and Ito (2008), in the style sheet; shapes tell the same without them."""
PANEL = (375, 210)
"""Width and height of a panel of points; one of rows is as high as its rows need."""
STEP = 26
ELEMENTS = frozenset(
    {"svg", "g", "path", "text", "tspan", "line", "rect", "circle", "defs", "clipPath", "title", "desc"}
)
"""What a chart is made of. Whatever else a name could smuggle in is refused."""
SVG = "http://www.w3.org/2000/svg"
VERSION = "6.4"
"""Of Vega-Lite: drawings stay as they were looked at."""
_LIMIT: dict[str, Any] = {"mark": {"type": "rule", "strokeDash": [5, 4], "color": "var(--limit)"}}

Layers = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Cast:
    """The names in a chart, and the place of each among all names of the page, which decides colour and shape."""

    names: tuple[str, ...]
    places: tuple[int, ...]


def svg(plot: Plot, place: int, everyone: Sequence[str]) -> str:
    """A chart with its title and description inside; `place` makes its ids its own, `everyone` are all names of the
    page. Raises ValueError where the drawing holds what no chart needs."""
    names = tuple(sorted({point["implementation"] for point in plot.points}))
    layers, height = KINDS[plot.kind](_Cast(names, tuple(map(list(everyone).index, names))))
    size = {"width": PANEL[0], "height": height}
    # each panel has data of its own: a filter would put the names of panels into an expression that is compiled
    panels = [
        {"title": name, **size, "data": {"values": [p for p in plot.points if p["panel"] == name]}, "layer": layers}
        for name in plot.panels
    ]
    shared = {"scale": {"color": "shared", "shape": "shared"}}
    specification = {"concat": panels, "columns": 2, "spacing": 28, "resolve": shared, "config": CONFIG}
    drawn = ElementTree.fromstring(vl_convert.vegalite_to_svg(_legible(specification), vl_version=VERSION))
    prefix = f"chart{place}-"
    for element in drawn.iter():
        _clean(element, prefix)
    title, text = ElementTree.Element(f"{{{SVG}}}title"), ElementTree.Element(f"{{{SVG}}}desc")
    title.text, text.text = plot.title, f"{plot.text} The numbers stand in the table below."
    title.set("id", f"{prefix}title")
    text.set("id", f"{prefix}text")
    drawn[:0] = [title, text]
    drawn.set("role", "img")
    drawn.set("aria-labelledby", f"{prefix}title {prefix}text")
    ElementTree.register_namespace("", SVG)
    return ElementTree.tostring(drawn, encoding="unicode")


def _legible(value: Any) -> Any:
    """The same with every text in it as `legible` has it: the process would end at a control character."""
    if isinstance(value, Mapping):
        return {name: _legible(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_legible(one) for one in value]
    return legible(value) if isinstance(value, str) else value


def _clean(element: ElementTree.Element, prefix: str) -> None:
    """Raises ValueError for what no chart holds.

    Ids of clip paths are the same in every drawing: prefixed, and with them what refers to them. Texts for those who
    hear the page stay, because the page shows them when a point is pointed at; the groups' own are noise.
    """
    name = element.tag.removeprefix(f"{{{SVG}}}")
    handlers = [key for key in element.attrib if key.lower().startswith("on") or key.lower().endswith("href")]
    if name not in ELEMENTS or handlers:
        raise ValueError(f"a chart holds {name} {' '.join(handlers)}, which no chart needs")
    for key, value in list(element.attrib.items()):
        opaque = (key, value) == ("opacity", "1")
        if key == "id":
            element.set(key, prefix + value)
        elif value.startswith("url(#"):
            element.set(key, value.replace("url(#", f"url(#{prefix}"))
        elif opaque or key in ("aria-roledescription", "role", "aria-hidden", "class"):
            del element.attrib[key]
        elif re.fullmatch(r"-?\d+\.\d{3,}", value):
            element.set(key, f"{float(value):.2f}")


CONFIG: Mapping[str, Any] = {
    "background": None,
    "font": "Arial, Helvetica, Liberation Sans, sans-serif",
    "view": {"stroke": "var(--line)"},
    "title": {"color": "currentColor", "anchor": "start", "fontSize": 13, "fontWeight": 600},
    "axis": {
        **dict.fromkeys(("labelColor", "titleColor"), "currentColor"),
        **dict.fromkeys(("gridColor", "domainColor", "tickColor"), "var(--line)"),
        "titleFontWeight": "normal",
        "titleFontSize": 12,
        "labelFontSize": 11.5,
        "labelLimit": 235,
    },
    "legend": {
        **dict.fromkeys(("labelColor", "titleColor"), "currentColor"),
        "labelFontSize": 12,
        "labelLimit": 300,
        "orient": "bottom",
        "columns": 3,
        "title": None,
        "symbolSize": 70,
        "symbolOpacity": 1,
    },
}


def _channels(cast: _Cast, legend: bool) -> dict[str, Any]:
    """Colour and shape of implementations, the same in every chart of a page."""
    colours = [f"var(--c{place % COLOURS})" for place in cast.places]
    shapes = [SHAPES[(place + place // COLOURS) % len(SHAPES)] for place in cast.places]
    field: dict[str, Any] = {"field": "implementation", "type": "nominal"}
    field |= {} if legend else {"legend": None}
    return {
        "color": field | {"scale": {"domain": list(cast.names), "range": colours}},
        "shape": field | {"scale": {"domain": list(cast.names), "range": shapes}},
        "description": {"field": "says"},
    }


def _axis(name: str, title: str, **rest: Any) -> dict[str, Any]:
    return {"field": name, "type": "quantitative", "title": title, **rest}


def _names(cast: _Cast) -> dict[str, Any]:
    return {"field": "y", "type": "nominal", "title": None, "scale": {"domain": list(cast.names)}}


SHARE: Mapping[str, Any] = {"scale": {"domain": [0, TOP]}, "axis": {"format": "%", "values": [0, 0.25, 0.5, 0.75, 1]}}
STRENGTH: Mapping[str, Any] = {"domain": [0, 0.3], "range": [0.1, 0.85], "clamp": True}
LOG: Mapping[str, Any] = {"scale": {"type": "log"}, "axis": {"tickCount": 5, "format": "~g"}}


def _lines(cast: _Cast, axes: Mapping[str, Any]) -> tuple[Layers, int]:
    """A line with points for each implementation, beside the limit 1."""
    channels = _channels(cast, legend=True)
    line = {"color": channels["color"], "detail": {"field": "implementation"}}
    return [
        _LIMIT | {"encoding": {"y": {"datum": 1}}},
        {"mark": {"type": "line", "strokeWidth": 1, "opacity": 0.5}, "encoding": {**axes, **line}},
        {"mark": {"type": "point", "filled": True, "size": 42, "opacity": 1}, "encoding": {**axes, **channels}},
    ], PANEL[1]


def _terms(cast: _Cast) -> tuple[Layers, int]:
    powers = {"scale": {"type": "log", "base": 2}, "axis": {"tickCount": 6, "format": ",d"}}
    axes = {"x": _axis("x", "contraction length", **powers), "y": _axis("y", "worst error / bound", **SHARE)}
    return _lines(cast, axes)


def _runs(cast: _Cast) -> tuple[Layers, int]:
    number = {"field": "x", "type": "ordinal", "title": "run", "axis": {"labelAngle": 0}}
    return _lines(cast, {"x": number, "y": _axis("y", "times torch", **LOG)})


def _bits(cast: _Cast) -> tuple[Layers, int]:
    channels, y = _channels(cast, legend=False), _names(cast)
    x = _axis("x", "bits", scale={"domainMin": 0}, axis={"tickMinStep": 2})
    return [
        {
            "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.6},
            "encoding": {"x": x, "x2": {"field": "x2"}, "y": y, "color": channels["color"]},
        },
        {"mark": {"type": "point", "filled": True, "size": 60, "opacity": 1}, "encoding": {"x": x, "y": y} | channels},
    ], STEP * len(cast.names)


def _histograms(cast: _Cast) -> tuple[Layers, int]:
    channels, y = _channels(cast, legend=False), _names(cast)
    colour = {"color": channels["color"], "description": channels["description"]}
    strength = {"field": "part", "type": "quantitative", "legend": None, "scale": STRENGTH}

    def at(name: str) -> dict[str, Any]:
        return {"x": _axis(name, "error / bound", **SHARE), "y": y}

    return [
        {
            "transform": [{"filter": {"field": "part", "valid": True}}],
            "mark": {"type": "bar", "height": 16},
            "encoding": at("low") | colour | {"x2": {"field": "high"}, "opacity": strength},
        },
        _LIMIT | {"encoding": {"x": {"datum": 1}}},
        {"mark": {"type": "tick", "size": 20, "thickness": 2.5}, "encoding": at("x") | colour},
        {"mark": {"type": "point", "filled": True, "size": 42, "opacity": 1}, "encoding": at("worst") | channels},
    ], STEP * len(cast.names)


def _speeds(title: str, limit: float, axis: Mapping[str, Any]) -> Callable[[_Cast], tuple[Layers, int]]:
    def layers(cast: _Cast) -> tuple[Layers, int]:
        channels, y = _channels(cast, legend=False), _names(cast)
        axes = {"x": _axis("x", title, **axis), "y": y}
        one, mean = {"filter": {"field": "mean", "equal": False}}, {"filter": {"field": "mean", "equal": True}}
        tick = {"color": channels["color"], "description": channels["description"]}
        return [
            _LIMIT | {"encoding": {"x": {"datum": limit}}},
            {
                "transform": [one],
                "mark": {"type": "point", "filled": True, "size": 34, "opacity": 0.6},
                "encoding": axes | channels,
            },
            {"transform": [mean], "mark": {"type": "tick", "size": 20, "thickness": 3}, "encoding": axes | tick},
        ], STEP * len(cast.names)

    return layers


KINDS: Mapping[str, Callable[[_Cast], tuple[Layers, int]]] = {
    "terms": _terms,
    "bits": _bits,
    "histograms": _histograms,
    "ratio": _speeds("times torch", 1.0, LOG),
    "runs": _runs,
    "roofline": _speeds("share of the roofline", 1.0, {"scale": {"domainMin": 0}, "axis": {"format": "%"}}),
}
"""Kind of a plot -> its layers and the height of a panel, from the names of implementations."""
