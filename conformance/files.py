"""Files that others than the judge can write: what lies at their path may be a pipe that nobody writes to, on which one
would wait for ever, or a device without end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

LARGEST = 1 << 33
OPENED = (Path("/dev/fd"), Path("/proc/self/fd"))
"""Folders of what the shell has opened: a pipe there has a writer, as in `conformance report <(zcat records.gz)`."""


def content_of(path: Path, most: int = LARGEST) -> bytes:
    """Return what is in a file. Raises OSError, also for what is no file, and for one of more than `most` bytes."""
    if path.parent in OPENED:
        return path.read_bytes()
    with os.fdopen(
        os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb"
    ) as file:
        found = os.fstat(file.fileno())
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"Larger than {most >> 20:,} MiB", str(path))
        return file.read()


def append(path: Path, text: str) -> None:
    """Write at the end of a file, which is made if there is none. Raises OSError, also for what is no file."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)  # else it waits for a pipe's reader
    with os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        file.write(text)
