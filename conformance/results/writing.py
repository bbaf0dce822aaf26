"""Writing a file of records: a header, a JSON line for each verdict as it is reached, and a footer."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec

from conformance.files import content_of
from conformance.results.build import now
from conformance.results.reading import Earlier, RecordError, earlier
from conformance.results.schema import SCHEMA, STATUSES, Footer, Header, Line, Record, Status

try:
    import fcntl
except ImportError:  # not on Windows: two runs that write to one file go unnoticed there
    fcntl = None  # type: ignore[assignment]

_ENCODER = msgspec.json.Encoder()
_BEGIN = b'{"kind":"'
"""First bytes of a file of records."""


class RecordsError(Exception):
    """A file that this run cannot write its records to; the message says why and what to do."""


class Records:
    """The file to which a run writes its records. An existing file is locked at once, so that a second run cannot write
    to it; before the first verdict no file is created and an existing one is not changed.

    Raises RecordsError if the file is locked, or is not empty and neither `resume` nor `overwrite` is given, and
    OSError if it cannot be written.
    """

    def __init__(self, path: Path, header: Header, *, resume: bool = False, overwrite: bool = False) -> None:
        self.path = path
        self._place = path.absolute()  # a kernel may change the current folder
        self._header, self._resume, self._overwrite = header, resume, overwrite
        self._file: int | None = None
        self._regular = self._begun = False
        self._size = 0
        """Number of bytes in whole lines."""
        self._digest = hashlib.sha256()
        """SHA-256 of these lines."""
        self._written: list[tuple[int, Status, int]] = []
        """For each record of this run: its offset in the file, its status and its number of cases."""
        self.earlier = Earlier()
        """Contents of the file that this run resumes."""
        if self._place.exists():
            self._open()
        else:
            require_creatable(self._place)
        self._cases = Counter[Status]()
        for record in self.earlier.records:
            self._cases[record.status] += record.cases

    def _open(self) -> None:
        self._place.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_APPEND | getattr(os, "O_BINARY", 0)
        if self._place.exists() and not self._place.is_file():
            # a pipe is written and never read; a pipe without a reader is refused, instead of waiting for one
            self._file = os.open(self._place, flags | os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
            os.set_blocking(self._file, True)
            return
        self._file = os.open(self._place, flags | os.O_RDWR | os.O_CREAT, 0o666)
        self._regular = True
        try:
            self._claim(self._file)
        except BaseException:
            self.close()
            raise

    def _claim(self, file: int) -> None:
        """Lock a file, and check whether it may be written. Raises RecordsError."""
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RecordsError("another run is writing to it; wait for its end, or give another file") from None
            except OSError:
                pass  # some network file systems have no locks
        content = content_of(self._place)
        if not (content.startswith(_BEGIN) or _BEGIN.startswith(content)):
            raise RecordsError("is no file of records; it is not overwritten")
        if content and not (self._resume or self._overwrite):
            raise RecordsError(
                "holds records already; give --resume to run only what has no verdict in it, --overwrite to begin "
                "again, or another file"
            )
        if self._resume:
            try:
                self.earlier = earlier(content)
                self.earlier.require(self._header)
            except RecordError as problem:
                raise RecordsError(f"cannot be resumed: {problem}") from None
            self._size = self.earlier.size
            self._digest.update(content[: self._size])
            self._header = msgspec.structs.replace(self._header, resumed=self._size > 0)

    def require_plan(self, plan: str) -> None:
        """Note the digest of the units that the run is divided into, for the header. Raises RecordsError if the run
        that this one resumes was divided into others."""
        if any(header.plan != plan for header in self.earlier.headers):
            raise RecordsError(
                "cannot be resumed: its unit is of another plan; give the --costs and the kernels that it was divided "
                "with, or begin again with --overwrite"
            )
        self._header = msgspec.structs.replace(self._header, plan=plan)

    def write(self, record: Record) -> None:
        """Write one record as a line before the next verdict begins. Raises OSError and RecordsError."""
        self._begin()
        place = self._size
        self._append(encode(record) + b"\n")
        self._written.append((place, record.status, record.cases))
        self._cases[record.status] += record.cases

    def _begin(self) -> None:
        if self._begun:
            return
        if self._file is None:
            self._open()
        self._truncate()
        self._append(encode(self._header) + b"\n")
        self._begun = True

    def _append(self, content: bytes) -> None:
        """Write all of a line or nothing. Raises OSError and RecordsError."""
        assert self._file is not None
        self._require_own()
        before, rest = (self._size, self._digest.copy()), memoryview(content)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
            self._size += len(content)
            self._digest.update(content)
        except BaseException:  # an interruption as well
            self._size, self._digest = before
            with suppress(OSError):
                self._truncate()
            raise

    def _require_own(self) -> None:
        """Raise RecordsError if the file was changed, moved, replaced or deleted, so that records would be lost."""
        if not self._regular or self._file is None:
            return
        status = os.fstat(self._file)
        with suppress(FileNotFoundError):
            if os.path.samestat(status, self._place.stat()):
                if status.st_size == self._size:
                    return
                raise RecordsError("was changed during the run by somebody else; run again with --overwrite")
        raise RecordsError("was moved, replaced or deleted during the run; run again")

    def _require_unchanged(self) -> None:
        """Raise RecordsError if the file no longer holds the bytes that were written: a kernel can overwrite a line in
        its place and restore the file's date."""
        if not (self._regular and self._begun) or self._file is None:
            return
        with os.fdopen(os.dup(self._file), "rb") as file:
            file.seek(0)
            if hashlib.file_digest(file, "sha256").digest() != self._digest.digest():
                raise RecordsError("was changed during the run by somebody else; run again with --overwrite")

    def _truncate(self) -> None:
        if self._regular and self._file is not None:
            os.ftruncate(self._file, self._size)

    def end(self, exit_status: int, interrupted: bool, invalid: int = 0) -> None:
        """Write the footer, unless there was nothing to write. The last `invalid` records are removed first: nobody is
        to read them, and `--resume` runs their cases again. Raises OSError and RecordsError."""
        self._require_unchanged()
        if invalid and self._regular:
            for place, status, count in reversed(self._written[-invalid:]):
                self._size = place
                self._cases[status] -= count
            self._truncate()
            self._digest = hashlib.sha256(content_of(self._place))
        if not (self.earlier.whole or interrupted):  # only the footer was missing
            self._begin()
        if self._begun:
            cases = {status: self._cases[status] for status in STATUSES if self._cases[status]}
            footer = Footer(
                schema=SCHEMA, ended=now(), cases=cases, exit_status=exit_status, interrupted=interrupted, digest=""
            )
            self._append(bound(footer, self._digest) + b"\n")
        self.close()

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def require_creatable(path: Path) -> None:
    """Raise OSError if a file could not be created; creates neither the file nor its folder."""
    place = path.absolute()
    nearest = next(folder for folder in place.parents if folder.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(nearest, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def bound(footer: Footer, above: hashlib._Hash) -> bytes:
    """Return the line of a footer, with the digest of its run's lines above it and of the line itself."""
    line = encode(footer)
    digest, end = above.copy(), len(line) - len('"}')
    digest.update(line[:end])
    return line[:end] + digest.hexdigest().encode() + line[end:]


def encode(line: Line) -> bytes:
    """Return a line of a file of records as strict JSON.

    Half a surrogate pair, which a kernel's message may contain but UTF-8 cannot encode, becomes a question mark.
    """
    try:
        return _ENCODER.encode(line)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(line), ensure_ascii=False).encode("utf-8", "replace")
