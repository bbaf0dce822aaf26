"""Problem descriptors: `n4 c64 h56 w56 k64 r3 s3 u2 p1 g1`, short enough to type and stable enough to be a key.

A field is a letter and a value. Values of both spatial axes may differ: `u2x1` is stride 2 over rows and 1 over
columns, `p0:1x2:0` pads 0 rows above, 1 below, 2 columns left and none right. Fields at their default are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from conformance.operators.spatial import GeometryError, Padding, Pair

_FIELD = re.compile(r"([a-z]+)(-?\d[\dx:]*)")


def fields(text: str, known: Mapping[str, str]) -> dict[str, str]:
    """Split a descriptor into {letter: value}; `known` maps each allowed letter to its meaning.

    Raises GeometryError that names the unknown, repeated or malformed field.
    """
    found: dict[str, str] = {}
    for token in text.split():
        match = _FIELD.fullmatch(token)
        if match is None or match[1] not in known:
            legend = ", ".join(f"{letter} {meaning}" for letter, meaning in known.items())
            raise GeometryError(f"field {token!r} is not understood; a field is a letter and a number: {legend}")
        if match[1] in found:
            raise GeometryError(f"field {match[1]!r} is given twice")
        found[match[1]] = match[2]
    return found


def integer(found: Mapping[str, str], letter: str, default: int | None = None) -> int:
    """The value of a single-number field; a missing one without default is a GeometryError."""
    text = found.get(letter)
    if text is None:
        if default is None:
            raise GeometryError(f"field {letter!r} is missing")
        return default
    if not re.fullmatch(r"-?\d+", text):
        raise GeometryError(f"field '{letter}{text}' must be one whole number")
    return int(text)


def flag(found: Mapping[str, str], letter: str, default: int = 0) -> bool:
    """The value of a field that is 0 or 1."""
    value = integer(found, letter, default)
    if value not in (0, 1):
        raise GeometryError(f"field '{letter}{value}' must be {letter}0 or {letter}1")
    return bool(value)


def pair(found: Mapping[str, str], letter: str, default: Pair) -> Pair:
    """The value of a field by axis, `2` or `2x1`."""
    text = found.get(letter)
    if text is None:
        return default
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if match is None:
        raise GeometryError(f"field '{letter}{text}' must be a number or two joined by x, as in {letter}2x1")
    return int(match[1]), int(match[2] or match[1])


def padding(found: Mapping[str, str], letter: str = "p") -> Padding:
    """The value of a padding field, `1`, `1x2` or `0:1x2:0`."""
    text = found.get(letter, "0")
    match = re.fullmatch(r"(\d+)(?::(\d+))?(?:x(\d+)(?::(\d+))?)?", text)
    if match is None:
        raise GeometryError(f"field '{letter}{text}' must be written as {letter}1, {letter}1x2 or {letter}0:1x2:0")
    rows = (int(match[1]), int(match[2] or match[1]))
    return (rows, rows if match[3] is None else (int(match[3]), int(match[4] or match[3])))


def show_pair(letter: str, value: Pair, default: Pair) -> str:
    """The shortest text of a pair, empty at the default."""
    if value == default:
        return ""
    return f"{letter}{value[0]}" if value[0] == value[1] else f"{letter}{value[0]}x{value[1]}"


def show_padding(value: Padding, letter: str = "p") -> str:
    """The shortest text of a padding, empty when there is none."""
    if value == ((0, 0), (0, 0)):
        return ""
    rows, columns = (str(a) if a == b else f"{a}:{b}" for a, b in value)
    return f"{letter}{rows}" if rows == columns else f"{letter}{rows}x{columns}"
