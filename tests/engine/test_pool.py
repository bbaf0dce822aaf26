"""Processes of a run: who has which task, and what it costs when one of them ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import closing
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from conformance.engine.arithmetic import WrongArithmeticError
from conformance.engine.pool import Begun, Died, Done, JudgeError, Processes
from conformance.results.writing import encode
from conformance.worker import wire
from tests.report_samples import as_read, sample


def fake(connection: Connection, parent: int, doing: dict[str, str], name: str) -> None:
    """Serve as a process of a run whose tasks do what their keys say."""
    if doing.get("plans") == "no":
        os._exit(3)
    connection.send(("ready",))
    while (asked := connection.recv()) is not None:
        number, key = asked
        if key == "kills":
            os.kill(os.getpid(), signal.SIGKILL)
        if key == "distrusts":
            connection.send(("untrusted", "flush to zero", 5.0))
            continue
        if key == "other":
            connection.send(("refused", "has planned other tasks"))
            continue
        record = as_read(sample(problem=f"{key}{number}", reason=name))
        connection.send(("done", time.time(), encode(record), None))
    connection.send(("compiled", msgspec.to_builtins(wire.Compiled(programs=2, kept=1, seconds=0.5))))


def masked(connection: Connection, *_: Any) -> None:
    """Say whether Ctrl-C would reach this process while it starts."""
    is_blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    connection.send(("refused", "blocked" if is_blocked else "open"))


def tasks(*keys: str) -> list[Any]:
    return [SimpleNamespace(key=key) for key in keys]


def ran(units: Sequence[Sequence[Any]], count: int = 2, skipped: Any = "", **doing: str) -> tuple[list[Any], Processes]:
    """Return what a pool says of units of such tasks, and the pool."""
    every = [task for unit in units for task in unit]
    pool = Processes(every, count, fake, lambda name: (doing, name))
    try:
        return list(pool.run(units, lambda task: task.key != skipped)), pool
    finally:
        pool.close()


def test_a_unit_stays_in_one_process_and_every_task_has_one_record():
    units = [tasks("a", "a"), tasks("b", "b", "b"), tasks("c")]
    events, pool = ran(units)
    done = [event for event in events if isinstance(event, Done)]
    assert sorted(event.record.problem for event in done) == ["a0", "a1", "b2", "b3", "b4", "c5"]
    for unit in units:
        assert len({event.record.reason for event in done if event.task in unit}) == 1
    assert sum(isinstance(event, Begun) for event in events) == 6
    assert pool.compiled.programs in (2, 4), "one may not have come to it"


def test_a_process_that_is_killed_costs_the_task_that_it_had():
    first, killing, rest = tasks("a", "kills", "b")
    events, _ = ran([[first, killing, rest], tasks("c")])
    (died,) = (event for event in events if isinstance(event, Died))
    assert died == Died(killing, "the process that judged it was ended by SIGKILL")
    assert {event.record.problem for event in events if isinstance(event, Done)} == {"a0", "b2", "c3"}


def test_what_is_not_wanted_any_more_is_left_out():
    events, _ = ran([tasks("a", "b", "b"), tasks("b", "c")], skipped="b")
    # by two processes, of which either may be done first
    assert sorted(event.record.problem[0] for event in events if isinstance(event, Done)) == ["a", "c"]


@pytest.mark.parametrize(
    ("key", "plans", "error", "said"),
    [
        ("distrusts", "", WrongArithmeticError, "flush to zero"),
        ("other", "", JudgeError, "has planned other tasks"),
        ("a", "no", JudgeError, "has ended while it planned: exited with status 3"),
    ],
)
def test_a_process_that_cannot_judge_ends_the_run(key: str, plans: str, error: type[Exception], said: str):
    with pytest.raises(error, match=said):
        ran([tasks(key)], plans=plans)


def test_ctrl_c_does_not_reach_a_process_that_starts():
    """It ended the first one in a traceback of its imports: what multiprocessing starts with it unblocks the signal."""
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]  # as at the start of a run
    pool = Processes(every := tasks("a"), 1, masked, lambda name: (name,))
    with closing(pool), pytest.raises(JudgeError, match="blocked"):
        list(pool.run([every], lambda task: True))
