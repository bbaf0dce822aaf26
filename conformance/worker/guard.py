"""Keeps a kernel's process from what it must not find: pytest, and the parts of the suite that know right results."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from conformance.implementations.errors import of_the_suite
from conformance.resources import GOLDEN, PACKAGE

if TYPE_CHECKING:
    from conformance.worker.reads import Reads  # which imports NumPy: see `conformance.worker.isolation`

THIRD_PARTIES = ("pytest", "_pytest", "pluggy", "xdist", "execnet", "pytest_benchmark")
"""Packages that only the judge's process has. Other packages ask for some of these and do without."""
ROOMS = ("implementations", "worker", "shipped")
MODULES = (
    "accumulator",
    "contract",
    "dtypes",
    "exit_codes",
    "failure",
    "files",
    "floating_point",
    "import_path",
    "layouts",
    "meant",
    "resources",
    "slices",
    "storage",
    "zeros",
)
OPERATORS = ("base", "descriptor", "spatial")
"""Parts of the suite that declarations and kernels use: rooms, modules, and modules of the room `operators`, besides
those whose names end in `geometry` or `signatures`."""
OTHERS = {
    "execution": ("invocation",),
    "training": ("bridge", "exchange", "kernels", "layers", "loop", "models", "samples", "tables"),
}
"""Room -> its modules that call kernels; the others know right results."""

OPENS = {
    "open": (0, 2),
    "import": (1, -1),
    "ctypes.dlopen": (0, -1),
    "os.rename": (1, -2),
    "os.link": (1, -2),
    "os.symlink": (1, -2),
    "os.remove": (0, -2),
}
"""Event of the interpreter -> where among its arguments the file is, and the flags; -1 where it is read (`import` names
the file of a module in C), and -2 where it is written."""


def pipe() -> tuple[int, int]:
    """Open a pipe for findings; return the judge's end and the guard's. Neither waits."""
    ends = os.pipe()  # holds 2**16 bytes
    for end in ends:
        os.set_blocking(end, False)
    return ends


def findings(pipe: int) -> tuple[str, ...]:
    """Return what a guard has found since the judge asked last."""
    with suppress(BlockingIOError):
        report = os.read(pipe, 1 << 16)
        return tuple(report.decode("utf-8", "replace").splitlines()[:10]) or ("closes what its guard writes to",)
    return ()


class Guard:
    """A finder that comes before all others, and an audit hook that sees which files are opened.

    What they find goes into a pipe to the judge at once, from where no kernel takes it back.
    """

    __slots__ = ("_findings", "_forbidden", "reads", "sources")

    def __init__(self, findings: int, reads: Reads) -> None:
        self._findings, self.reads = findings, reads
        self.sources: tuple[str, ...] = ()
        """Paths of the implementations."""
        # a package's folder, but no folder that holds a file of its name: a kernel beside a pytest.py was accused
        packages = [spec for name in THIRD_PARTIES if (spec := find_spec(name)) and spec.submodule_search_locations]
        folders = [f"{Path(spec.origin).parent}{os.sep}" for spec in packages if spec.origin]
        self._forbidden = (*folders, PARTS, GOLDENS)

    def install(self) -> None:
        """Guard the rest of the process."""
        for name in (
            "CheckResult",
            "check",
            "export",
            "read_contract",
        ):  # a file may import them for a script of its own
            setattr(sys.modules["conformance"], name, partial(self._refuse, name))
        sys.meta_path.insert(0, self)
        sys.addaudithook(self._audit)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None, so that others look. Raises ModuleNotFoundError for modules that kernels must not find."""
        package, _, rest = name.partition(".")
        if package not in THIRD_PARTIES and (package != "conformance" or not rest or _open(rest.split("."))):
            return None
        if package == "conformance" and not _exists(rest.split(".")):
            return None
        asking = _asking()
        if package == "conformance" or asking.startswith(self.sources or ("\0",)):
            self._note(f"imports {name}", asking)
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in OPENS:
            return
        self.reads.note(event, arguments)
        if event != "open" or not isinstance(arguments[0], str) or not arguments[0].startswith(self._forbidden):
            return
        ours = arguments[0].startswith(PARTS) and not arguments[0].startswith(GOLDENS)
        if not ours or not readable(os.path.relpath(arguments[0], PACKAGE)):
            self._note(f"opens {arguments[0]}", _asking())

    def _refuse(self, name: str, *_: Any, **__: Any) -> None:
        self._note(f"calls conformance.{name}", _asking())
        raise RuntimeError(f"conformance.{name} is not available to kernels")

    def _note(self, what: str, asking: str) -> None:
        finding = f"{what}{f' in {asking}' if asking else ''}: a kernel must not know that it is tested\n"
        with suppress(BlockingIOError):  # a full pipe says enough
            os.write(self._findings, finding.encode("utf-8", "replace"))


def readable(file: str) -> bool:
    """Return whether kernels may read a file of the package."""
    *folders, name = file.split(os.sep)  # noqa: PTH206 - of hundreds of files at the start of a process
    parts = [part for part in (*folders, name.partition(".")[0]) if part not in ("__pycache__", "__init__")]
    return not parts or _open(parts)


PARTS, GOLDENS = f"{PACKAGE}{os.sep}", f"{GOLDEN}{os.sep}"


def _open(parts: Sequence[str]) -> bool:
    """Return whether kernels may use a part of the suite."""
    first, *rest = parts
    if first in OTHERS:
        return not rest or (len(rest) == 1 and rest[0] in OTHERS[first])
    if first != "operators":
        return first in ROOMS or (first in MODULES and not rest)
    if not rest or rest[-1].endswith(("geometry", "signatures")):
        return True
    return len(rest) == 1 and rest[0] in (*OPERATORS, *_FAMILIES)


_FAMILIES = tuple(entry.name for entry in os.scandir(PACKAGE / "operators") if entry.is_dir())


def _exists(parts: Sequence[str]) -> bool:
    place = PACKAGE.joinpath(*parts)
    return place.is_dir() or place.with_suffix(".py").is_file()


def _asking() -> str:
    """Return the file that asks: the innermost one that is neither the suite's nor the interpreter's own."""
    frame: Any = sys._getframe(2)
    while frame is not None and ("importlib" in (file := frame.f_code.co_filename) or of_the_suite(file)):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_code.co_filename)
