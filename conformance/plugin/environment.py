"""Whether the arithmetic of the processes that judge is what verdicts rest on, from the first verdict to the last.

A library that switches on flush-to-zero, or that replaces a function of NumPy, changes references as well as kernels: a
wrong kernel agrees with a wrong reference, and only seed 0 has goldens.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from conformance.floating_point import mode
from conformance.implementations.errors import described
from conformance.inputs.golden import check_known
from conformance.plugin.recording import asked, record_of
from conformance.reporting.table import many

PROPERTY = "conformance-invalid"
"""What a worker reports in the place of a record, or with its end: reason and time of an `Invalid`."""
SECONDS = 60.0
"""Between two computations of known references."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """Why verdicts of a run are invalid, and which."""

    reason: str
    since: float
    """Time of the last good check, in seconds since the epoch."""
    verdicts: int
    """How many, counted from the last one back, in the order of the records."""

    def __str__(self) -> str:
        return f"{self.reason}. Invalid: {many(self.verdicts, 'verdict')} since the last good check"


class WrongArithmeticError(Exception):
    """This process must not pronounce verdicts; `since` is the time of the last good check."""

    def __init__(self, reason: str, since: float) -> None:
        super().__init__(reason)
        self.since = since


class Environment:
    """Checks the process that judges: its floating-point mode after every verdict, before that is published; references
    of the run's operators that are known before the first one, every minute and at the end.

    The process that counts ends the run where one of them is not as it should be.
    """

    def __init__(self, config: pytest.Config, operators: Collection[str]) -> None:
        self.invalid: Invalid | None = None
        self._config, self._operators = config, operators
        self._mode_held = self._references_held = self._begin = time.time()
        self._starts: list[float] = []
        """When the calls began whose verdicts are counted."""

    @property
    def _judged(self) -> bool:
        """Whether this process has come to a verdict, or was about to."""
        return self._references_held > self._begin

    def before(self, item: pytest.Item) -> None:
        """Check before the first verdict, and now and then."""
        if _ours(item) and (not self._judged or time.time() - self._references_held > SECONDS):
            with _dropping_the_record(item):
                self._require_mode()
                self._require_references()

    @contextmanager
    def checked(self, item: pytest.Item) -> Iterator[None]:
        """Around a verdict."""
        if not _ours(item):
            yield
            return
        with _dropping_the_record(item):
            try:
                yield
            finally:
                self._require_mode()

    def require_trust(self, report: pytest.TestReport) -> None:
        """End the run before anybody counts a report without a record."""
        found: Any = dict(report.user_properties).get(PROPERTY)
        if found:
            self._end(*found)
        if record_of(report) is not None:
            self._starts.append(report.start)

    def last_check(self) -> None:
        """At the end of a process; a worker tells it."""
        if not self._judged or self.invalid is not None:
            return
        try:
            self._require_mode()
            self._require_references()
        except WrongArithmeticError as error:
            if hasattr(self._config, "workeroutput"):
                self._config.workeroutput[PROPERTY] = str(error), error.since
            else:
                self._note(str(error), error.since)

    def hear(self, told: dict[str, Any]) -> None:
        """What a worker of pytest-xdist found at its end."""
        if found := told.get(PROPERTY):
            self._end(*found)

    def _require_mode(self) -> None:
        if found := mode():
            reason = f"the floating-point mode of the process that judges is not the default: {', '.join(found)}"
            raise WrongArithmeticError(reason, self._mode_held)
        self._mode_held = time.time()

    def _require_references(self) -> None:
        try:
            check_known(self._operators)
        except Exception as error:  # GoldenError; whatever comes where a function of NumPy has been replaced
            reason = f"known references are not reproduced: {described(error)}"
            raise WrongArithmeticError(reason, self._references_held) from None
        self._references_held = time.time()

    def _note(self, reason: str, since: float) -> None:
        first = next((number for number, start in enumerate(self._starts) if start >= since), len(self._starts))
        self.invalid = Invalid(reason, since, len(self._starts) - first)

    def _end(self, reason: str, since: float) -> None:
        self._note(reason, since)
        pytest.exit("verdicts cannot be trusted")  # the summary says why


def _ours(item: pytest.Item) -> bool:
    """Whether it verifies: a vendor's other tests may set the mode that they like."""
    return asked(item)[0] is not None


@contextmanager
def _dropping_the_record(item: pytest.Item) -> Iterator[None]:
    """A verdict that is reached in a wrong environment is none."""
    try:
        yield
    except WrongArithmeticError as error:
        item.user_properties[:] = [(PROPERTY, (f"{error} (seen in {item.nodeid})", error.since))]
        raise
