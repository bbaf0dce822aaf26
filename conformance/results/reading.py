"""Records from anybody: what is not exactly a record is refused, with the defect and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from conformance.results.schema import SCHEMA, AnyRecord

_DECODER = msgspec.json.Decoder(AnyRecord)


class RecordError(ValueError):
    """A line that is no record; the message is the defect."""


class SchemaError(RecordError):
    """A record that another version of the suite wrote."""


class _Version(msgspec.Struct):
    schema: int | None = None


def lines(content: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    """The lines of a file of records that are not blank, each with its place in words."""
    found = content.split(b"\n")
    for number, line in enumerate(found, 1):
        last = number == len(found)  # a whole file ends with a line end
        if line.strip():
            yield f"{name}, line {number}{' (the last, without a line end)' if last else ''}", line


def decode(line: bytes | str) -> AnyRecord:
    """The record of a line. Raises RecordError; SchemaError where another version wrote it."""
    content = line.encode("utf-8", "replace") if isinstance(line, str) else line
    try:
        record: AnyRecord = _DECODER.decode(content)
    except msgspec.ValidationError as problem:
        _refuse_other_schema(content)
        raise RecordError(defect(problem)) from None
    except (ValueError, RecursionError) as problem:
        refuse_json(problem)
    require_unique(content)
    return record


def refuse_json(problem: Exception) -> NoReturn:
    """Raise RecordError for what msgspec says of bytes that are not JSON."""
    if isinstance(problem, RecursionError):
        raise RecordError("is nested too deep") from None
    if isinstance(problem, UnicodeDecodeError):
        raise RecordError("is not UTF-8") from None
    if "truncated" in str(problem):
        raise RecordError("is cut off: was its run interrupted?") from None
    raise RecordError(f"is not JSON ({shown(problem)})") from None


def require_unique(content: bytes) -> None:
    """Raise RecordError where an object gives a name twice, of which two readers may take two values."""
    try:
        json.loads(content, object_pairs_hook=_unique)
    except RecordError:
        raise
    except RecursionError as problem:
        refuse_json(problem)
    except ValueError as problem:  # in a field that no schema names
        raise RecordError(f"is not JSON ({shown(problem)})") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise RecordError(f"gives the name {shown(next(n for n in names if names.count(n) > 1))} twice")
    return found


def defect(problem: msgspec.ValidationError) -> str:
    """A validation error with the field first: "field cases: expected `int`, got `bool`"."""
    text = str(problem)
    for sign, words in ((">= ", "of at least "), ("<= ", "of at most "), ("> ", "above ")):
        text = text.replace(f"` {sign}", f"` {words}")
    what, _, place = text.partition(" - at `$")
    what, place = what[:1].lower() + what[1:], place.strip("`.")
    return shown(f"field {place}: {what}" if place else what)


def _refuse_other_schema(content: bytes) -> None:
    try:
        version = msgspec.json.decode(content, type=_Version).schema
    except msgspec.DecodeError:
        return
    if version not in (None, SCHEMA):
        raise SchemaError(
            f"written in schema {version}, this version reads schema {SCHEMA}; use the version of kernel-conformance "
            f"that wrote the file, or run again with this one"
        )


def shown(value: object, length: int = 120) -> str:
    """A value from anybody for a terminal or a page: control characters, escapes and markup cannot act in it."""
    text = str(value)
    cut = text if len(text) <= length else f"{text[: length - 1]}~"
    return "".join(c if c.isprintable() and c not in '<>&"' else _escape(c) for c in cut)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
