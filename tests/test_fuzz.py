"""The targets of `python -m tests.fuzz` for a moment each, on bytes that are nearly right."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("jinja2", reason="no jinja2 (extra: report)")

from tests.fuzz.targets import TARGETS

NUMBERS = (
    "9" * 5000,
    "9" * 4000,
    "18446744073709551616",
    "1e999",
    "1e308",
    "-1e308",
    "5e-324",
    "-1",
    "-0.0",
    "0",
    "NaN",
)
TEXTS = ("\x00", "\x1b[2J", "\uffff", "\U0001fffe", "\ufdd0", "\u202e", "=1+1", "<script>", "__proto__", "", "x" * 5000)
TOKENS = (*NUMBERS, *map(json.dumps, TEXTS), '"\\ud800"', "null", "true", "[]", "{}", "[" * 5000, '"nan"', '"inf"')
"""What is put in the place of a value of JSON."""


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every value inside of one of JSON: what holds it, and its key there."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


@st.composite
def nearly(draw: st.DrawFn, name: str) -> bytes:
    """A sample of a target: if it is JSON with up to three values replaced; then, or otherwise, with bytes replaced."""
    content = draw(st.sampled_from(sorted(TARGETS[name].samples())))
    with suppress(ValueError):
        held, tokens = json.loads(content), draw(st.lists(st.sampled_from(TOKENS), max_size=3))
        for number in range(len(tokens)):
            inside, key = draw(st.sampled_from(list(places(held))))
            inside[key] = f"@{number}@"
        text = json.dumps(held, indent=1 if content.startswith(b"{\n") else None)
        for number, token in enumerate(tokens):
            text = text.replace(f'"@{number}@"', token)
        content = text.encode()
    for _ in range(draw(st.integers(0, 2))):
        start = draw(st.integers(0, len(content)))
        end = start + draw(st.integers(-40, 40))  # bytes are replaced, cut out, or there twice
        content = content[:start] + draw(st.binary(max_size=8)) + content[max(end, 0) :]
    return content


@pytest.mark.parametrize("name", TARGETS)
def test_bytes_that_are_nearly_right_are_taken_or_refused_with_a_message(name: str):
    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(nearly(name))
    @example(b"")
    def check(content: bytes) -> None:
        TARGETS[name].read(content)

    check()


def test_a_member_that_unpacks_to_a_thousand_times_its_length_is_no_file_of_tensors():
    bomb = BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", b"\x93NUMPY\x01\x00" + bytes(1 << 24))
    TARGETS["tensors"].read(bomb.getvalue())
