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
from conformance.reporting.page.plots import TOP, Plot, Point

COLOURS, SHAPES = 8, ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
"""Colours are those of Okabe and Ito (2008), in the style sheet; shapes tell the same without them."""
PANEL = (375, 210)
"""Width and height of a panel of points; one of rows is as high as its rows need."""
STEP, LANE = 26, 7
"""Heights of a row, at least, and of each time in it."""
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
    """The names in a chart, and the place of each among all names of the page, which decides colour and shape; what
    is drawn in one panel."""

    names: tuple[str, ...]
    places: tuple[int, ...]
    points: tuple[Point, ...]

    def each(self, name: str) -> tuple[str, ...]:
        """The texts of a field, once each."""
        return tuple(dict.fromkeys(point[name] for point in self.points if name in point))


def svg(plot: Plot, place: int, everyone: Sequence[str]) -> str:
    """A chart with its title and description inside; `place` makes its ids its own, `everyone` are all names of the
    page. Raises ValueError where the drawing holds what no chart needs."""
    names = tuple(sorted({point["implementation"] for point in plot.points}))
    places = tuple(map(list(everyone).index, names))
    panels = []
    for name in plot.panels:
        # data of its own: a filter would put the names of panels into an expression that is compiled
        points = tuple(p for p in plot.points if p["panel"] == name)
        layers, height = KINDS[plot.kind](_Cast(names, places, points))
        size = {"width": PANEL[0], "height": height}
        panels.append({"title": name, **size, "data": {"values": points}, "layer": layers})
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

BANDS: Mapping[str, Any] = {"grid": True, "tickBand": "extent", "ticks": False, "labelPadding": 6}
"""Lines between rows."""


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


def _times(cast: _Cast) -> tuple[Layers, int]:
    """A row for each problem, and in it a lane for each implementation."""
    y = {"field": "y", "type": "nominal", "title": None, "scale": {"domain": list(cast.each("y"))}, "axis": BANDS}
    x = _axis("x", "ms", **{**LOG, "axis": LOG["axis"] | {"grid": False}})
    return _lanes(cast, {"x": x, "y": y}, cast.names, _channels(cast, legend=True))


def _speeds(title: str, axis: Mapping[str, Any], limit: float) -> Callable[[_Cast], tuple[Layers, int]]:
    """A row for each implementation, and in it a lane for each problem; across them a tick for all problems."""

    def layers(cast: _Cast) -> tuple[Layers, int]:
        channels = _channels(cast, legend=False)
        axes = {"x": _axis("x", title, **axis), "y": _names(cast) | {"axis": BANDS}}
        drawn, height = _lanes(cast, axes, cast.each("lane"), channels)
        tick = {"color": channels["color"], "description": channels["description"]}
        size = height / max(len(cast.names), 1) * 0.8
        mean = {
            "transform": [{"filter": {"field": "mean", "equal": True}}],
            "mark": {"type": "tick", "size": size, "thickness": 3},
            "encoding": axes | tick,
        }
        return [_LIMIT | {"encoding": {"x": {"datum": limit}}}, *drawn, mean], height

    return layers


def _lanes(
    cast: _Cast, axes: Mapping[str, Any], lanes: Sequence[str], channels: Mapping[str, Any]
) -> tuple[Layers, int]:
    """A point in each lane of a row, the line of its interval, and the tick of its minimum."""
    rows = len(axes["y"]["scale"]["domain"])
    lane = {"field": "lane", "type": "nominal", "scale": {"domain": list(lanes)}}
    # without an order, names in the domains would get into an expression that is compiled
    own = {"y": axes["y"], "yOffset": lane, "color": channels["color"], "order": {"value": 0}}

    def known(name: str) -> dict[str, Any]:
        return {"transform": [{"filter": {"field": name, "valid": True}}]}

    drawn: Layers = [
        {
            **known("low"),
            "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.7, "aria": False},
            "encoding": {"x": axes["x"] | {"field": "low"}, "x2": {"field": "high"}, **own},
        },
        {
            **known("least"),
            "mark": {"type": "tick", "size": LANE, "thickness": 1.5, "aria": False},
            "encoding": {"x": axes["x"] | {"field": "least"}, **own},
        },
        {
            "transform": [{"filter": {"field": "mean", "equal": False}}],
            "mark": {"type": "point", "filled": True, "size": 34, "opacity": 0.9},
            "encoding": {"x": axes["x"], **own, **channels},
        },
    ]
    return drawn, rows * max(STEP, (len(lanes) + 1) * LANE)


KINDS: Mapping[str, Callable[[_Cast], tuple[Layers, int]]] = {
    "times": _times,
    "terms": _terms,
    "bits": _bits,
    "histograms": _histograms,
    "ratio": _speeds("times torch", LOG, 1.0),
    "roofline": _speeds("share of the roofline", {"scale": {"domainMin": 0}, "axis": {"format": "%"}}, 1.0),
}
"""Kind of a plot -> its layers and the height of a panel, from the names of implementations."""
