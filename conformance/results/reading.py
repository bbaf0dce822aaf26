"""Records that are not trusted: what is not exactly a record is refused, with the defect and what to do."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from conformance.results.schema import SCHEMA, AnyRecord, Count, Record

T = TypeVar("T")


class RecordError(ValueError):
    """A line that is no record; the message is the defect."""


class SchemaError(RecordError):
    """A record that another version of the suite wrote."""


class _Version(msgspec.Struct):
    schema: Count | None = None


_DECODER: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)
_VERSION = msgspec.json.Decoder(_Version)


def lines(content: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    """The lines of a file of records that are not blank, each with its place in words."""
    for number, line in enumerate(io.BytesIO(content), 1):  # one at a time, and without a copy of the content
        last = not line.endswith(b"\n")  # a whole file ends with a line end
        if line.strip():
            place = f"{name}, line {number}{' (the last, without a line end)' if last else ''}"
            yield place, line.removesuffix(b"\n")


def decode(line: bytes | str) -> Record:
    """The record of a line. Raises RecordError; SchemaError where another version wrote it."""
    content = line.encode("utf-8", "replace") if isinstance(line, str) else line
    try:
        return strict_json(content, _DECODER)
    except RecordError:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            version = _VERSION.decode(content).schema
            if version not in (None, SCHEMA):
                raise SchemaError(
                    f"written in schema {version}, this version reads schema {SCHEMA}; use the version of "
                    f"kernel-conformance that wrote the file, or run again with this one"
                ) from None
        raise


def strict_json(content: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """What the decoder makes of bytes. Raises RecordError for what its type does not allow, and for what only some
    readers of JSON take: NaN, other encodings, endless nesting, and a name given twice, of which two readers may take
    two values."""
    try:
        content.decode("utf-8")
        value = decoder.decode(content)
        json.loads(content, object_pairs_hook=_unique, parse_int=str)  # not read: Python refuses thousands of digits
    except RecordError:
        raise
    except UnicodeDecodeError as problem:
        raise RecordError(f"is not UTF-8 (byte {problem.start})") from None
    except RecursionError:
        raise RecordError("is nested too deep") from None
    except msgspec.ValidationError as problem:
        raise RecordError(_defect(problem)) from None
    except ValueError as problem:
        if "truncated" in str(problem):
            raise RecordError("is cut off: was its run interrupted?") from None
        raise RecordError(f"is not JSON ({shown(problem)})") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise RecordError(f"gives the name {shown(next(n for n in names if names.count(n) > 1))} twice")
    return found


def _defect(problem: msgspec.ValidationError) -> str:
    """A validation error with the field first: "field cases: expected `int`, got `bool`"."""
    text = str(problem)
    for sign, words in ((">= ", "of at least "), ("<= ", "of at most "), ("> ", "above ")):
        text = text.replace(f"` {sign}", f"` {words}")
    what, _, place = text.partition(" - at `$")
    what, place = what[:1].lower() + what[1:], place.strip("`.")
    return shown(f"field {place}: {what}" if place else what)


def shown(value: object, length: int = 120) -> str:
    """A value for a terminal or a page: control characters, escapes and markup cannot act in it."""
    text = str(value)
    cut = text if len(text) <= length else f"{text[: length - 1]}~"
    return "".join(c if c.isprintable() and c not in '<>&"' else _escape(c) for c in cut)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
