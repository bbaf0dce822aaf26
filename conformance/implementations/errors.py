"""Errors of kernels and of other people's code: the exception in words, its place, and the failure as data."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from typing import Any

from msgspec import structs

from conformance.failure import Failure, Kind
from conformance.resources import IMPLS, PACKAGE

MAX_MESSAGE = 2000
"""Characters of an exception's message that are kept: a message of megabytes would fill records and terminal."""


class KernelFailure(Exception):
    """Raised where a kernel is wrong: the status is `fail`, and the message says how the mistake showed.

    `failure` is the failure as data, by default of the class's kind with the first line of the message. `diagnosis` is
    the known mistake that explains it (`conformance.diagnosis.diagnose.Diagnosis`), where one does; the message ends
    with it.
    """

    kind: Kind = "behaviour"

    def __init__(self, message: str, failure: Failure | None = None, diagnosis: Any = None) -> None:
        super().__init__(message if diagnosis is None else f"{message}\n{diagnosis}")
        self.message, self.diagnosis = message, diagnosis
        self.failure = failure or Failure(kind=self.kind, message=message.partition("\n")[0])
        if diagnosis is not None:
            last = message.count("\n") + 1
            self.failure = structs.replace(self.failure, headed=(*self.failure.headed, last))


def printable(text: str) -> str:
    """Return a text with each character that a terminal obeys, that turns the direction of reading or that XML forbids
    written as Python writes it, so that names stay apart. Line ends and tabs stay."""
    if text.isprintable():
        return text
    odd = {ord(c): repr(c)[1:-1] for c in {*text} if not c.isprintable() and c not in "\n\t"}
    return text.translate(odd) if odd else text


def shortened(text: str, length: int) -> str:
    """Return a text, without its middle if it has more than `length` characters; a note says how much is left out."""
    if len(text) <= length:
        return text
    half = length // 2
    return f"{text[:half]} ... (left out: {len(text) - 2 * half:,} characters) ... {text[-half:]}"


def described(error: BaseException) -> str:
    """Return type and message of a foreign exception, whatever its `__str__` does; a long message is shortened."""
    try:
        text = str(error)
    except BaseException as worse:  # KeyboardInterrupt as well, which nobody has typed
        text = f"(its message cannot be shown: {type(worse).__name__})"
    return f"{type(error).__name__}: {shortened(text, MAX_MESSAGE)}"


def of_the_suite(file: str | Path) -> bool:
    """Return whether a file is the suite's own and no implementation's: shipped implementations lie in the package
    too."""
    return Path(file).is_relative_to(PACKAGE) and not Path(file).is_relative_to(IMPLS)


def _of_a_library(file: str) -> bool:
    """Return whether a file was installed as a package, or belongs to Python."""
    parts = {"site-packages", "dist-packages"} & {*Path(file).parts}
    return bool(parts) or file.startswith((sysconfig.get_path("stdlib"), "<frozen"))


def kernel_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the part of an error's traceback that lies in the kernel: the frames below the suite's last call."""
    frames = traceback.extract_tb(error.__traceback__)
    files = [Path(frame.filename) for frame in frames]
    ours = [of_the_suite(file) for file in files]
    while ours and ours[-1]:  # a helper of the suite that the kernel called is not the place
        ours.pop()
    first = len(ours) - ours[::-1].index(True) if True in ours else 0
    return frames[first : len(ours)]


def kernel_place(error: BaseException) -> traceback.FrameSummary | None:
    """Return the place in the kernel's own file that led to an error: its innermost line there.

    A framework may have called the file, as torch calls the `forward` of a module and the `backward` of a function: the
    framework's lines are not the place.
    """
    called = kernel_frames(error)
    frames = (frame for frame in called if not _of_a_library(frame.filename))
    first = next(frames, called[0]).filename if called else ""
    return next((frame for frame in reversed(called) if frame.filename == first), None)


def blame(error: BaseException) -> str:
    """Describe an error and its place in words, without reading its attributes: a kernel's class may have any."""
    place = kernel_place(error)
    return f"raised {described(error)}" + (f" at {place.filename}:{place.lineno}" if place else "")


def failure_of(error: BaseException) -> Failure:
    """Return what a kernel raised, and its place, as data."""
    place, message = kernel_place(error), described(error).partition("\n")[0]
    if place is None:
        return Failure(kind="raised", message=message)
    return Failure(kind="raised", message=message, file=place.filename, line=place.lineno or 0)
