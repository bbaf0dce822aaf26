"""The targets of `python -m tests.fuzz` for a moment each, on bytes that are nearly right."""

from __future__ import annotations

import json
import zipfile
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.reporting.page import plots
from conformance.reporting.table import Table
from tests.fuzz.targets import TARGETS

NUMBERS = ["9" * 5000, "-1", "1e999", "1e308", "-0.0", "5e-324", "18446744073709551616", "9" * 4000, "NaN"]
TEXTS = ["\x00", "\x1b[2J", "\uffff", "\U0001fffe", "\ufdd0", "\u202e", "=1+1", "<script>", "__proto__", "", "x" * 5000]
TOKENS = [*NUMBERS, *map(json.dumps, TEXTS), '"\\ud800"', "null", "true", "[]", "{}", "[" * 5000, '"nan"', '"inf"']
"""What is put in the place of a value."""


@st.composite
def nearly(draw: st.DrawFn, name: str) -> bytes:
    """A sample of a target with some of it replaced: values of JSON, bytes, or what stands behind a place."""
    content = draw(st.sampled_from(sorted(TARGETS[name].samples())))
    for _ in range(draw(st.integers(0, 3))):
        kind, place = draw(st.sampled_from(["value", "bytes", "cut", "twice"])), draw(st.integers(0, len(content)))
        end = place + draw(st.integers(0, 40))
        if kind == "value":  # from a colon or a comma to the next one
            start = max(content.find(mark, place) for mark in (b":", b",", b" "))
            stops = [found for mark in (b",", b"}", b"]", b" ") if (found := content.find(mark, start + 2)) >= 0]
            token = draw(st.sampled_from(TOKENS)).encode()
            content = content[: start + 1] + token + content[min(stops, default=len(content)) :]
        elif kind == "bytes":
            content = content[:place] + draw(st.binary(max_size=8)) + content[end:]
        else:
            content = content[:place] if kind == "cut" else content[:end] + content[place:]
    return content


@pytest.mark.parametrize("name", TARGETS)
def test_bytes_that_are_nearly_right_are_taken_or_refused_with_a_message(name: str):
    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(nearly(name))
    def check(content: bytes) -> None:
        TARGETS[name].read(content)

    check()


def test_a_chart_of_any_names_and_numbers_is_drawn():
    pytest.importorskip("vl_convert", reason="no vl-convert-python (extra: report)")
    from conformance.reporting.page import charts

    names = sorted([*TEXTS, *map(chr, range(32)), "\ufffe"])
    points: list[plots.Point] = [
        {"implementation": name, "panel": panel, "x": 2, "y": y, "says": name}
        for panel in TEXTS[:3]
        for name in names
        for y in (0.0, 5e-324, 1e300)
    ]
    drawn = charts.svg(plots.Plot("terms", "t", "t", tuple(points), tuple(TEXTS[:3]), Table("", (), ())), 0, names)
    assert "\\uffff" in drawn


def test_a_member_that_unpacks_to_a_thousand_times_its_length_is_no_file_of_tensors():
    bomb = BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", b"\x93NUMPY\x01\x00" + bytes(1 << 24))
    TARGETS["tensors"].read(bomb.getvalue())
