"""Records that are not trusted: what is not exactly a record is refused, with the defect and what to do."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from conformance.results.schema import SCHEMA, AnyRecord, Count, Footer, Header, Record

T = TypeVar("T")


class RecordError(ValueError):
    """A line that is no record; the message is the defect."""


class SchemaError(RecordError):
    """A record that another version of the suite wrote."""


class UnfinishedError(RecordError):
    """A file that does not hold the whole of its runs."""


class _Version(msgspec.Struct):
    schema: Count | None = None


_DECODER: msgspec.json.Decoder[AnyRecord | Header | Footer] = msgspec.json.Decoder(AnyRecord | Header | Footer)
_MARKS: msgspec.json.Decoder[Header | Footer] = msgspec.json.Decoder(Header | Footer)
_VERSION = msgspec.json.Decoder(_Version)


def lines(content: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    """The verdicts of a file of records, each with its place in words, without blank lines, headers and footers.

    Raises UnfinishedError after the last where a run did not come to its end and no other resumed it.
    """
    unfinished: list[Header] = []
    for number, line in enumerate(io.BytesIO(content), 1):  # one at a time, and without a copy of the content
        mark = _mark(line)
        if isinstance(mark, Header):
            unfinished = [*(() if mark.resumed else unfinished), mark]
        elif mark is not None:
            unfinished = unfinished if mark.interrupted else unfinished[:-1]
        elif line.strip():
            last = not line.endswith(b"\n")  # a whole file ends with a line end
            place = f"{name}, line {number}{' (the last, without a line end)' if last else ''}"
            yield place, line.removesuffix(b"\n")
    if unfinished:
        raise UnfinishedError(
            f"{name}: the run of {shown(unfinished[0].started)} was cut off or interrupted; give its command --resume"
        )


def verdicts(path: Path) -> Iterator[tuple[str, Record]]:
    """The verdicts of a file of records that is to be whole, each with its place in words.

    Raises RecordError naming the file, the line and the field; see `lines` for a run that did not come to its end.
    """
    try:
        content = path.read_bytes()
    except OSError as problem:
        why = f"{path}: cannot be read ({problem.strerror}); give what --records=FILE wrote"
        raise RecordError(why) from None
    for place, line in lines(content, shown(path)):
        try:
            yield place, decode(line)
        except RecordError as problem:
            raise RecordError(f"{place}: {problem}") from None


def marks(content: bytes) -> list[Header | Footer]:
    """Where the runs of a file of records begin and end, in its order."""
    return [mark for line in io.BytesIO(content) if (mark := _mark(line)) is not None]


def headers(content: bytes) -> tuple[Header, ...]:
    """What the runs of a file of records were asked for, in its order."""
    return tuple(mark for mark in marks(content) if isinstance(mark, Header))


def counted(content: bytes) -> Counter[str]:
    """Cases by status, as the footers of a file of records have them: one that was resumed counts what stood before."""
    runs: list[Counter[str]] = []
    for mark in marks(content):
        if isinstance(mark, Header):
            runs += [] if mark.resumed and runs else [Counter()]
        elif runs:
            runs[-1] = Counter(mark.cases)
    return sum(runs, Counter())


def _mark(line: bytes) -> Header | Footer | None:
    """None for a verdict, and for what is neither: to `decode` it is a defect."""
    with suppress(RecordError):
        return strict_json(line, _MARKS)
    return None


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a file of records holds before a run resumes it; `whole` if nothing is left to do.

    size   bytes of whole lines: what stands behind them is a line that was cut off
    """

    size: int = 0
    headers: tuple[Header, ...] = ()
    records: tuple[Record, ...] = ()
    whole: bool = True

    def require(self, header: Header) -> None:
        """Raises RecordError where a run was asked for something else than the one with this header."""
        now = _conditions(header)
        for before in map(_conditions, self.headers):
            for name in sorted(before.keys() | now.keys()):
                if before.get(name) != now.get(name):
                    raise RecordError(
                        f"its run had {name} {shown(before.get(name, 'none'))}, this one has {now.get(name, 'none')}; "
                        "make them the same, or begin again with --overwrite"
                    )


def earlier(content: bytes) -> Earlier:
    """The runs of a file. Raises RecordError for the first line that is no verdict."""
    content = content[: content.rfind(b"\n") + 1]
    if content and not isinstance(_mark(content.partition(b"\n")[0]), Header):
        raise RecordError("its first line is no header, which says what its run was asked for; give --overwrite")
    records: list[Record] = []
    try:
        for place, line in lines(content, "it"):
            try:
                records.append(decode(line))
            except RecordError as problem:
                raise RecordError(f"{place} {problem}; begin again with --overwrite") from None
    except UnfinishedError:
        return Earlier(len(content), headers(content), tuple(records), whole=False)
    return Earlier(len(content), headers(content), tuple(records))


def _conditions(header: Header) -> dict[str, str]:
    """What the verdicts of one run have in common, in words."""
    options = {name: " ".join(values) for name, values in header.selection.items()}
    own = {"--level": header.level, "--seed": str(header.seed), "--method": header.method, "goldens": header.golden}
    return header.versions | options | own


def decode(line: bytes | str) -> Record:
    """The record of a line. Raises RecordError; SchemaError where another version wrote it."""
    content = line.encode("utf-8", "replace") if isinstance(line, str) else line
    try:
        found = strict_json(content, _DECODER)
    except RecordError:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            version = _VERSION.decode(content).schema
            if version not in (None, SCHEMA):
                raise SchemaError(
                    f"written in schema {version}, this version reads schema {SCHEMA}; use the version of "
                    f"kernel-conformance that wrote the file, or run again with this one"
                ) from None
        raise
    if isinstance(found, (Header, Footer)):
        raise RecordError("is no verdict, but begins or ends a run")
    return found


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
