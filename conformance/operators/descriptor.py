"""Problem descriptors: `n4 c64 h56 w56 k64 r3 s3 u2 p1 g1`, short enough to type and stable enough to be a key.

A field is a letter and a value: a number, or a word behind a colon (`act:relu`). Values of the spatial axes may differ:
`u2x1` is stride 2 over rows and 1 over columns, `p0:1x2:0` pads 0 rows above, 1 below, 2 columns left and none right.
Fields at their default are left out.

A problem has as many spatial axes as its image and window have letters: `w` and `s`; `h w` and `r s`; `d h w` and
`t r s`, where dilation, otherwise `d`, is `dil`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, ClassVar, Self

from conformance.operators.spatial import IMAGE, RANKS, WINDOW, GeometryError

_WORD = re.compile(r"([a-z]+)(-?[0-9][0-9x:.]*|:[a-z0-9_]+)")
MAX_WORD, MAX_DIGITS = 80, 18
"""Largest number of characters of a field (at most four numbers), and of digits of a number, which then fits in 64
bits. Python refuses to read or to print a number of more than 4,300 digits."""
_LONG = re.compile(rf"[0-9]{{{MAX_DIGITS + 1}}}")
_REQUIRED = object()


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """Syntax of the value of a field; `hint` describes it in an error message. `words` are the values of a field that
    has one of several words."""

    pattern: re.Pattern[str]
    hint: str
    read: Callable[[re.Match[str]], Any]
    show: Callable[[Any], str]
    words: tuple[str, ...] = ()


NUMBER = Form(re.compile(r"-?\d+"), "one whole number", lambda match: int(match[0]), str)
PARTS = 256
"""Parts of 1 that a factor is a whole number of, as which problems are drawn and shrunk."""
DECIMAL = Form(
    re.compile(r"-?\d+(?:\.\d+)?"),
    "a number such as {0}2 or {0}-0.5",
    lambda match: float(match[0]),
    "{:.12g}".format,
)
FLAG = Form(re.compile("[01]"), "{0}0 or {0}1", lambda match: match[0] == "1", lambda value: str(int(value)))
NEGATED_FLAG = Form(FLAG.pattern, FLAG.hint, lambda match: match[0] == "0", lambda value: str(int(not value)))


def one_of(words: Sequence[str]) -> Form:
    """Return the form of a field whose value is a word behind a colon, as `act:relu`."""
    hint = f"one of {', '.join(f'{{0}}:{word}' for word in words)}"
    return Form(re.compile(f":(?:{'|'.join(words)})"), hint, lambda match: match[0][1:], ":{}".format, tuple(words))


def _every_axis(rank: int, number: str) -> re.Pattern[str]:
    """Return a pattern that matches either one value for all axes or one for each axis, joined by x."""
    return re.compile(number if rank == 1 else f"{number}|{number}(?:x{number}){{{rank - 1}}}")


def _for_axes(parts: list[Any], rank: int) -> tuple[Any, ...]:
    return tuple(parts if len(parts) == rank else parts * rank)


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(set(parts)) == 1 else "x".join(parts)


def _sides(text: str) -> tuple[int, int]:
    before, _, after = text.partition(":")
    return int(before), int(after or before)


_EXAMPLES = {
    1: ("a number", "{0}1 or {0}0:1"),
    2: ("a number or two joined by x, as in {0}2x1", "{0}1, {0}1x2 or {0}0:1x2:0"),
}
_EXAMPLES[3] = ("a number or three joined by x, as in {0}2x1x1", "{0}1, {0}1x2x2 or {0}0:1x2:0x1")
EXTENTS = {
    rank: Form(
        _every_axis(rank, r"\d+"),
        _EXAMPLES[rank][0],
        lambda match, rank=rank: _for_axes([int(part) for part in match[0].split("x")], rank),  # type: ignore[misc]
        lambda values: _joined([*map(str, values)]),
    )
    for rank in RANKS
}
"""Rank -> form of a number for each axis, or one number for all axes."""
SIDES = {
    rank: Form(
        _every_axis(rank, r"\d+(?::\d+)?"),
        "written as " + _EXAMPLES[rank][1],
        lambda match, rank=rank: _for_axes([_sides(part) for part in match[0].split("x")], rank),  # type: ignore[misc]
        lambda sides: _joined([str(a) if a == b else f"{a}:{b}" for a, b in sides]),
    )
    for rank in RANKS
}
"""Rank -> form of the padding, (before, after) for each axis."""


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A letter of a descriptor and the attribute that it sets: the attribute named by the letter unless `attribute` is
    given. If the attribute is a tuple with a letter for each axis, the field sets the number of one `axis`.

    `default` may be a function of the attributes before it. A field without a default is required. The number of a
    field that counts channels `per_group` is written for one group; the groups' field stands before it. `least` is the
    smallest value of a number without a default.
    """

    letter: str
    meaning: str
    form: Form = NUMBER
    attribute: str = ""
    default: Any = _REQUIRED
    axis: int | None = None
    per_group: bool = False
    least: int = 1

    @property
    def role(self) -> str:
        """The letter that a convolution has for the same attribute: `n` for the rows of a matrix product."""
        return _ROLES.get(self.attribute, self.letter)

    def of(self, geometry: Any) -> Any:
        """Return the field's value in a geometry."""
        value = getattr(geometry, self.attribute or self.letter)
        if self.per_group:
            return value // geometry.groups
        return value if self.axis is None else value[self.axis]

    def put(self, values: dict[str, Any], value: Any) -> None:
        """Add the field's value to the attributes of a geometry; fields with an axis must be added in order."""
        name = self.attribute or self.letter
        if self.per_group:
            value *= values["groups"]
        values[name] = value if self.axis is None else (*values.get(name, ()), value)

    def changed(self, geometry: Any, value: Any) -> Any:
        """Return the geometry with this field changed to `value`. Raises GeometryError."""
        name = self.attribute or self.letter
        if self.per_group:
            value *= geometry.groups
        if self.axis is None:
            return replace(geometry, **{name: value})
        old = getattr(geometry, name)
        return replace(geometry, **{name: (*old[: self.axis], value, *old[self.axis + 1 :])})

    def default_for(self, values: Mapping[str, Any]) -> Any:
        """Return the field's default, given the values of the attributes before it."""
        return self.default(values) if callable(self.default) else self.default


_ROLES = {"n": "n", "c": "c", "k": "k", "groups": "g", "bias": "b"}
_MEANINGS = {"d": "depth", "h": "height", "w": "width", "t": "window depth", "r": "window height", "s": "window width"}


def sized(attribute: str, letters: str) -> tuple[Field, ...]:
    """Return a field for the extent on each axis; together they set one attribute."""
    return tuple(Field(name, _MEANINGS[name], attribute=attribute, axis=axis) for axis, name in enumerate(letters))


def by_rank(fields: Callable[[int], Sequence[Field]]) -> dict[int, tuple[Field, ...]]:
    """Return the fields of every rank."""
    return {rank: tuple(fields(rank)) for rank in RANKS}


def dilated(rank: int) -> Field:
    """Return the field of the dilation, `d`; in three dimensions it is `dil`, because `d` is the depth."""
    return Field("dil" if rank == 3 else "d", "dilation", EXTENTS[rank], "dilation", (1,) * rank)


class Described:
    """Parameters of a problem with a canonical text that parses back to the same parameters."""

    __match_args__: ClassVar[tuple[str, ...]]
    """Names of the constructor's arguments, as dataclasses set them."""
    family: ClassVar[str]
    """Name of the family, which is that of its folder."""
    PREFIX: ClassVar[str] = ""
    """First word of the text; empty for convolution only."""
    FIELDS: ClassVar[dict[int, tuple[Field, ...]]]
    """Rank -> fields of the descriptor."""
    size: tuple[int, ...]

    @property
    def described(self) -> Any:
        """Return the parameters as `when=` of a kernel gets them."""
        return self

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the fields of this problem's rank."""
        return self.FIELDS[len(self.size)]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the constructor's arguments, not what was computed from them: thousands go between processes."""
        return type(self), tuple(vars(self)[name] for name in type(self).__match_args__)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a descriptor. Raises GeometryError that names the unknown, repeated, missing or malformed field, or the
        invalid value."""
        fields_of = _by_letter(*cls.FIELDS.values())
        written: dict[str, str] = {}
        for word in text.strip().removeprefix(cls.PREFIX).split():
            if len(word) > MAX_WORD or _LONG.search(word):
                raise GeometryError(
                    f"field {word[:20] + '...'!r} is too long: a number has at most {MAX_DIGITS} digits, "
                    f"a field {MAX_WORD} characters"
                )
            match = _WORD.fullmatch(word)
            if match is None or match[1] not in fields_of:
                legend = ", ".join(f"{field.letter} {field.meaning}" for field in fields_of.values())
                raise GeometryError(f"field {word!r} is not understood; a field is a letter and a number: {legend}")
            if match[1] in written:
                raise GeometryError(f"field {match[1]!r} is given twice")
            written[match[1]] = match[2]
        values: dict[str, Any] = {}
        fields = cls.FIELDS[rank_of(written) if len(cls.FIELDS) > 1 else next(iter(cls.FIELDS))]
        for foreign in written.keys() - {field.letter for field in fields}:
            raise GeometryError(
                f"field {foreign!r} is of another number of dimensions than the rest; "
                + ", ".join(f"{rank}-D has {' '.join(IMAGE[rank] + WINDOW[rank])}" for rank in cls.FIELDS)
            )
        for field in fields:
            letter = field.letter
            if letter in written:
                value_match = field.form.pattern.fullmatch(written[letter])
                if value_match is None:
                    raise GeometryError(f"field '{letter}{written[letter]}' must be {field.form.hint.format(letter)}")
                value = field.form.read(value_match)
            elif field.default is _REQUIRED:
                raise GeometryError(f"field {letter!r} is missing")
            else:
                value = field.default_for(values)
            field.put(values, value)
        return cls(**values)

    @cached_property
    def descriptor(self) -> str:
        """Canonical text of the problem."""
        words = [self.PREFIX] if self.PREFIX else []
        for field in self.fields:
            value = field.of(self)
            if value != field.default_for(vars(self)):
                words.append(field.letter + field.form.show(value))
        return " ".join(words)


def rank_of(letters: Collection[str]) -> int:
    """Return the number of dimensions of a problem whose descriptor has these letters, by those of window or image."""
    if "t" in letters or "dil" in letters:
        return 3
    return 2 if "r" in letters or "h" in letters else 1


@cache
def _by_letter(*ranks: tuple[Field, ...]) -> dict[str, Field]:
    """Return the fields of all ranks by letter; of a letter that several ranks have, the last rank's field."""
    return {field.letter: field for fields in ranks for field in fields}
