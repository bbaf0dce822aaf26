"""Check that verdicts can rest on the arithmetic of a process that judges, from the first verdict to the last.

A library that switches on flush-to-zero, or that replaces a function of NumPy, changes references as well as kernels: a
wrong kernel agrees with a wrong reference, and only seed 0 has goldens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from conformance.floating_point import mode
from conformance.implementations.errors import described
from conformance.inputs.golden import check_known
from conformance.reporting.table import many

SECONDS = 60.0
"""Seconds between two computations of known references."""


class WrongArithmeticError(Exception):
    """Raised where this process must not pronounce verdicts; `since` is the time of the last good check."""

    def __init__(self, reason: str, since: float) -> None:
        super().__init__(reason)
        self.reason, self.since = reason, since


@dataclass(frozen=True, slots=True)
class Invalid:
    """Why verdicts of a run are invalid, since when, and how many: the last ones in the order of the records."""

    reason: str
    since: float
    verdicts: int

    def __str__(self) -> str:
        return f"{self.reason}. Invalid: {many(self.verdicts, 'verdict')} since the last good check"


class Arithmetic:
    """Checks the process that judges: its floating-point mode after every verdict, before that is published; known
    references of the `operators` that are judged (asked for when first needed) before the first verdict, every minute
    and at the end."""

    def __init__(self, operators: Callable[[], Collection[str]]) -> None:
        self._operators = operators
        self._mode_held = self._references_held = self._begin = time.time()

    @property
    def has_judged(self) -> bool:
        """Return whether this process has come to a verdict, or was about to."""
        return self._references_held > self._begin

    def require_before(self) -> None:
        """Check before the first verdict, and then every minute. Raises WrongArithmeticError."""
        if not self.has_judged or time.time() - self._references_held > SECONDS:
            self.require()

    def require(self) -> None:
        """Check the mode and the known references. Raises WrongArithmeticError."""
        self.require_mode()
        try:
            check_known(self._operators())
        except Exception as error:  # GoldenError; whatever comes where a function of NumPy has been replaced
            reason = f"known references are not reproduced: {described(error)}"
            raise WrongArithmeticError(reason, self._references_held) from None
        self._references_held = time.time()

    def require_mode(self) -> None:
        """Check the mode after a verdict. Raises WrongArithmeticError."""
        if changed := mode():
            reason = f"the floating-point mode of the process that judges is not the default: {', '.join(changed)}"
            raise WrongArithmeticError(reason, self._mode_held)
        self._mode_held = time.time()
