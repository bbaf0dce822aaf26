"""No kernel gets a time by remembering, by promising, by working where no clock runs, or by using memory twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.execution.invocation import MalformedError
from conformance.implementations.bridges.numpy import NumpyArrays
from conformance.timing import clock as clocks
from conformance.timing import rotation
from conformance.timing.clock import CheatError
from conformance.timing.measurement import Measurement
from conformance.worker import measuring
from conformance.worker.call import Result
from conformance.worker.measuring import Timed
from tests import cheaters
from tests.cheaters import Kernel
from tests.kit import rotate, trial_of

pytestmark = pytest.mark.usefixtures("one_core")

WORK = 0.003
"""Seconds that honest work takes, by the clock of these tests."""


class Clock:
    """Nothing takes time but what says so, so that no test depends on what else the machine does."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found, right = Clock(), cheaters.honest

    def slow(*inputs: Any, **parameters: Any) -> Any:
        found.spend(WORK)
        return right(*inputs, **parameters)

    monkeypatch.setattr(cheaters, "honest", slow)
    for module in (clocks, measuring):
        monkeypatch.setattr(module, "perf_counter", found.perf_counter)
    return found


def timed(kernel: Kernel, arrays: NumpyArrays | None = None) -> Measurement:
    return rotate(trial_of(kernel, arrays=arrays or NumpyArrays()))


@pytest.mark.parametrize(("make", "reason"), cheaters.TIMED.values(), ids=cheaters.TIMED)
def test_a_cheater_has_no_time(make: Callable[[], Kernel], reason: str):
    with pytest.raises((CheatError, MalformedError), match=reason):
        timed(make())


@pytest.mark.parametrize("make", [lambda: cheaters.honest, cheaters.sums_in_any_order], ids=["honest", "any-order"])
def test_an_honest_kernel_has_one(make: Callable[[], Kernel]):
    found = timed(make())
    assert len(found.rounds) == rotation.MAX_ROUNDS
    assert found.median >= WORK
    assert (found.rounds, found.visits[0].clock) == (found.visits[0].wall, "wall")


class Streams(NumpyArrays):
    """A device on which the caller's stream sees `share` of the time that work takes."""

    share = 1.0
    clock = Clock()

    def stopwatch(self, call):
        start = self.clock.perf_counter()
        call()
        wall = self.clock.perf_counter() - start
        return wall * self.share, wall


def test_work_on_another_stream_has_no_time(clock: Clock):
    honest = type("Most", (Streams,), {"share": 0.9, "clock": clock})
    found = timed(cheaters.honest, honest())
    assert found.visits[0].clock == "events"
    assert found.rounds == tuple(wall * 0.9 for wall in found.visits[0].wall)
    with pytest.raises(CheatError, match="of which the caller's stream sees"):
        timed(cheaters.honest, type("Little", (Streams,), {"share": 0.1, "clock": clock})())


def answering(answer: Callable[..., Timed]) -> clocks.Clock:
    """The judge's clock, and a process that answers so."""
    invocation: Any = SimpleNamespace(timed=answer, bridge=SimpleNamespace(perform=lambda routine: routine()))
    return clocks.Clock(invocation)


def refused(caught: bool, match: str) -> Any:
    return pytest.raises(CheatError, match=match) if caught else nullcontext()


BUSY = {
    "now and then": ({0, 1}, False, 1 + 3 + 2),  # two pairs that differ end each of the two searches
    "always": ({*range(99)}, True, 1 + rotation.PAIRS),
    "always but once": ({*range(99)} - {4}, True, 1 + rotation.PAIRS),
}
"""The comparisons that look like a cheat, whether that is one, and how many comparisons there are."""


@pytest.mark.parametrize(("suspicious", "caught", "asked"), BUSY.values(), ids=BUSY)
def test_a_busy_machine_is_no_proof(monkeypatch: pytest.MonkeyPatch, suspicious: set[int], caught: bool, asked: int):
    answers = iter(range(99))
    monkeypatch.setattr(rotation, "_suspicious", lambda *_: next(answers) in suspicious)
    with refused(caught, "answers from memory"):
        timed(cheaters.honest)
    assert next(answers) == asked


MACHINES = {"always": (1, 1, True), "not always": (1, 0, False), "now and then": (0, 0, False)}
"""Seconds that every call but the first is late, and the last one; and whether that proves a cheat."""


@pytest.mark.parametrize(("most", "last", "caught"), MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize(
    ("early", "calls", "said"),
    [
        (False, 3, r"calls take 0\.003 s; by the judge's clock it was 1 s"),
        (True, 2, r"timed calls take 0\.003 s, those just before them 1 s or more"),
    ],
    ids=["answers", "calls before timed ones"],
)
def test_late_answers_and_calls_on_a_busy_machine_are_no_proof(
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    early: bool,
    calls: int,
    said: str,
    most: int,
    last: int,
    caught: bool,
):
    monkeypatch.setattr(clocks, "BURST", 0.0)
    left = [1] + [most] * (calls - 1) + ([most] * (clocks.AGAIN - 1) + [last]) * most

    def answer(*inputs: Any) -> Timed:
        late = left.pop(0)
        walls = (WORK + late, WORK) if early else (WORK,)
        clock.spend(sum(walls) if early else WORK + late)
        return Timed(Result(None), walls, None)

    found = answering(answer)
    inputs: list[list[Any]] = [[]] * (2 if early else 1)
    for _ in range(calls):
        found.call(*inputs)
    with refused(caught, said):
        found.require_agreement(*inputs)
    assert not left


def test_no_two_timed_calls_are_given_the_same():
    seen: list[tuple[bytes, int]] = []

    def kernel(x, w, bias, **parameters):
        seen.append((x.tobytes(), x.ctypes.data))
        return cheaters.honest(x, w, bias, **parameters)

    rounds = len(timed(kernel).rounds)
    turn = rotation.WARM_UP + 1
    # the first call, that whose memory is measured, and the second, by which rounds are counted, go before
    waves = seen[3 : 3 + rounds * turn]
    due = waves[rotation.WARM_UP :: turn]
    assert len({content for content, _ in due}) == rounds
    assert len({address for _, address in due}) == rounds
    assert seen[0][0] not in {content for content, _ in due}
    assert {call for place, call in enumerate(waves) if place % turn < rotation.WARM_UP} == {seen[0]}


@pytest.mark.parametrize(
    ("slower", "caught"), [({"burst", "turn"}, False), ({"burst"}, True)], ids=["machine", "cheat"]
)
def test_many_in_a_row_are_compared_with_calls_of_the_same_moment(clock: Clock, slower: set[str], caught: bool):
    """A machine that became 1.7 times as slow during a run made torch a cheater."""
    late = False

    def answer(*inputs: Any) -> Timed:
        factor = 2.0 if late and ("turn" if len(inputs) == 2 else "burst") in slower else 1.0
        walls = (factor * WORK,) * len(inputs)
        clock.spend(sum(walls))
        return Timed(Result(None), walls, None)

    found = answering(answer)
    for _ in range(5):
        found.call([], [])
    late = True
    with refused(caught, r"timed calls take 0\.003 s, many in a row 0\.006 s each"):
        found.require_agreement([], [])
