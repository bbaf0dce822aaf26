"""The files that a kernel's process opens, as it tells its judge: what runs is more than the file that is named.

Python says what it is about to open (PEP 578). What code in C and other processes open, nobody says.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from conformance.files import state_of
from conformance.import_path import installed_folders, lists_packages
from conformance.resources import GOLDEN, PACKAGE
from conformance.worker import wire
from conformance.worker.guard import OPENS

OF_THE_SYSTEM = ("/proc/", "/sys/", "/dev/")
WRITING = os.O_WRONLY | os.O_RDWR


class Reads:
    """Files that this process has opened and has not told the judge of; of what is installed, the packages alone."""

    __slots__ = ("_installed", "_known", "_packages", "_passed", "_untold", "_written")

    def __init__(self, made: Sequence[str] = ()) -> None:
        """Nothing that lies in folders of what was `made` of sources is one."""
        self._packages = tuple(f"{place}{os.sep}" for place in sys.path if lists_packages(place))
        """Folders that packages are installed in."""
        self._installed = tuple(f"{folder}{os.sep}" for folder in installed_folders())
        self._passed = (*OF_THE_SYSTEM, *(f"{folder}{os.sep}" for folder in (PACKAGE, GOLDEN, *made)))
        self._known, self._written = set[str](), set[str]()
        self._untold = wire.Opened()

    def note(self, event: str, arguments: tuple[object, ...]) -> None:
        """Take in an event of `OPENS`. What the process has written itself is none of its sources."""
        place, at = OPENS[event]
        path, flags = arguments[place], arguments[at] if at >= 0 else WRITING * (at == -2)
        if not isinstance(path, (str, bytes, os.PathLike)):  # a descriptor, or a module that is in no file
            return
        if event == "ctypes.dlopen" and os.sep not in os.fsdecode(path):
            return
        file = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - called for whatever a framework opens
        if isinstance(flags, int) and flags & WRITING:
            if file not in self._written:
                self._written.add(file)
                self._untold.written.append(wire.plain(file))
        elif file not in self._known and file not in self._written and not file.startswith(self._passed):
            self._read(file)

    def _read(self, file: str) -> None:
        """Note a file that is opened for the first time."""
        for folder in self._packages:
            if file.startswith(folder):
                top, _, rest = file[len(folder) :].partition(os.sep)
                package = folder + (rest if top == "__pycache__" else top)
                if package not in self._known:
                    self._known.add(package)
                    self._untold.packages.append(wire.plain(package))
                return
        if not file.startswith(self._installed):
            with suppress(OSError, ValueError):
                state = state_of(Path(file))
                self._known.add(file)
                self._untold.read.append((wire.plain(file), state))

    def untold(self) -> wire.Opened | None:
        """Return what was opened since this was asked last; None where nothing was."""
        opened = self._untold
        if not (opened.read or opened.written or opened.packages):
            return None
        self._untold = wire.Opened()
        return opened
