"""One JSON line per verdict, flushed as it happens. Everything a report shows comes from these."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from conformance.results.schema import Record

_ENCODER = msgspec.json.Encoder()


class Records:
    """An open records file. Raises OSError at once where it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("wb")

    def write(self, record: Record) -> None:
        """One line, on disk before the next verdict begins. Raises OSError."""
        self._file.write(encode(record) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Idempotent. What cannot be written was reported when it was due."""
        with suppress(OSError):
            self._file.close()


def encode(record: Record) -> bytes:
    """A record as strict JSON on one line.

    Half a surrogate pair, which a kernel's message may hold and no UTF-8 can, becomes a question mark.
    """
    try:
        return _ENCODER.encode(record)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(record), ensure_ascii=False).encode("utf-8", "replace")
