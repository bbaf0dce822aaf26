"""What a refused kernel raises: which kernel, which line of its source, which rule."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import TracebackType
from typing import NoReturn

SOURCES: set[str] = set()
"""File names of the kernels loaded so far, as their code objects carry them."""


class EmulationError(Exception):
    """A kernel broke a rule of the device, or of what this emulator can say about it.

    `kernel` is the jitted function, `file` and `line` the place in its source, `rule` an identifier such as
    "psum-uninitialised", `message` what was found there, `page` the page of the documentation that says so.
    """

    def __init__(self, kernel: str, file: str, line: int, rule: str, message: str, page: str = "") -> None:
        super().__init__(kernel, file, line, rule, message, page)
        self.kernel, self.file, self.line, self.rule, self.message = kernel, file, line, rule, message
        self.page = page

    def __str__(self) -> str:
        text = f"kernel {self.kernel}, {Path(self.file).name}:{self.line}: rule {self.rule}: {self.message}"
        return f"{text} (page: {self.page})" if self.page else text


class NotImplementedInEmulator(EmulationError):
    """The kernel uses what is documented, or may be, and is not here: says nothing about the kernel. Rule
    "not-implemented"."""


class Refusal(Exception):
    """A broken rule before it is known whose: the loader and `refuse` turn it into an `EmulationError`."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(rule, message)
        self.rule, self.message = rule, message


NOT_IMPLEMENTED = "not-implemented"


def located(kernel: str, file: str, line: int, rule: str, message: str, page: str = "") -> EmulationError:
    """The error of a rule: a refusal, or that the emulator lacks something."""
    kind = NotImplementedInEmulator if rule == NOT_IMPLEMENTED else EmulationError
    return kind(kernel, file, line, rule, message, page)


def refuse(rule: str, message: str) -> NoReturn:
    """Raise a `Refusal`. Its place is read from the traceback when it leaves the kernel, so checks cost nothing."""
    raise Refusal(rule, message)


def outside(rule: str, message: str) -> NoReturn:
    """Raise for code of a kernel's file that runs in no kernel."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename not in SOURCES:
        frame = frame.f_back
    raise EmulationError("(none)", frame.f_code.co_filename, frame.f_lineno, rule, message, "NKI Language Guide")


_NOT_KERNELS = (str(Path(__file__).parent), *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def place(traceback: TracebackType | None) -> tuple[str, int]:
    """File and line of the innermost frame that belongs to a kernel's source, ("", 0) without one.

    What a source imports from beside itself belongs to it.
    """
    location = "", 0
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        beside = location[0] and not file.startswith((*_NOT_KERNELS, "<"))
        if file in SOURCES or beside:
            location = file, traceback.tb_lineno
        traceback = traceback.tb_next
    return location
