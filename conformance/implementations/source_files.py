"""The files that an implementation is loaded from: their hash, by which a verdict names the code that it is about, and
the check that they have not changed when the verdict is reached."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path

from msgspec import Struct

from conformance.failure import Failure
from conformance.files import LARGEST, LARGEST_SOURCE, below, content_of, state_of
from conformance.implementations.implementation import ImplementationError
from conformance.import_path import for_kernels, lists_packages

NATIVE = re.compile(r"\.(so(\.\d+)*|dylib|dll|pyd|cubin|fatbin|hsaco|neff)$")
"""Names of shared libraries and of device binaries."""
IMPORTED = re.compile(r"\.(pyc?|zip|egg|whl)$")
"""Names of files, beside native code, that Python imports from: they are sources in any folder."""
MADE = re.compile(r"\.((cpython|pypy|graalpy)-?\d[^.]*(\.opt-\d)?\.pyc|nb[ic])$")
"""Names of what Python and Numba keep in a `__pycache__`. A text of another name there was in no digest."""
SHOWN = re.compile(r"\.(html|jsonl|log)$")
"""Names of files that are read by people or by this suite: they are a kernel's only once the kernel reads them. The log
of a run in the kernel's folder made `--resume` refuse."""
WRITTEN = re.compile(r"\.(csv|json|md|txt|xml)$")
"""Names of other files that runs and kernels write beside sources: a change of such a file is no change of
the kernel, unless the kernel has read it. Nor is one in a hidden folder, such as a cache or a repository."""
MOST = 1000
"""Most files that are covered beside those that were named."""
UNCOVERED, GONE, CHANGED = "more files than are covered", "gone", "changed"
"""UNCOVERED names no file. GONE is the digest of a file that can no longer be read, CHANGED that of a file that is not
code and changed later: a log that a kernel's child writes and the kernel reads makes no kernel wrong."""


class Covers(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Files that ran beside the file or folder that was named, each with the SHA-256 of its content.

    loaded     files opened while it was loaded, by their place in its folder or absolute: `source` covers these too
    later      files opened when it was called
    packages   installed packages that it imports from, by name and version: the digest of each list of files (RECORD)
    """

    loaded: dict[str, str] = {}
    later: dict[str, str] = {}
    packages: dict[str, str] = {}

    @property
    def files(self) -> dict[str, str]:
        return self.loaded | self.later

    def without(self, earlier: Covers) -> Covers | None:
        """Return the entries that an `earlier` one does not have; None where it has all."""
        names = "loaded", "later", "packages"
        new = {n: dict(getattr(self, n).items() - getattr(earlier, n).items()) for n in names}
        return Covers(**new) if any(new.values()) else None

    def with_more(self, more: Covers) -> Covers:
        return Covers(
            loaded=self.loaded | more.loaded, later=self.later | more.later, packages=self.packages | more.packages
        )


class SourceFiles:
    """Sources and native code of an implementation as they are now. With a single file, native code beside it counts,
    because nobody can see it being loaded. Files that are added later do not count: many kernels compile when they are
    loaded.

    named    SHA-256 over names and contents
    digest   the same, over the files opened while it was loaded too
    covers   the files opened while it was loaded, and those opened later
    """

    def __init__(self, path: Path) -> None:
        """Hash a file, or the files of a folder. Raises OSError."""
        digest = hashlib.sha256()
        self._path = path
        self._base = path.absolute().parent
        self._folder = path.absolute() if path.is_dir() else self._base
        self._changed, self._begun = "", time.time_ns()
        self._seen: dict[Path, tuple[tuple[int, ...], bytes]] = {}
        """File -> the state of its inode, and the digest of its content."""
        self.covers, self._told = Covers(), dict[str, Covers]()
        self._files = set[Path]()
        self.watchers: list[Callable[[], None]] = []
        """Functions that call `cover` and `release` with what the implementation's processes have opened."""
        for name, target in _links(path):  # which of two files a name stands for
            digest.update(os.fsencode(name.as_posix()) + b"\0->" + os.fsencode(target) + b"\0")
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
        """Add files that the implementation's process has opened, with their state before: imported ones, and others in
        its folder. A file that has changed since is noted."""
        digests = dict[str, str]()
        for file, before in ((Path(name), before) for name, before in opened):
            if file in self._files and before != self._seen.get(file, (before,))[0] and not self._is_same(file, before):
                self._note(file, CHANGED, "was another file when it was read")
            if file in self._files or not self._is_source(file) or self._is_made(file, before[3]):
                continue
            if len(self.covers.files) + len(digests) >= MOST:
                digests[UNCOVERED] = GONE
                break
            try:
                state, digest = state_of(file), hashlib.sha256(content_of(file))
            except OSError:  # it was there when it was opened
                digests[self._name(file)] = GONE
                continue
            first = self._seen.setdefault(file, (state, digest.digest()))
            if state != before or first[1] != digest.digest():  # what is hashed here may not be what was read
                self._note(file, CHANGED, "was changed")
            digests[self._name(file)] = digest.hexdigest()
        new = {name: content for name, content in digests.items() if name not in self.covers.files}
        more = Covers(**{"loaded" if loading else "later": new}, packages=_distributions(packages))
        self.covers = self.covers.with_more(more)
        if loading and new:
            self.digest = self.digest_with(self.covers.loaded)

    def _is_same(self, file: Path, before: tuple[int, ...]) -> bool:
        """Return whether an opened file still holds what was hashed, although somebody has touched it."""
        with suppress(OSError):
            return (
                state_of(file) == before
                and hashlib.sha256(content_of(file, _most(file))).digest() == self._seen[file][1]
            )
        return False

    def release(self, written: Iterable[str]) -> None:
        """Note files that the implementation's process has written: those that it tunes and keeps may change."""
        for file in map(Path, written):
            if file in self._seen:
                self._note(file, CHANGED, "was written")

    def digest_with(self, loaded: Mapping[str, str]) -> str:
        """Return the digest of what was named and of files that were opened while it was loaded."""
        lines = "".join(f"{name}\0{content}\0" for name, content in sorted(loaded.items()))
        whole = f"{self.named}\0{lines}".encode("utf-8", "surrogateescape")
        return hashlib.sha256(whole).hexdigest() if loaded else self.named

    def news(self, implementation: str) -> Covers | None:
        """Return what is newly covered since the last call for one of the implementations that the files define."""
        self._watch()
        new, self._told[implementation] = self.covers.without(self._told.get(implementation, Covers())), self.covers
        return new

    def changed(self, before: Covers) -> str:
        """Return the first file or package of an earlier run that has changed since; an empty text where none has."""
        for name, digest in before.files.items():
            if digest_of(self._base / name) != digest:
                return name
        places = [Path(place) for place in for_kernels() if lists_packages(place)]
        for name, digest in before.packages.items():
            if digest not in (_record(place, name) for place in places):
                return name
        return ""

    def ran(self, source: str, covers: Covers) -> bool:
        """Return whether a record is about the files that are here now, by its digest and what the records of its run
        cover."""
        return source == self.digest_with(covers.loaded) and not self.changed(covers)

    def require_unchanged(self) -> None:
        """Raise ImplementationError where a file has changed since it was hashed, even if it was changed back: the
        code that was loaded in between is not what the digest is of."""
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
        """Note that a file has changed: for code the message that the next check raises, for other files the digest
        `now`."""
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
        """Return whether a file that was opened may determine what the implementation does."""
        if is_code(file.name):
            return True
        return file.is_relative_to(self._folder) and not _is_hidden(file.relative_to(self._folder))

    def _is_made(self, file: Path, changed: int) -> bool:
        """Return whether a file was compiled meanwhile, as by a kernel that compiles for each shape: it lies among
        temporary files, from where it is removed again."""
        is_new = bool(NATIVE.search(file.name)) and changed > self._begun
        return is_new and file.is_relative_to(tempfile.gettempdir()) and not file.is_relative_to(self._folder)

    def _name(self, file: Path) -> str:
        """Return the name of a file in records: its place beside what was named, or its absolute path."""
        return file.relative_to(self._base).as_posix() if file.is_relative_to(self._base) else str(file)


def is_code(name: str) -> bool:
    """Return whether a file of this name is code, which is a source in any folder, and may not change."""
    return bool(IMPORTED.search(name) or NATIVE.search(name))


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file's content; an empty text where it cannot be read."""
    try:
        return hashlib.sha256(content_of(file)).hexdigest()
    except OSError:
        return ""


def source_hash(path: Path) -> str:
    """Return the digest of a file or folder as it is now. Raises OSError."""
    return SourceFiles(path).digest


def _files(path: Path) -> Iterator[Path]:
    """Yield a file and the native code beside it, or the files in a folder."""
    if not path.is_dir():  # a path that is no file either is refused when it is read
        yield path
        yield from sorted(file for file in path.parent.iterdir() if NATIVE.search(file.name) and file.is_file())
        return
    linked = (link for link in below(path) if link.is_symlink() and link.is_dir() and not _is_within(link, path))
    for file in chain(below(path), *map(below, linked)):
        # claims describe this source: with them its digest would be another one
        if file == path / "claims.json" or SHOWN.search(file.name) or _is_compiled(file):
            continue
        if not file.exists() or _is_shown(file):
            continue
        if file.is_file() or (file.suffix == ".py" and not file.is_dir()):  # an import would wait for a pipe
            yield file


def _links(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the links in a folder, with what they lead to."""
    for link in below(path) if path.is_dir() else ():
        if link.is_symlink():
            yield link.relative_to(path), os.readlink(link)  # noqa: PTH115


def _is_within(link: Path, folder: Path) -> bool:
    """Return whether a link leads to a place in a folder, or to one that the folder is in."""
    target, home = link.resolve(), folder.resolve()
    return target.is_relative_to(home) or home.is_relative_to(target)


def _is_compiled(file: Path) -> bool:
    """Return whether Python or Numba made a file of the source beside its folder."""
    return file.parent.name == "__pycache__" and bool(MADE.search(file.name))


def _is_shown(file: Path) -> bool:
    """Return whether the output of this process goes to a file: it grew while kernels of its folder ran."""
    state = file.stat()
    outputs = (os.fstat(stream) for stream in (1, 2) if _is_open(stream))
    return any((state.st_dev, state.st_ino) == (output.st_dev, output.st_ino) for output in outputs)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _most(file: Path) -> int:
    """Return the most bytes that are read of a file."""
    return LARGEST if NATIVE.search(file.name) else LARGEST_SOURCE


def _is_text(content: bytes) -> bool:
    """Return whether content is text, as sources of any language are; what a build or a cache leaves behind is not."""
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


def _is_hidden(name: Path) -> bool:
    return any(part.startswith(".") for part in name.parts[1:])


def _distributions(packages: Iterable[str]) -> dict[str, str]:
    """Return the distributions that packages belong to, by name and version, with digests of their lists of files."""
    digests = {}
    for package in map(Path, packages):
        module = package.name.partition(".")[0]
        if distribution := _installed(package.parent).get(_canonical(module)) or _listing(package.parent, module):
            digests[distribution] = _record(package.parent, distribution)
    return {name: digest for name, digest in digests.items() if digest and not name.startswith("kernel_conformance-")}


@cache
def _installed(place: Path) -> dict[str, str]:
    """Return module -> its distribution, by the distribution's own name or by its list of modules (top_level.txt)."""
    names = {info: info.name.removesuffix(".dist-info") for info in place.glob("*.dist-info")}
    distributions = {_canonical(name.partition("-")[0]): name for name in names.values()}
    for info, name in names.items():
        with suppress(OSError):
            distributions |= {_canonical(line): name for line in (info / "top_level.txt").read_text().split()}
    return distributions


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
