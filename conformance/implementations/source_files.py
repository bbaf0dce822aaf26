"""The files that an implementation is loaded from: their hash, so that a verdict names what it is about, and whether
they are still the same when it is reached."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from conformance.failure import Failure
from conformance.implementations.implementation import ImplementationError

NATIVE = re.compile(r"\.(so(\.\d+)*|dylib|dll|pyd|cubin|fatbin|hsaco|neff)$")
"""Names of shared libraries and of device binaries."""
WRITTEN = re.compile(r"\.(csv|html|jsonl?|log|md|txt|xml)$")
"""Names of what runs and kernels write beside sources, such as records: no change of it is one of a kernel. Nor is one
in a hidden folder, where caches and repositories are."""


class SourceFiles:
    """Sources and native code of an implementation as they are now. Of a single file, native code beside it counts,
    whose loading nobody can see. What is added later is none of them: many kernels compile when they are loaded.

    digest   SHA-256 over names and contents
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        digest = hashlib.sha256()
        self._path = path
        self._changed = ""
        self._seen: dict[Path, tuple[tuple[int, ...], bytes]] = {}
        """File -> what its inode says, and the digest of its content."""
        for file in _files(path):
            state = _state(file)  # before it is read: what is written from now on is a change
            content, name = file.read_bytes(), file.relative_to(path.parent)
            if file != path and not (NATIVE.search(file.name) or _is_text(content)):
                continue
            digest.update(os.fsencode(name.as_posix()) + b"\0" + content + b"\0")
            if not (WRITTEN.search(file.name) or any(part.startswith(".") for part in name.parts[1:])):
                self._seen[file.absolute()] = state, hashlib.sha256(content).digest()
        self.digest = digest.hexdigest()

    def require_unchanged(self) -> None:
        """Raises ImplementationError where a file has changed since, also if it was changed back: what was loaded in
        between is not what the digest is of."""
        for file, (state, content) in self._seen.items():
            try:
                if (now := _state(file)) != state:
                    if hashlib.sha256(file.read_bytes()).digest() != content:
                        self._changed = f"{file.name} was changed"
                    self._seen[file] = now, content
            except OSError:
                self._changed = f"{file.name} was taken away"
            if self._changed:
                what = f"{self._changed} during the run: what ran is not the source that the record names; run again"
                what = f"{self._path.name}: {what}" if self._path.is_dir() else what
                raise ImplementationError(what, Failure(kind="source", message=what))


def source_hash(path: Path) -> str:
    """That of the files as they are now. Raises OSError."""
    return SourceFiles(path).digest


def _files(path: Path) -> Iterator[Path]:
    """A file and native code beside it, or what is in a folder."""
    if path.is_file():
        yield path
        yield from sorted(file for file in path.parent.iterdir() if NATIVE.search(file.name) and file.is_file())
        return
    for file in sorted(path.rglob("*")):
        # claims say what this source does, and would make it another one
        if file != path / "claims.json" and "__pycache__" not in file.parts[len(path.parts) :] and file.is_file():
            yield file


def _state(file: Path) -> tuple[int, ...]:
    """What changes whenever a file is written; nobody can set the time of the last change of its inode."""
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_text(content: bytes) -> bool:
    """Sources are, in whatever language; what a build or a cache leaves behind is not."""
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False
