"""Where the judge imports from once kernels run in processes of their own: from what is installed, which they cannot
write to (`conformance.worker.isolation`), and not from a folder that they can leave a file in.

A kernel that leaves `psutil.py` in the folder of a run, to which `python -m` gives the first place, would be imported
where the judge asks for psutil first. One that leaves compiled code in the `__pycache__` beside another kernel's
source would be run instead of it, in later runs too: of what is not installed, sources are read and nothing else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import PathEntryFinder
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from types import CodeType

from conformance.resources import IMPLS, PACKAGE

ARCHIVE = f"{os.sep}python{sys.version_info.major}{sys.version_info.minor}.zip"
"""Ending of the path of an archive that Python would have its library from."""
OF_KERNELS: list[str] = []
"""The original `sys.path`, for the files of kernels; empty while `sys.path` is unchanged."""


def trusted() -> list[str]:
    """Return `sys.path` with what is installed alone and, last, the suite if it is a checkout."""
    return [*filter(holds_packages, for_kernels()), str(PACKAGE.parent)]


def before_isolation() -> list[str]:
    """Return the same for a kernel's process until it is isolated. It has the archive of the library too, which need
    not be there: the process may not write where it would be."""
    archives = [path for path in for_kernels() if path.endswith(ARCHIVE)]
    return [*archives, *(path for path in trusted() if path not in archives)]


def trust(of_kernels: Sequence[str] = ()) -> None:
    """Import only what is installed from now on; if the suite is a checkout, look there last. A process that is started
    by one that has called this is given the original `sys.path`."""
    OF_KERNELS[:] = of_kernels or sys.path
    sys.path[:] = trusted()


def for_kernels() -> list[str]:
    """Return `sys.path` of kernels' processes."""
    return OF_KERNELS or sys.path


class SourceLoader(SourceFileLoader):
    """A loader that reads a source and no compiled code beside it, whose name and date anybody can give a file."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def read_sources_alone() -> None:
    """Import from sources alone from now on, except what is installed."""
    finder = FileFinder.path_hook(
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (SourceLoader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )
    trusted = tuple(os.path.join(folder, "") for folder in installed_folders() | {str(PACKAGE)})  # noqa: PTH118

    def find(path: str) -> PathEntryFinder:
        if os.path.join(os.path.realpath(path), "").startswith(trusted):  # noqa: PTH118
            raise ImportError("others look there")
        return finder(path)

    sys.path_hooks.insert(0, find)
    sys.path_importer_cache.clear()


def installed_folders() -> set[str]:
    """Return the folders that this interpreter imports from, beside those of users: the judge and other kernels would
    run what a kernel wrote there. Python looks for an archive of its library first, which usually is not there: the
    folder that it would lie in is included."""
    libraries = [path for path in sys.path if holds_packages(path)]
    libraries += [os.path.dirname(path) for path in sys.path if os.path.isabs(path) and path.endswith(ARCHIVE)]  # noqa: PTH117, PTH120
    programs = [os.path.dirname(sys.executable), os.path.dirname(os.path.realpath(sys.executable))]  # noqa: PTH120
    environment = [sys.prefix] if sys.prefix != sys.base_prefix else []
    suite = [str(IMPLS), str(PACKAGE.parent / "nki_emulator")]
    # where uv and conda keep packages: installed files are other names of the same files
    kept = [os.environ.get("UV_CACHE_DIR", os.path.expanduser("~/.cache/uv")), f"{sys.base_prefix}/pkgs"]  # noqa: PTH111
    kept.append(f"{os.path.dirname(os.path.dirname(sys.base_prefix))}/pkgs")  # noqa: PTH120
    found = map(os.path.realpath, [*libraries, *programs, *environment, *suite, *filter(None, kept)])
    return {path for path in found if os.path.isdir(path)}  # noqa: PTH112


def holds_packages(place: str) -> bool:
    """Return whether a folder of `sys.path` is the standard library's, or pip installs there."""
    library = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib takes its time, at the start of every process
    if place.startswith(library) or (place.endswith(ARCHIVE) and os.path.isfile(place)):  # noqa: PTH113
        return True
    return lists_packages(place)


def lists_packages(place: str) -> bool:
    """Return whether packages are installed in a folder of `sys.path`."""
    try:
        return bool(place) and any(name.endswith(".dist-info") for name in os.listdir(place))  # noqa: PTH208
    except OSError:
        return False
