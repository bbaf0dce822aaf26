"""Reading records that are not trusted: a line that is not exactly a record is refused, and the message says why."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from conformance.files import content_of
from conformance.results.schema import SCHEMA, AnyRecord, Count, Footer, Header, Record

T = TypeVar("T")


class RecordError(ValueError):
    """A line that is not a record; the message is the defect."""


class SchemaError(RecordError):
    """A record that another version of the suite wrote."""


class UnfinishedError(RecordError):
    """A run that did not finish."""


class ChangedError(RecordError):
    """Lines that differ from what their run wrote."""


class _Version(msgspec.Struct):
    schema: Count | None = None
    versions: dict[str, str] = {}


_DECODER: msgspec.json.Decoder[AnyRecord | Header | Footer] = msgspec.json.Decoder(AnyRecord | Header | Footer)
_MARKS: msgspec.json.Decoder[Header | Footer] = msgspec.json.Decoder(Header | Footer)
_VERSION = msgspec.json.Decoder(_Version)


@dataclass(slots=True)
class Run:
    """One run in the content of a file called `name`, with the runs that resumed it.

    first, last   numbers of its lines, counted from 1
    begin         number of bytes before its first line
    stray         numbers of lines after its footer that are not blank
    """

    content: bytes
    name: str
    first: int
    begin: int
    headers: list[Header]
    last: int = 0
    footer: Footer | None = None
    fits: bool = True
    stray: set[int] = field(default_factory=set)

    @property
    def title(self) -> str:
        """Name of the run in messages, by the time at which it started. The run must have a header."""
        return f"the run of {shown(self.headers[0].started)}"

    def lines(self) -> Iterator[tuple[str, bytes]]:
        """Yield the lines of verdicts, each with its place in words; skip blank lines, headers, footers and `stray`."""
        file = io.BytesIO(self.content)  # reads a line at a time, without a copy of the content
        file.seek(self.begin)
        for number in range(self.first, self.last + 1):
            line = file.readline()
            if line.strip() and number not in self.stray and _mark(line) is None:
                last = not line.endswith(b"\n")  # a whole file ends with a line end
                place = f"{self.name}, line {number}{' (the last, without a line end)' if last else ''}"
                yield place, line.removesuffix(b"\n")

    def records(self) -> Iterator[tuple[str, Record]]:
        """Yield the verdicts, each with its place. Raises RecordError naming the file, the line and the field."""
        for place, line in self.lines():
            try:
                yield place, decode(line)
            except RecordError as problem:
                raise RecordError(f"{place}: {problem}") from None

    def require_whole(self) -> None:
        """Raise ChangedError, also for lines of no run, SchemaError, and UnfinishedError if the run was cut off."""
        where = f"{self.name}, lines {self.first} to {self.last}"
        if not self.headers:
            _require_this_schema(self.content[self.begin :].partition(b"\n")[0])
            raise ChangedError(
                f"{where}: belong to no run, for no header stands above them; give what --records=FILE wrote"
            )
        if not self.fits:
            raise ChangedError(
                f"{where}: are not what {self.title} wrote, whose footer has another digest: some were changed, added "
                "or taken out; give the file as it was, or run again"
            )
        if self.stray:
            raise ChangedError(
                f"{self.name}, line {min(self.stray)}: stands behind the end of {self.title}; take it out"
            )
        if self.footer is None or self.footer.interrupted:
            raise UnfinishedError(f"{self.name}: {self.title} was cut off or interrupted; give its command --resume")


def runs(content: bytes, name: str) -> list[Run]:
    """Return the runs of a file of records, in its order; lines above the first header begin a run of their own."""
    all_runs: list[Run] = []
    begin, digest = 0, hashlib.sha256()
    for number, line in enumerate(io.BytesIO(content), 1):
        mark = _mark(line)
        if isinstance(mark, Header) and not mark.resumed:
            all_runs.append(Run(content, name, number, begin, []))
            digest = hashlib.sha256()
        elif not all_runs and line.strip():
            all_runs.append(Run(content, name, number, begin, []))
        begin += len(line)
        if not all_runs:
            continue
        run = all_runs[-1]
        run.last = number
        if isinstance(mark, Header):
            run.headers.append(mark)
            run.footer = None
        elif mark is not None:
            bound = digest.copy()
            bound.update(line[: line.rfind(mark.digest.encode())])
            run.footer, run.fits = mark, bound.hexdigest() == mark.digest
        elif run.footer is not None and line.strip():
            run.stray.add(number)
        digest.update(line)
    return all_runs


def verdicts(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield the verdicts of a file of records that must be whole, each with its place in words.

    Raises RecordError naming the file, the line and the field; see `Run.require_whole` for a run that is not whole.
    """
    for run in read(path):
        run.require_whole()
        yield from run.records()


def read(path: Path) -> list[Run]:
    """Return the runs of a file. Raises RecordError."""
    try:
        return runs(content_of(path), shown(path))
    except OSError as problem:
        why = f"{path}: cannot be read ({problem.strerror}); give what --records=FILE wrote"
        raise RecordError(why) from None


def _mark(line: bytes) -> Header | Footer | None:
    """Return the header or footer on a line; None for a verdict and any other line, which `decode` refuses."""
    if b'"header"' in line or b'"footer"' in line:
        with suppress(RecordError):
            return strict_json(line, _MARKS)
    return None


@dataclass(frozen=True, slots=True)
class Earlier:
    """Contents of a file of records before a run resumes it; `whole` if nothing is left to do.

    size   number of bytes in whole lines: whatever follows them is a line that was cut off
    """

    size: int = 0
    headers: tuple[Header, ...] = ()
    records: tuple[Record, ...] = ()
    whole: bool = True

    def require(self, header: Header) -> None:
        """Raise RecordError if a run in the file had other versions or options than the run with this header."""
        now = _conditions(header)
        for before in map(_conditions, self.headers):
            for name in sorted(before.keys() | now.keys()):
                if before.get(name) != now.get(name):
                    raise RecordError(
                        f"its run had {name} {shown(before.get(name, 'none'))}, this one has {now.get(name, 'none')}; "
                        "make them the same, or begin again with --overwrite"
                    )


def earlier(content: bytes) -> Earlier:
    """Return what the file of a run that is resumed holds. Raises RecordError for a file that no run can continue."""
    content = content[: content.rfind(b"\n") + 1]
    if not content:
        return Earlier()
    run, *rest = runs(content, "it")
    if rest:
        raise RecordError("it holds the records of several runs; resume each by itself")
    whole = True
    try:
        run.require_whole()
    except UnfinishedError:
        whole = False
    except ChangedError as problem:
        raise RecordError(f"{problem}, or begin again with --overwrite") from None
    records: list[Record] = []
    first: dict[bytes, str] = {}
    for place, line in run.lines():
        try:
            record = decode(line)
        except RecordError as problem:
            raise RecordError(f"{place} {problem}; begin again with --overwrite") from None
        # equal lines are copies: no two calls take equally long, and cases that cannot run are counted in one record;
        # only failures and errors without times may be equal, because two tests may have lost the same case
        once = record.seconds or record.status not in ("fail", "error")
        if once and first.setdefault(line, place) != place:
            raise RecordError(f"{place} is that of {first[line]} again; take it out, or begin again with --overwrite")
        records.append(record)
    return Earlier(len(content), tuple(run.headers), tuple(records), whole)


def _conditions(header: Header) -> dict[str, str]:
    """Return the versions and options that all verdicts of one run share, in words."""
    options = {name: " ".join(values) for name, values in header.selection.items()}
    shared = {"--level": header.level, "--seed": str(header.seed), "--method": header.method, "goldens": header.golden}
    shared |= {"--unit": str(header.unit)} if header.unit else {}
    shared |= {"--pass-env values of digest": header.environment} if header.environment else {}
    return header.versions | options | shared


def decode(line: bytes | str) -> Record:
    """Return the record of a line. Raises RecordError; SchemaError if another version wrote it."""
    content = line.encode("utf-8", "replace") if isinstance(line, str) else line
    try:
        record = strict_json(content, _DECODER)
    except RecordError:
        _require_this_schema(content)
        raise
    if isinstance(record, (Header, Footer)):
        raise RecordError("is no verdict, but begins or ends a run")
    return record


def _require_this_schema(line: bytes) -> None:
    """Raise SchemaError for a line of another version of the suite, naming that version if the line does."""
    try:
        written = _VERSION.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if written.schema not in (None, SCHEMA):
        suite = written.versions.get("kernel-conformance", "")
        by = f" by kernel-conformance {shown(suite)}" if suite else ""
        raise SchemaError(
            f"written in schema {written.schema}{by}, this version reads schema {SCHEMA}; use the version of "
            "kernel-conformance that wrote the file, or run again with this one"
        )


def strict_json(content: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode JSON strictly. Raises RecordError for anything that the decoder's type does not allow, and for anything
    that only some readers of JSON accept: NaN, other encodings, endless nesting, and a name given twice, of which two
    readers may take two values."""
    try:
        content.decode("utf-8")
        value = decoder.decode(content)
        json.loads(content, object_pairs_hook=_unique, parse_int=str)  # str: Python refuses thousands of digits
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
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise RecordError(f"gives the name {shown(next(n for n in names if names.count(n) > 1))} twice")
    return values


def _defect(problem: msgspec.ValidationError) -> str:
    """Return a validation error as text with the field first: "field cases: expected `int`, got `bool`"."""
    text = str(problem)
    for sign, words in ((">= ", "of at least "), ("<= ", "of at most "), ("> ", "above ")):
        text = text.replace(f"` {sign}", f"` {words}")
    what, _, place = text.partition(" - at `$")
    what, place = what[:1].lower() + what[1:], place.strip("`.")
    return shown(f"field {place}: {what}" if place else what)


def shown(value: object, length: int = 120) -> str:
    """Return a value as text for a terminal or a page: control characters, escapes and markup cannot act in it."""
    text = str(value)
    cut = text if len(text) <= length else f"{text[: length - 1]}~"
    return "".join(c if c.isprintable() and c not in '<>&"' else _escape(c) for c in cut)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
