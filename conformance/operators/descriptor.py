"""Problem descriptors: `n4 c64 h56 w56 k64 r3 s3 u2 p1 g1`, short enough to type and stable enough to be a key.

A field is a letter and a value. Values of both spatial axes may differ: `u2x1` is stride 2 over rows and 1 over
columns, `p0:1x2:0` pads 0 rows above, 1 below, 2 columns left and none right. Fields at their default are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from conformance.operators.spatial import GeometryError

_WORD = re.compile(r"([a-z]+)(-?[0-9][0-9x:]*)")
MAX_WORD, MAX_DIGITS = 80, 18
"""Characters of a field, four numbers at most; digits of a number, so that it is an integer of 64 bits. Python refuses
to read, and to print, a number of more than 4,300 digits."""
_REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Form:
    """How the value of a field is written; `hint` says so in an error."""

    pattern: str
    hint: str
    read: Callable[[re.Match[str]], Any]
    show: Callable[[Any], str]


NUMBER = Form(r"-?\d+", "one whole number", lambda found: int(found[0]), str)
FLAG = Form("[01]", "{0}0 or {0}1", lambda found: found[0] == "1", lambda value: str(int(value)))
NEGATED_FLAG = Form("[01]", "{0}0 or {0}1", lambda found: found[0] == "0", lambda value: str(int(not value)))
PAIR = Form(
    r"(\d+)(?:x(\d+))?",
    "a number or two joined by x, as in {0}2x1",
    lambda found: (int(found[1]), int(found[2] or found[1])),
    lambda pair: str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}x{pair[1]}",
)
SIDES = Form(
    r"(?P<t>\d+)(?::(?P<b>\d+))?(?:x(?P<l>\d+)(?::(?P<r>\d+))?)?",
    "written as {0}1, {0}1x2 or {0}0:1x2:0",
    lambda found: (
        (int(found["t"]), int(found["b"] or found["t"])),
        (int(found["l"] or found["t"]), int(found["r"] or found["l"] or found["b"] or found["t"])),
    ),
    lambda sides: "x".join(dict.fromkeys(str(a) if a == b else f"{a}:{b}" for a, b in sides)),
)
"""Padding by axis, (before, after) each."""


@dataclass(frozen=True, slots=True)
class Field:
    """A letter of a descriptor, and the attribute that it sets: the one of its own name unless another is given.

    `default` may be a function of the attributes before it. A field without one must be given.
    """

    letter: str
    meaning: str
    form: Form = NUMBER
    attribute: str = ""
    default: Any = _REQUIRED


class Described:
    """Parameters of a problem with a canonical text, which parses back to them."""

    PREFIX: ClassVar[str] = ""
    """First word of the text; convolution alone has none."""
    FIELDS: ClassVar[tuple[Field, ...]]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises GeometryError that names the unknown, repeated, missing or malformed field, or the value that no
        problem has."""
        known = {field.letter: field for field in cls.FIELDS}
        written: dict[str, str] = {}
        for word in text.strip().removeprefix(cls.PREFIX).split():
            if len(word) > MAX_WORD or any(len(digits) > MAX_DIGITS for digits in re.findall("[0-9]+", word)):
                raise GeometryError(
                    f"field {word[:20] + '...'!r} is too long: a number has at most {MAX_DIGITS} digits, "
                    f"a field {MAX_WORD} characters"
                )
            match = _WORD.fullmatch(word)
            if match is None or match[1] not in known:
                legend = ", ".join(f"{field.letter} {field.meaning}" for field in cls.FIELDS)
                raise GeometryError(f"field {word!r} is not understood; a field is a letter and a number: {legend}")
            if match[1] in written:
                raise GeometryError(f"field {match[1]!r} is given twice")
            written[match[1]] = match[2]
        values: dict[str, Any] = {}
        for letter, field in known.items():
            if letter in written:
                found = re.fullmatch(field.form.pattern, written[letter])
                if found is None:
                    raise GeometryError(f"field '{letter}{written[letter]}' must be {field.form.hint.format(letter)}")
                value = field.form.read(found)
            elif field.default is _REQUIRED:
                raise GeometryError(f"field {letter!r} is missing")
            else:
                value = field.default(values) if callable(field.default) else field.default
            values[field.attribute or letter] = value
        return cls(**values)

    @cached_property
    def descriptor(self) -> str:
        """Canonical text of the problem."""
        words = [self.PREFIX] if self.PREFIX else []
        for field in self.FIELDS:
            value = getattr(self, field.attribute or field.letter)
            default = field.default(vars(self)) if callable(field.default) else field.default
            if value != default:
                words.append(field.letter + field.form.show(value))
        return " ".join(words)
