"""Access to files that others than the judge can write: at their path there may be a pipe that nobody writes to, on
which a read would wait for ever, a device without end, a file of holes that no memory holds, or folders deeper than
Python recurses.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

LARGEST = 1 << 31
LARGEST_SOURCE = 1 << 26
"""Most bytes of any file, and of a file that somebody has written by hand."""
DEEPEST = 100
"""Most levels of nested folders."""
OPENED = (Path("/dev/fd"), Path("/proc/self/fd"))
"""Folders of what the shell has opened: a pipe there has a writer, as in `conformance report <(zcat records.gz)`."""
_NONBLOCK, _BINARY = getattr(os, "O_NONBLOCK", 0), getattr(os, "O_BINARY", 0)


def content_of(path: Path, most: int = LARGEST) -> bytes:
    """Return the content of a file. Raises OSError, also if it is not a regular file, or has more than `most` bytes."""
    if path.parent in OPENED:
        return path.read_bytes()
    with os.fdopen(os.open(path, os.O_RDONLY | _NONBLOCK | _BINARY), "rb") as file:
        status = os.fstat(file.fileno())
        require_regular(status, path)
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"Larger than {most >> 20:,} MiB", str(path))
        try:
            if (content := file.read()) is None:  # a log of the system that holds nothing just now
                raise OSError(errno.EINVAL, "Not a regular file", str(path))
            return content
        except MemoryError:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(path)) from None


def state_of(path: Path) -> tuple[int, ...]:
    """Return values that change whenever a file is written; nobody can set the time of the last change of an inode.
    Raises OSError, also if it is not a regular file."""
    status = path.stat()
    require_regular(status, path)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def write(path: Path, content: bytes, *, at_end: bool = False) -> None:
    """Write a file, or append to it; it is created if there is none. Raises OSError, also if it is not a regular file,
    unless it is one of the system's devices, as in `--junitxml=/dev/stdout`."""
    if path.is_relative_to("/dev") or path.parent in OPENED:
        path.write_bytes(content)
        return
    flags = os.O_WRONLY | os.O_CREAT | _NONBLOCK | _BINARY | (os.O_APPEND if at_end else 0)
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        require_regular(os.fstat(file.fileno()), path)
        if not at_end:
            file.truncate()
        file.write(content)


def require_own_kind(path: Path, kind: str, *beginnings: bytes) -> None:
    """Raise FileExistsError if a file holds something else than what is to be written: a badge replaced a kernel's
    source."""
    if path.is_file() and (content := content_of(path)) and not content.startswith(beginnings):
        raise FileExistsError(errno.EEXIST, f"It exists, and is no {kind}; choose another file", str(path))


def require_regular(status: os.stat_result, path: Path) -> None:
    """Raise OSError if a file's status is not that of a regular file."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))


def below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and its subfolders, sorted; links to folders are not followed. Raises OSError, also
    where folders are deeper than `DEEPEST`: `Path.rglob` and `os.walk` end in a RecursionError there."""
    found, waiting = list[Path](), [(folder, 0)]
    while waiting:
        place, depth = waiting.pop()
        if depth > DEEPEST:
            raise OSError(errno.ELOOP, f"More than {DEEPEST} folders in one another", str(folder))
        with suppress(PermissionError), os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), depth + 1))
                else:
                    found.append(Path(entry.path))
    yield from sorted(found)


def remove(folder: Path) -> None:
    """Remove a file, or a folder and all in it. Raises OSError. `shutil.rmtree` needs a call and a descriptor for each
    level: here the contents of subfolders are moved up until there are no subfolders."""
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink()
        return
    numbers = count()
    while entries := [*os.scandir(folder)]:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)  # noqa: PTH108
                continue
            with suppress(OSError):
                os.chmod(entry.path, 0o700)  # noqa: PTH101
            for inner in os.scandir(entry.path):
                place = next(p for n in numbers if not os.path.lexists(p := folder / f"{n}"))
                os.rename(inner.path, place)  # noqa: PTH104
            os.rmdir(entry.path)  # noqa: PTH106
    folder.rmdir()
