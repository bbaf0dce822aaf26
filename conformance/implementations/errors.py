"""What is wrong with somebody else's code: what it raised, in words, and what it did."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from typing import Any

from msgspec import structs

from conformance.failure import Failure, Kind
from conformance.resources import IMPLS, PACKAGE

MAX_MESSAGE = 2000
"""Characters of an exception's message that are kept: one of megabytes fills records and terminal."""


class KernelFailure(Exception):
    """What the kernel did is wrong: the status is `fail`, and the message says how it showed.

    `failure` is the same as data, by default of the class's kind with the first line of the message. `diagnosis` is the
    known mistake that explains it (`conformance.diagnosis.diagnose.Diagnosis`), where one does; the message ends with
    it.
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
    """Text with what a terminal obeys, what turns the direction of reading and what no XML may hold written as Python
    writes it, so that names stay apart. Lines and tabs stay."""
    if text.isprintable():
        return text
    odd = {ord(c): repr(c)[1:-1] for c in {*text} if not c.isprintable() and c not in "\n\t"}
    return text.translate(odd) if odd else text


def shortened(text: str, length: int) -> str:
    """Text of at most so many characters but for a note: a longer one without its middle, and how much that was."""
    if len(text) <= length:
        return text
    half = length // 2
    return f"{text[:half]} ... (left out: {len(text) - 2 * half:,} characters) ... {text[-half:]}"


def described(error: BaseException) -> str:
    """Type and message of what somebody else's code raised, whatever its `__str__` does and however long it is."""
    try:
        text = str(error)
    except BaseException as worse:  # KeyboardInterrupt as well, which nobody has typed
        text = f"(its message cannot be shown: {type(worse).__name__})"
    return f"{type(error).__name__}: {shortened(text, MAX_MESSAGE)}"


def of_the_suite(file: str | Path) -> bool:
    """Whether a file is no implementation's; those that ship with the suite lie inside the package."""
    return Path(file).is_relative_to(PACKAGE) and not Path(file).is_relative_to(IMPLS)


def _of_a_library(file: str) -> bool:
    """Whether a file was installed, or belongs to Python."""
    parts = {"site-packages", "dist-packages"} & {*Path(file).parts}
    return bool(parts) or file.startswith((sysconfig.get_path("stdlib"), "<frozen"))


def kernel_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The part of an error's traceback that lies in the kernel: what this package called last."""
    frames = traceback.extract_tb(error.__traceback__)
    files = [Path(frame.filename) for frame in frames]
    ours = [of_the_suite(file) for file in files]
    while ours and ours[-1]:  # a helper of ours that the kernel called is not the place
        ours.pop()
    first = len(ours) - ours[::-1].index(True) if True in ours else 0
    return frames[first : len(ours)]


def kernel_place(error: BaseException) -> traceback.FrameSummary | None:
    """The place in the kernel's own file that led to an error: its innermost line there.

    A framework may have called the file, as torch does with the `forward` of a module and the `backward` of a function:
    its lines are not the place.
    """
    called = kernel_frames(error)
    theirs = (frame for frame in called if not _of_a_library(frame.filename))
    first = next(theirs, called[0]).filename if called else ""
    return next((frame for frame in reversed(called) if frame.filename == first), None)


def blame(error: BaseException) -> str:
    """The error and its place, in words. Nothing is read from its attributes: a kernel's class may have any."""
    place = kernel_place(error)
    return f"raised {described(error)}" + (f" at {place.filename}:{place.lineno}" if place else "")


def failure_of(error: BaseException) -> Failure:
    """The same as data."""
    place, message = kernel_place(error), described(error).partition("\n")[0]
    if place is None:
        return Failure(kind="raised", message=message)
    return Failure(kind="raised", message=message, file=place.filename, line=place.lineno or 0)
