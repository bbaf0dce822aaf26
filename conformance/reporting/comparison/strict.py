"""JSON from anybody: what a reader may take for granted, or an error that names the defect."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

DEPTH = 16
"""Levels of nesting that no honest record or benchmark file comes near."""
DIGITS = 400
"""Of a number: reading a longer one takes time with the square of its length."""


class StrictError(ValueError):
    """Text that is not strict JSON; the message is the defect."""


def parsed(text: str, depth: int = DEPTH) -> Any:
    """The value of a JSON text. Raises StrictError for NaN, infinities, a name given twice, and endless nesting."""
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_constant, parse_float=_float, parse_int=_integer
        )
    except StrictError:
        raise
    except RecursionError:
        raise StrictError(f"is nested more than {depth} deep") from None
    except ValueError as problem:
        raise StrictError(f"is not JSON ({problem})") from None
    if _deeper(value, depth):
        raise StrictError(f"is nested more than {depth} deep")
    return value


def decoded(content: bytes) -> str:
    """The text of bytes. Raises StrictError where they are not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise StrictError(f"is not UTF-8 (byte {problem.start})") from None


def shown(value: object, length: int = 120) -> str:
    """A value from anybody for a terminal or a page: control characters, escapes and markup cannot act in it."""
    text = str(value)
    cut = text if len(text) <= length else f"{text[: length - 1]}~"
    return "".join(c if c.isprintable() and c not in '<>&"' else _escape(c) for c in cut)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """JSON keeps the last of two equal names in silence."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise StrictError(f"gives the name {shown(name)} twice")
        found[name] = value
    return found


def _constant(word: str) -> Any:
    raise StrictError(f"holds {word}, which is no JSON number")


def _float(word: str) -> float:
    value = float(word) if len(word) <= DIGITS else math.inf
    if not math.isfinite(value):
        raise StrictError(f"holds the number {shown(word, 24)}, beyond what a float holds")
    return value


def _integer(word: str) -> int:
    if len(word) > DIGITS:
        raise StrictError(f"holds a number of {len(word)} digits")
    return int(word)


def _deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_deeper(part, depth - 1) for part in inner)
