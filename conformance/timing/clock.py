"""How long calls take: by the clock of the process that they run in, which the judge's own clock must agree with."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from conformance.execution.invocation import Invocation
from conformance.execution.status import KernelFailure

EXCHANGES, SHARE, SLACK = 4, 0.1, 1e-3
"""By how much the judge's clock may show more than the process says: so many times what an exchange with it takes, that
share of the calls, and these seconds."""
AGAIN = 7
"""Calls that must all show more, once most have: on a busy machine processes wait for one another now and then."""
SLOWER = 2.0
"""How many times as long as timed calls even the fastest of those before them may take: they are on inputs that the
kernel knows. It is the fastest, because on a busy machine most calls after a pause wait for threads to wake."""


class CheatError(KernelFailure):
    """A kernel whose time would not be that of its work; the message says how it showed."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a call returned, and its seconds: by the device's own events where it has some, and until it was idle."""

    result: Any
    wall: float
    events: float | None

    @property
    def seconds(self) -> float:
        return self.wall if self.events is None else self.events


@dataclass(slots=True)
class Clock:
    """Times the calls of a kernel. A process that is not the judge's may say anything: it is believed as far as the
    judge's clock bears it out."""

    invocation: Invocation
    _spans: list[tuple[float, float]] = field(default_factory=list, init=False)
    """Seconds of each request, by the process and by the judge's clock."""
    _exchanges: list[float] = field(default_factory=list, init=False)
    """Seconds of an empty request after each."""
    _turns: list[tuple[float, float]] = field(default_factory=list, init=False)
    """Of calls after others: seconds of the fastest of these, and of the call."""

    def call(self, native: Sequence[Any], *before: Sequence[Any]) -> Call:
        """The kernel, timed, after calls on other inputs. Raises CheatError for what cannot be true."""
        start = perf_counter()
        result, walls, events = self.invocation.timed(*before, native)
        span, told, asked = perf_counter() - start, sum(walls), perf_counter()
        self.invocation.instruments.exchange()
        self._exchanges.append(perf_counter() - asked)
        # a NaN is neither more nor less than anything
        if len(walls) != 1 + len(before) or not (min(walls) >= 0 and told <= span and 0 <= (events or 0.0) <= span):
            raise _disagreement(told, span)
        self._spans.append((told, span))
        if before:
            self._turns.append((min(walls[:-1]), walls[-1]))
        return Call(result, walls[-1], events)

    def require_agreement(self, native: Sequence[Any], *before: Sequence[Any]) -> None:
        """Raises CheatError where the process has said less than calls took, or has said it of others than those that
        count. What is in doubt is called again, after the calls `before`."""
        if 2 * self._lacking(self._spans) > len(self._spans):
            for _ in range(AGAIN):
                self.call(native)
            again = self._spans[-AGAIN:]
            if self._lacking(again) == AGAIN:
                raise _disagreement(*map(statistics.median, zip(*again, strict=True)))
        if self._turns and _moved(min(one for one, _ in self._turns), statistics.median(two for _, two in self._turns)):
            for _ in range(AGAIN):
                self.call(native, *before)
            again = self._turns[-AGAIN:]
            if all(_moved(*turn) for turn in again):
                earlier, timed = map(statistics.median, zip(*again, strict=True))
                raise CheatError(f"timed calls take {timed:.3g} s, those just before them {earlier:.3g} s or more")

    def _lacking(self, spans: Sequence[tuple[float, float]]) -> int:
        """In how many of them the process has said too little."""
        exchange = statistics.median(self._exchanges)
        return sum(span - told > SLACK + SHARE * told + EXCHANGES * exchange for told, span in spans)


def _moved(before: float, timed: float) -> bool:
    return before > SLOWER * timed + SLACK


def _disagreement(told: float, span: float) -> CheatError:
    return CheatError(f"its process says that calls take {told:.3g} s; by the judge's clock it was {span:.3g} s")
