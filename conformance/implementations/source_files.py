"""The files that an implementation is loaded from: their hash, so that a verdict names what it is about, and whether
they are still the same when it is reached."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from msgspec import Struct

from conformance.failure import Failure
from conformance.files import LARGEST, LARGEST_SOURCE, below, content_of, state_of
from conformance.implementations.implementation import ImplementationError
from conformance.import_path import for_kernels, lists_packages

NATIVE = re.compile(r"\.(so(\.\d+)*|dylib|dll|pyd|cubin|fatbin|hsaco|neff)$")
"""Names of shared libraries and of device binaries."""
IMPORTED = re.compile(r"\.(pyc?|zip|egg|whl)$")
"""Names of what Python imports from, beside native code: a source wherever it lies."""
WRITTEN = re.compile(r"\.(csv|html|jsonl?|log|md|txt|xml)$")
"""Names of what runs and kernels write beside sources, such as records: no change of it is one of a kernel, unless the
kernel has read it. Nor is one in a hidden folder, where caches and repositories are."""
MOST = 1000
"""Files that are covered beside those that were named."""
UNCOVERED, GONE, CHANGED = "more files than are covered", "gone", "changed"
"""A name that no file has; what stands for the digest of one that could not be read any more, and of one that is no
code and was another one later: a log that a kernel's child writes and it reads makes no kernel wrong."""


class Covers(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ran beside the file or folder that was named: each with the SHA-256 of its content.

    loaded     files opened while it was loaded, by their place in its folder or absolute: `source` is of these too
    later      those that were opened when it was called
    packages   installed packages that it imports from, by name and version: of each the list of its files (RECORD)
    """

    loaded: dict[str, str] = {}
    later: dict[str, str] = {}
    packages: dict[str, str] = {}

    @property
    def files(self) -> dict[str, str]:
        return self.loaded | self.later

    def without(self, known: Covers) -> Covers | None:
        """Return what another one does not say; None where it says all."""
        names = "loaded", "later", "packages"
        new = {n: dict(getattr(self, n).items() - getattr(known, n).items()) for n in names}
        return Covers(**new) if any(new.values()) else None

    def with_more(self, more: Covers) -> Covers:
        return Covers(
            loaded=self.loaded | more.loaded, later=self.later | more.later, packages=self.packages | more.packages
        )


class SourceFiles:
    """Sources and native code of an implementation as they are now. Of a single file, native code beside it counts,
    whose loading nobody can see. What is added later is none of them: many kernels compile when they are loaded.

    named    SHA-256 over names and contents
    digest   over those that were opened while it was loaded too
    covers   these, and what was opened later
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        digest = hashlib.sha256()
        self._path = path
        self._base = path.absolute().parent
        self._folder = path.absolute() if path.is_dir() else self._base
        self._changed, self._begun = "", time.time_ns()
        self._seen: dict[Path, tuple[tuple[int, ...], bytes]] = {}
        """File -> what its inode says, and the digest of its content."""
        self.covers, self._told = Covers(), dict[str, Covers]()
        self._files = set[Path]()
        self.watchers: list[Callable[[], None]] = []
        """Whoever knows what the implementation's processes have opened, and calls `cover` and `release`."""
        for file in _files(path):
            state = state_of(file)  # before it is read: what is written from now on is a change
            if state[1] > LARGEST_SOURCE and not (file == path or file.suffix == ".py" or NATIVE.search(file.name)):
                continue  # weights, say
            content, name = content_of(file, _most(file)), file.relative_to(path.parent)
            if file != path and not (NATIVE.search(file.name) or _is_text(content)):
                continue
            digest.update(os.fsencode(name.as_posix()) + b"\0" + content + b"\0")
            self._files.add(file.absolute())
            if not (WRITTEN.search(file.name) or _is_hidden(name)):
                self._seen[file.absolute()] = state, hashlib.sha256(content).digest()
        self.named = self.digest = digest.hexdigest()

    def cover(
        self, opened: Iterable[tuple[str, tuple[int, ...]]], packages: Iterable[str] = (), *, loading: bool = False
    ) -> None:
        """Take in files that the implementation's process has opened, with their state before: what is imported, and
        what else lies in its folder. They may not have changed since."""
        found = dict[str, str]()
        for file, before in ((Path(name), before) for name, before in opened):
            if file in self._files and before != self._seen.get(file, (before,))[0] and not self._is_same(file, before):
                self._note(file, CHANGED, "was another file when it was read")
            if file in self._files or not self._is_source(file) or self._is_made(file, before[3]):
                continue
            if len(self.covers.files) + len(found) >= MOST:
                found[UNCOVERED] = GONE
                break
            try:
                state, digest = state_of(file), hashlib.sha256(content_of(file))
            except OSError:  # it was there when it was opened
                found[self._name(file)] = GONE
                continue
            known = self._seen.setdefault(file, (state, digest.digest()))
            if state != before or known[1] != digest.digest():  # else it is the content that nobody has read
                self._note(file, CHANGED, "was changed")
            found[self._name(file)] = digest.hexdigest()
        new = {name: content for name, content in found.items() if name not in self.covers.files}
        more = Covers(**{"loaded" if loading else "later": new}, packages=_distributions(packages))
        self.covers = self.covers.with_more(more)
        if loading and new:
            self.digest = self.digest_with(self.covers.loaded)

    def _is_same(self, file: Path, before: tuple[int, ...]) -> bool:
        """Whether a file that was opened holds what was hashed, though somebody has touched it."""
        with suppress(OSError):
            return (
                state_of(file) == before
                and hashlib.sha256(content_of(file, _most(file))).digest() == self._seen[file][1]
            )
        return False

    def release(self, written: Iterable[str]) -> None:
        """Take in files that the implementation's process has written: what it tunes and keeps may change."""
        for file in map(Path, written):
            if file in self._seen:
                self._note(file, CHANGED, "was written")

    def digest_with(self, loaded: Mapping[str, str]) -> str:
        """Return the digest of what was named and of files that were opened while it was loaded."""
        lines = "".join(f"{name}\0{content}\0" for name, content in sorted(loaded.items()))
        whole = f"{self.named}\0{lines}".encode("utf-8", "surrogateescape")
        return hashlib.sha256(whole).hexdigest() if loaded else self.named

    def news(self, implementation: str) -> Covers | None:
        """Return what is covered since this was asked last for one of the implementations that they define."""
        self._watch()
        new, self._told[implementation] = self.covers.without(self._told.get(implementation, Covers())), self.covers
        return new

    def changed(self, before: Covers) -> str:
        """Return the first file or package of an earlier run that is not as it was then; none where all are."""
        for name, digest in before.files.items():
            if digest_of(self._base / name) != digest:
                return name
        places = [Path(place) for place in for_kernels() if lists_packages(place)]
        for name, digest in before.packages.items():
            if digest not in (_record(place, name) for place in places):
                return name
        return ""

    def ran(self, source: str, covers: Covers) -> bool:
        """Whether a record's digest, and what the records of its run say that it covers, are of what is here now."""
        return source == self.digest_with(covers.loaded) and not self.changed(covers)

    def require_unchanged(self) -> None:
        """Raises ImplementationError where a file has changed since, also if it was changed back: what was loaded in
        between is not what the digest is of."""
        self._watch()
        for file, (state, content) in [*self._seen.items()]:
            try:
                if (now := state_of(file)) != state:
                    self._seen[file] = now, content
                    if hashlib.sha256(content_of(file, _most(file))).digest() != content:
                        self._note(file, CHANGED, "was changed")
            except FileNotFoundError:
                self._note(file, GONE, "was taken away")
            except OSError as error:
                self._note(file, GONE, f"was replaced ({error.strerror})")
        if self._changed:
            what = f"{self._changed} during the run: what ran is not the source that the record names; run again"
            what = f"{self._path.name}: {what}" if self._path.is_dir() else what
            raise ImplementationError(what, Failure(kind="source", message=what))

    def _note(self, file: Path, now: str, what: str) -> None:
        """Note that a file is not what it was: of code, that it has happened, for whoever asks next."""
        name = self._name(file)
        if file in self._files or is_code(name):
            self._changed = f"{name} {what}"
        else:
            self._seen.pop(file, None)
            self.covers = self.covers.with_more(Covers(later={name: now}))

    def _watch(self) -> None:
        for watcher in self.watchers:
            watcher()

    def _is_source(self, file: Path) -> bool:
        """Whether a file that was opened may say what the implementation does."""
        if is_code(file.name):
            return True
        return file.is_relative_to(self._folder) and not _is_hidden(file.relative_to(self._folder))

    def _is_made(self, file: Path, changed: int) -> bool:
        """Whether a file was compiled meanwhile, as a kernel does that compiles for each shape: it lies among temporary
        files, from where it is taken away again."""
        is_new = bool(NATIVE.search(file.name)) and changed > self._begun
        return is_new and file.is_relative_to(tempfile.gettempdir()) and not file.is_relative_to(self._folder)

    def _name(self, file: Path) -> str:
        """Return how records name a file: by its place beside what was named, or absolute."""
        return file.relative_to(self._base).as_posix() if file.is_relative_to(self._base) else str(file)


def is_code(name: str) -> bool:
    """Whether a file of this name is code, which is a source wherever it lies, and may not change."""
    return bool(IMPORTED.search(name) or NATIVE.search(name))


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file's content; none where it cannot be read."""
    try:
        return hashlib.sha256(content_of(file)).hexdigest()
    except OSError:
        return ""


def source_hash(path: Path) -> str:
    """That of what is named, as it is now. Raises OSError."""
    return SourceFiles(path).digest


def _files(path: Path) -> Iterator[Path]:
    """A file and native code beside it, or what is in a folder."""
    if not path.is_dir():  # what is no file either is refused when it is read
        yield path
        yield from sorted(file for file in path.parent.iterdir() if NATIVE.search(file.name) and file.is_file())
        return
    for file in below(path):
        # claims say what this source does, and would make it another one
        if file == path / "claims.json" or "__pycache__" in file.parts[len(path.parts) :] or not file.exists():
            continue
        if file.is_file() or (file.suffix == ".py" and not file.is_dir()):  # an import would wait for a pipe
            yield file


def _most(file: Path) -> int:
    """Bytes that are read of a file."""
    return LARGEST if NATIVE.search(file.name) else LARGEST_SOURCE


def _is_text(content: bytes) -> bool:
    """Sources are, in whatever language; what a build or a cache leaves behind is not."""
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


def _is_hidden(name: Path) -> bool:
    return any(part.startswith(".") for part in name.parts[1:])


def _distributions(packages: Iterable[str]) -> dict[str, str]:
    """Return the distributions that bring packages, by name and version, with digests of their lists of files."""
    found = {}
    for package in map(Path, packages):
        module = package.name.partition(".")[0]
        if distribution := _installed(package.parent).get(_canonical(module)) or _listing(package.parent, module):
            found[distribution] = _record(package.parent, distribution)
    return {name: digest for name, digest in found.items() if digest and not name.startswith("kernel_conformance-")}


@cache
def _installed(place: Path) -> dict[str, str]:
    """Return which distribution brings a module: the one of its name, or one that says so."""
    names = {info: info.name.removesuffix(".dist-info") for info in place.glob("*.dist-info")}
    found = {_canonical(name.partition("-")[0]): name for name in names.values()}
    for info, name in names.items():
        with suppress(OSError):
            found |= {_canonical(line): name for line in (info / "top_level.txt").read_text().split()}
    return found


@cache
def _listing(place: Path, module: str) -> str:
    """Return the distribution in whose list of files a module is; none where no list has it."""
    for record in place.glob("*.dist-info/RECORD"):
        with suppress(OSError):
            if f"\n{module}/".encode() in b"\n" + content_of(record):
                return record.parent.name.removesuffix(".dist-info")
    return ""


def _record(place: Path, distribution: str) -> str:
    """Return the digest of a distribution's list of files; none where it has no list."""
    return digest_of(place / f"{distribution}.dist-info" / "RECORD")


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()
