"""Duration of calls, by the clock of the process that they run in, which the judge's own clock must agree with."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from conformance.execution.invocation import Invocation
from conformance.failure import Failure
from conformance.implementations.errors import KernelFailure
from conformance.worker import measuring
from conformance.worker.measuring import Timed

EXCHANGES, SHARE, SLACK = 4, 0.1, 1e-3
"""By how much the judge's clock may exceed the process's: this many times the duration of an exchange with the process,
this share of the calls' time, and these seconds."""
AGAIN = 7
"""Calls that must all exceed it, once most have: on a busy machine processes wait for one another now and then."""
SLOWER = 2.0
"""How many times as long as timed calls even the fastest of the calls before them may take, which are on inputs that
the kernel knows. The fastest counts, because on a busy machine most calls after a pause wait for threads to wake."""

BURST, MAX_BURST = 0.05, 200
"""Seconds of a burst of calls in one exchange, and their number at most: time that a process leaves out of each call
adds up there, but is lost in the exchange of a single call."""
BETWEEN = 3e-5
"""Seconds between two calls of a burst in which results are freed and no call runs."""
STRANGE, JITTER = 1.5, 5e-5
"""How many times as long as timed calls those of a burst may take, and by how many seconds longer."""


class CheatError(KernelFailure):
    """A kernel whose measured time would not be that of its work. The message gives the evidence; `what` leaves out its
    numbers."""

    def __init__(self, message: str, what: str) -> None:
        super().__init__(message, Failure(kind="cheat", message=what))
        self.what = what


@dataclass(slots=True)
class Clock:
    """Times the calls of a kernel. A process other than the judge's may report anything: it is believed as far as the
    judge's clock confirms it."""

    invocation: Invocation
    _spans: list[tuple[float, float]] = field(default_factory=list, init=False)
    """Seconds of each request, by the process and by the judge's clock."""
    _exchanges: list[float] = field(default_factory=list, init=False)
    """Seconds of an empty request after each."""
    _turns: list[tuple[float, float]] = field(default_factory=list, init=False)
    """For each call after others: seconds of the fastest of these others, and of the call."""

    def call(self, native: Sequence[Any], *before: Sequence[Any]) -> Timed:
        """Time a call of the kernel, after calls on other inputs. Raises CheatError for times that cannot be true."""
        start = perf_counter()
        timed = self.invocation.timed(*before, native)
        walls, events = timed.walls, timed.events or 0.0
        span, reported, begun = perf_counter() - start, sum(walls), perf_counter()
        self.invocation.bridge.perform(measuring.exchange)
        self._exchanges.append(perf_counter() - begun)
        # a NaN is neither more nor less than anything
        if len(walls) != 1 + len(before) or not (min(walls) >= 0 and reported <= span and 0 <= events <= span):
            raise _disagreement(reported, span)
        self._spans.append((reported, span))
        if before:
            self._turns.append((min(walls[:-1]), walls[-1]))
        return timed

    def require_agreement(self, native: Sequence[Any], *before: Sequence[Any]) -> None:
        """Raise CheatError where the process has reported less time than calls took, or timed calls differ from those
        just before or in a burst. A doubtful call is repeated, after the calls `before`."""
        if 2 * self._lacking(self._spans) > len(self._spans):
            for _ in range(AGAIN):
                self.call(native)
            again = self._spans[-AGAIN:]
            if self._lacking(again) == AGAIN:
                raise _disagreement(*map(statistics.median, zip(*again, strict=True)))
        turns = self._turns
        for _ in range(AGAIN):
            if (doubt := self._burst(native, turns)) is None:
                break
            # a machine that is slower now slows these calls too: torch failed here on one 1.7 times as slow
            for _ in range(AGAIN):
                self.call(native, *before)
            turns = self._turns[-AGAIN:]
        else:
            assert doubt is not None
            raise doubt
        if self._turns and _moved(
            min(reported for reported, _ in self._turns), statistics.median(span for _, span in self._turns)
        ):
            for _ in range(AGAIN):
                self.call(native, *before)
            again = self._turns[-AGAIN:]
            if all(_moved(*turn) for turn in again):
                earlier, timed = map(statistics.median, zip(*again, strict=True))
                took = f"timed calls take {timed:.3g} s, those just before them {earlier:.3g} s or more"
                raise CheatError(took, "timed calls are faster than those just before them")

    def _burst(self, native: Sequence[Any], turns: Sequence[tuple[float, float]]) -> CheatError | None:
        """Compare many calls in one exchange with the timed calls of `turns`. Return the error if they disagree, and
        None if they agree or a single call is long enough."""
        timed = statistics.median(two for _, two in turns) if turns else 0.0
        count = min(MAX_BURST, int(BURST / max(timed, 1e-6)))
        if not turns or count < 5:
            return None
        start = perf_counter()
        walls = self.invocation.timed(*[native] * count).walls
        span, reported = perf_counter() - start, sum(walls)
        if (
            span - reported
            > SLACK + SHARE * reported + EXCHANGES * statistics.median(self._exchanges) + count * BETWEEN
        ):
            return _disagreement(reported / count, span / count)
        median = statistics.median(walls)
        if median > STRANGE * timed + JITTER:
            took = f"timed calls take {timed:.3g} s, many in a row {median:.3g} s each"
            return CheatError(took, "timed calls are faster than many in a row")
        return None

    def _lacking(self, spans: Sequence[tuple[float, float]]) -> int:
        """Count the spans of which the process has reported too little."""
        exchange = statistics.median(self._exchanges)
        return sum(span - reported > SLACK + SHARE * reported + EXCHANGES * exchange for reported, span in spans)


def _moved(before: float, timed: float) -> bool:
    return before > SLOWER * timed + SLACK


def _disagreement(reported: float, span: float) -> CheatError:
    says = f"its process says that calls take {reported:.3g} s; by the judge's clock it was {span:.3g} s"
    return CheatError(says, "its process says other times than the judge's clock")
