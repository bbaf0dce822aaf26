"""Processes of a run: who has which task, and what it costs when one of them ends."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Sequence
from contextlib import closing
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from conformance.engine.arithmetic import WrongArithmeticError
from conformance.engine.pool import Begun, Died, Done, JudgeError, Processes
from conformance.results.writing import encode
from conformance.worker import wire
from tests.report_samples import as_read, sample


class Fake(NamedTuple):
    """A task that is what its key says, and has a number."""

    key: str
    number: int


def fake(connection: Connection, parent: int, doing: dict[str, str], name: str) -> None:
    """Serve as a process of a run whose tasks do what their keys say."""
    if doing.get("plans") == "no":
        os._exit(3)
    connection.send(("ready",))
    while (asked := connection.recv()) is not None:
        ((key, number),) = pickle.loads(asked)
        if key == "kills":
            with Path(doing.get("notes", os.devnull)).open("a") as notes:
                notes.write(f"{name}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        if key == "distrusts":
            connection.send(("untrusted", "flush to zero", 5.0))
            continue
        if key == "other":
            connection.send(("refused", "was changed"))
            continue
        record = as_read(sample(problem=f"{key}{number}", reason=name))
        connection.send(("done", time.time(), encode(record), None))
    connection.send(("compiled", msgspec.to_builtins(wire.Compiled(programs=2, kept=1, seconds=0.5))))


def masked(connection: Connection, *_: Any) -> None:
    """Say whether Ctrl-C would reach this process while it starts."""
    is_blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    connection.send(("refused", "blocked" if is_blocked else "open"))


def tasks(*keys: str) -> list[Any]:
    return [Fake(key, number) for number, key in enumerate(keys)]


def ran(units: Sequence[Sequence[Any]], count: int = 2, skipped: Any = "", **doing: str) -> tuple[list[Any], Processes]:
    """Return what a pool says of units of such tasks, and the pool."""
    pool = Processes(count, fake, lambda name, _: (doing, name))
    try:
        return list(pool.run(units, lambda task: task.key != skipped)), pool
    finally:
        pool.close()


def test_a_unit_stays_in_one_process_and_every_task_has_one_record():
    units = [tasks("a", "a"), tasks("b", "b", "b"), tasks("c")]
    events, pool = ran(units)
    done = [event for event in events if isinstance(event, Done)]
    assert sorted(event.record.problem for event in done) == ["a0", "a1", "b0", "b1", "b2", "c0"]
    for unit in units:
        assert len({event.record.reason for event in done if event.task in unit}) == 1
    assert sum(isinstance(event, Begun) for event in events) == 6
    assert pool.compiled.programs in (2, 4), "one may not have come to it"


def test_a_process_that_is_killed_costs_the_task_that_it_had():
    first, killing, rest = tasks("a", "kills", "b")
    events, _ = ran([[first, killing, rest], tasks("c")])
    (died,) = (event for event in events if isinstance(event, Died))
    assert died == Died(killing, "the process that judged it was ended by SIGKILL")
    assert {event.record.problem for event in events if isinstance(event, Done)} == {"a0", "b2", "c0"}


def test_a_process_takes_the_place_of_the_one_that_was_killed(tmp_path: Path):
    """A place has devices of its own: with another number it would share those of a process that lives."""
    places, units = dict[str, int](), [tasks("kills", "a"), tasks("kills", "b")]

    def arguments(name: str, place: int) -> tuple[dict[str, str], str]:
        places[name] = place
        return {"notes": str(tmp_path / "killed")}, name

    with closing(pool := Processes(2, fake, arguments)):
        list(pool.run(units, lambda task: True))
    killed = (tmp_path / "killed").read_text().split()
    assert [places["judge0"], places["judge1"]] == [0, 1]
    assert sorted(places[name] for name in ("judge2", "judge3")) == sorted(places[name] for name in killed)


def test_what_is_not_wanted_any_more_is_left_out():
    events, _ = ran([tasks("a", "b", "b"), tasks("b", "c")], skipped="b")
    # by two processes, of which either may be done first
    assert sorted(event.record.problem[0] for event in events if isinstance(event, Done)) == ["a", "c"]


@pytest.mark.parametrize(
    ("key", "plans", "error", "said"),
    [
        ("distrusts", "", WrongArithmeticError, "flush to zero"),
        ("other", "", JudgeError, "was changed"),
        ("a", "no", JudgeError, "has ended while it started: exited with status 3"),
    ],
)
def test_a_process_that_cannot_judge_ends_the_run(key: str, plans: str, error: type[Exception], said: str):
    with pytest.raises(error, match=said):
        ran([tasks(key)], plans=plans)


def test_ctrl_c_does_not_reach_a_process_that_starts():
    """It ended the first one in a traceback of its imports: what multiprocessing starts with it unblocks the signal."""
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]  # as at the start of a run
    pool = Processes(1, masked, lambda name, _: (name,))
    with closing(pool), pytest.raises(JudgeError, match="blocked"):
        list(pool.run([tasks("a")], lambda task: True))
