"""Pools that carry out the tasks of a run, behind one small protocol: this process, or several of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol

import msgspec

from conformance.engine.arithmetic import Arithmetic, WrongArithmeticError
from conformance.engine.perform import Performed, perform
from conformance.engine.run import Run
from conformance.engine.task_wire import UnknownKernelError, decode, encode
from conformance.engine.tasks import Task
from conformance.results.schema import AnyRecord, Record
from conformance.results.writing import encode as encoded_record
from conformance.worker import wire
from conformance.worker.isolation import end_with

PATIENCE = 10.0
"""Seconds that a process has to end by itself."""

Wanted = Callable[[Task], bool]


class Begun(NamedTuple):
    """A task is being carried out."""

    task: Task


class Done(NamedTuple):
    """A task has its record, and perhaps that of a case that its check has verified beside its own. `exception` is what
    a kernel raised in this process."""

    task: Task
    start: float
    """Time of its call, in seconds since the epoch."""
    record: Record
    beside: Record | None = None
    exception: BaseException | None = None


class Died(NamedTuple):
    """The process that carried out a task has ended, and the verdict is lost."""

    task: Task
    reason: str


class Suspected(NamedTuple):
    """A verdict that another device of the kind did not repeat: it says nothing of the kernel, and has no record."""

    task: Task
    device: str
    other: str
    statuses: tuple[str, str]


class TakenOut(NamedTuple):
    """A device that carries out no more units of the run, and why."""

    device: str
    reason: str


class Counted(NamedTuple):
    """Units that have ended, of how many, and devices that carry out the others."""

    done: int
    units: int
    devices: int


Event = Begun | Done | Died | Suspected | TakenOut | Counted


class Pool(Protocol):
    """Carries out units: tasks that share references and compiled programs, and that one process carries out in turn. A
    task that is not `wanted` any more when its turn comes is left out. Raises WrongArithmeticError if a process must
    not pronounce verdicts."""

    @property
    def compiled(self) -> wire.Compiled:
        """Programs that its processes have compiled for kernels, as far as they are known."""
        ...

    def run(self, units: Sequence[Sequence[Task]], wants: Wanted) -> Iterator[Event]: ...

    def close(self) -> None: ...


class Judge:
    """One process that carries out tasks, with the check of its arithmetic."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._arithmetic = Arithmetic(run.operators)

    def answer(self, task: Task) -> tuple[float, Performed]:
        """Carry out a task. Raises WrongArithmeticError."""
        self._arithmetic.require_before()
        start = time.time()
        performed = perform(task, self._run.workers, self._run.claims)
        self._arithmetic.require_mode()
        return start, performed

    def end(self) -> None:
        """Check the arithmetic once more, for the last verdicts. Raises WrongArithmeticError."""
        if self._arithmetic.has_judged:
            self._arithmetic.require()


class Here:
    """Pool of this process alone, which carries out one task after another."""

    compiled = wire.Compiled()

    def __init__(self, run: Run) -> None:
        self._judge = Judge(run)

    def run(self, units: Sequence[Sequence[Task]], wants: Wanted) -> Iterator[Event]:
        """Carry out all tasks, in the order of their units."""
        for unit in units:
            for task in unit:
                if wants(task):
                    yield Begun(task)
                    start, performed = self._judge.answer(task)
                    exception = performed.verdict.exception
                    yield Done(task, start, performed.record, performed.beside, exception)
        self._judge.end()

    def close(self) -> None:
        """Do nothing: there is nothing left to end."""


class Processes:
    """Several processes of this machine, each of which has a kernel's process of its own.

    If a process is killed, only the task that it was carrying out is lost: another takes its place. `target` is the
    function that serves there, of a connection, the number of this process, and the `arguments` for a judge's name and
    its place among those that live, from 0: a process that takes another's place has its devices, too.
    """

    def __init__(
        self, count: int, target: Callable[..., None], arguments: Callable[[str, int], tuple[Any, ...]]
    ) -> None:
        self.compiled = wire.Compiled()
        self._count, self._target, self._arguments = count, target, arguments
        self._context = multiprocessing.get_context("spawn")
        self._names = (f"judge{number}" for number in range(10**9))
        self._judges: list[_JudgingProcess] = []

    def run(self, units: Sequence[Sequence[Task]], wants: Wanted) -> Iterator[Event]:
        """Hand each idle process the next unit, in their order, and yield events as they come."""
        waiting = deque(deque(unit) for unit in units)
        while True:
            self._judges = [judge for judge in self._judges if not judge.is_over]
            while len(self._judges) < min(self._count, len(self._judges) + len(waiting)):
                place = min({*range(self._count)} - {judge.place for judge in self._judges})
                arguments = self._arguments(next(self._names), place)
                self._judges.append(_JudgingProcess(self._context, self._target, arguments, place))
            for judge in self._judges:
                if judge.is_ready and judge.task is None:
                    yield from self._hand(judge, waiting, wants)
            if not waiting and not any(judge.task or judge.unit for judge in self._judges):
                break
            for judge in self._heard():
                yield from self._said(judge, waiting)
        for judge in self._judges:
            self.compiled += judge.end()
        self._judges = []

    def _hand(self, judge: _JudgingProcess, waiting: deque[deque[Task]], wants: Wanted) -> Iterator[Begun]:
        """Hand a process the next task that is wanted: of its unit, or of the next one."""
        while judge.unit or waiting:
            judge.unit = judge.unit or waiting.popleft()
            task = judge.unit.popleft()
            if wants(task):
                judge.begin(task)
                yield Begun(task)
                return

    def _heard(self) -> list[_JudgingProcess]:
        """Wait until a process has sent something or has ended, and return all such processes."""
        ready = {id(place) for place in wait([judge.connection for judge in self._judges])}  # ready at its end too
        return [judge for judge in self._judges if id(judge.connection) in ready]

    def _said(self, judge: _JudgingProcess, waiting: deque[deque[Task]]) -> Iterator[Event]:
        try:
            kind, *message = judge.connection.recv()
        except (EOFError, OSError):
            task, rest = judge.task, judge.unit
            judge.is_over = True
            judge.process.join(PATIENCE)
            if rest:
                waiting.appendleft(rest)
            if task is None and not judge.is_ready:
                raise JudgeError(f"a process of the run has ended while it started: {_ending(judge.process)}") from None
            if task is not None:
                yield Died(task, f"the process that judged it {_ending(judge.process)}")
            return
        if kind == "ready":
            judge.is_ready = True
        elif kind == "untrusted":
            raise WrongArithmeticError(*message)
        elif kind == "refused":
            raise JudgeError(message[0])
        elif kind == "done" and judge.task is not None:
            start, record, beside = message
            task, judge.task = judge.task, None
            yield Done(task, start, _decode(record), _decode(beside) if beside else None)

    def close(self) -> None:
        """End all processes at once, in the middle of a task as well."""
        for judge in self._judges:
            judge.process.kill()
        for judge in self._judges:
            judge.process.join(PATIENCE)
        self._judges = []


class JudgeError(Exception):
    """A process of the run cannot judge; the message says why."""


class _JudgingProcess:
    """A process that judges, as the run sees it."""

    def __init__(self, context: Any, target: Callable[..., None], arguments: tuple[Any, ...], place: int) -> None:
        self.place = place
        self.connection, other = context.Pipe()
        self.process = context.Process(target=target, args=(other, os.getpid(), *arguments))
        # Ctrl-C goes to the whole group, but the run itself ends its processes. The tracker, which would start with the
        # first of them, unblocks the signal
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self.process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        other.close()
        self.is_ready = self.is_over = False
        self.task: Task | None = None
        self.unit: deque[Task] = deque()

    def begin(self, task: Task) -> None:
        """Tell the process what to carry out; whether it still lives is seen when its answer is waited for."""
        self.task = task
        with suppress(OSError):
            self.connection.send(encode([task]))

    def end(self) -> wire.Compiled:
        """Let the process end, and return what it has compiled. Raises WrongArithmeticError."""
        compiled = wire.Compiled()
        if not self.is_ready:
            self.process.kill()
        with suppress(EOFError, OSError):
            self.connection.send(None)
            while True:
                kind, *message = self.connection.recv()
                if kind == "untrusted":
                    raise WrongArithmeticError(*message)
                if kind == "compiled":
                    compiled = msgspec.convert(message[0], wire.Compiled)
        self.process.join(PATIENCE)
        self.process.kill()
        return compiled


def serve(connection: Connection, parent: int, run: Run) -> None:
    """Carry out tasks until there are no more. The end of `parent` is the end of this process."""
    end_with(parent)
    judge, implementations = Judge(run), run.plan.registry.implementations
    connection.send(("ready",))
    try:
        while (request := connection.recv()) is not None:
            (task,) = decode(request, implementations)
            start, performed = judge.answer(task)
            beside = encoded_record(performed.beside) if performed.beside else None
            connection.send(("done", start, encoded_record(performed.record), beside))
        judge.end()
        compiled = run.workers.compiled if run.workers is not None else wire.Compiled()
        connection.send(("compiled", msgspec.to_builtins(compiled)))
    except WrongArithmeticError as error:
        connection.send(("untrusted", error.reason, error.since))
    except UnknownKernelError as error:
        connection.send(("refused", f"{error} is not in its file any more: the file was changed; run again"))
    except (EOFError, OSError):
        return  # nobody listens any more


def share_cores(count: int) -> None:
    """Share the cores among the processes of a run, for libraries that take them all otherwise."""
    share = str(max(1, (os.cpu_count() or 1) // count))
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(variable, share)


_decode = msgspec.json.Decoder(AnyRecord).decode


def _ending(process: Any) -> str:
    code = process.exitcode
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"exited with status {code}"
