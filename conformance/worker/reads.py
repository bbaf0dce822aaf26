"""The files that a kernel's process opens, as it tells its judge: more code runs than the file that is named.

Python says what it is about to open (PEP 578). Files that code in C and other processes open are not reported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from conformance.files import state_of
from conformance.import_path import installed_folders, lists_packages
from conformance.resources import GOLDEN, PACKAGE
from conformance.worker import wire
from conformance.worker.guard import OPENS

OF_THE_SYSTEM = ("/proc/", "/sys/", "/dev/")
BY_PROCESS = ("/proc/", "/dev/fd/")
"""Folders in which files have other names, by the processes that have them open."""
WRITING = os.O_WRONLY | os.O_RDWR
MOVES = ("os.rename", "os.link", "os.symlink")
"""Events after which a file that lay in one place lies in another."""


def _place(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """Return where a file lies, also one that is named by what a process has open."""
    file = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - called for whatever a framework opens
    return os.path.realpath(file) if file.startswith(BY_PROCESS) else file


def open_by_paths() -> None:
    """Let `os.open` open what lies in a folder that is given as a descriptor by its whole path: Python reports only the
    name in that folder, and another file of this name was taken for what a kernel had read."""
    original = os.open

    def whole(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is None or os.path.isabs(path):  # noqa: PTH117
            return original(path, flags, mode)
        with suppress(OSError):
            folder = os.readlink(f"/proc/self/fd/{dir_fd}")  # noqa: PTH115
            return original(os.path.join(folder, os.fsdecode(path)), flags, mode)  # noqa: PTH118
        return original(path, flags, mode, dir_fd=dir_fd)

    whole.__name__ = whole.__qualname__ = "open"
    os.open = whole
    os.supports_dir_fd.add(whole)


class Reads:
    """Files that this process has opened and has not told the judge of; of what is installed, the packages alone."""

    __slots__ = ("_installed", "_known", "_packages", "_passed", "_untold", "_written")

    def __init__(self, caches: Sequence[str] = ()) -> None:
        """Leave out files in the folders `caches`, which hold what was made of sources."""
        self._packages = tuple(f"{place}{os.sep}" for place in sys.path if lists_packages(place))
        """Folders that packages are installed in."""
        self._installed = tuple(f"{folder}{os.sep}" for folder in installed_folders())
        self._passed = (*OF_THE_SYSTEM, *(f"{folder}{os.sep}" for folder in (PACKAGE, GOLDEN, *caches)))
        self._known, self._written = dict[str, tuple[int, ...]](), set[str]()
        self._untold = wire.Opened()

    def note(self, event: str, arguments: tuple[object, ...]) -> None:
        """Record an event of `OPENS`. Files that the process has written itself are not among its sources."""
        place, at = OPENS[event]
        path, flags = arguments[place], arguments[at] if at >= 0 else WRITING * (at == -2)
        if not isinstance(path, (str, bytes, os.PathLike)):  # a descriptor, or a module that is in no file
            return
        if event == "ctypes.dlopen" and os.sep not in os.fsdecode(path):
            return
        file = _place(path)
        if event in MOVES:  # the file is read under another name from now on
            source = arguments[0]
            if isinstance(source, (str, bytes, os.PathLike)) and (moved := _place(source)) not in self._written:
                self._note(moved)
        changes = isinstance(flags, int) and flags & WRITING
        if changes and not self._keeps(file, flags):
            if file not in self._written:
                self._written.add(file)
                self._untold.written.append(wire.plain(file))
        elif file not in self._written:
            self._note(file)

    def _keeps(self, file: str, flags: object) -> bool:
        """Return whether a file that may be written to is read too, with its earlier content, as a map of memory is."""
        assert isinstance(flags, int)
        reads = flags & os.O_RDWR and not flags & os.O_TRUNC
        return bool(reads) and file not in self._written and os.path.isfile(file)  # noqa: PTH113

    def _note(self, file: str) -> None:
        if not file.startswith(self._passed):
            self._read(file)

    def _read(self, file: str) -> None:
        """Note a file that is opened for the first time, or that is another one than before."""
        for folder in self._packages:
            if file.startswith(folder):
                top, _, rest = file[len(folder) :].partition(os.sep)
                package = folder + (rest if top == "__pycache__" else top)
                if package not in self._known:
                    self._known[package] = ()
                    self._untold.packages.append(wire.plain(package))
                return
        if not file.startswith(self._installed):
            with suppress(OSError, ValueError):
                state = state_of(Path(file))
                if self._known.get(file) != state:
                    self._known[file] = state
                    self._untold.read.append((wire.plain(file), state))

    def untold(self) -> wire.Opened | None:
        """Return what was opened since the last call; None where nothing was."""
        opened = self._untold
        if not (opened.read or opened.written or opened.packages):
            return None
        self._untold = wire.Opened()
        return opened
