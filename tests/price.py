"""Where the processor time of a run goes: by phase, implementation, operator or check, and what compiling takes.

`python -m tests.price` makes the run of `tox -e cpu` twice, with caches of compiled code that are empty and then warm;
arguments go to `conformance run`. Every process of a run that is priced imports this file first, and notes what it has
spent, with the kernels' processes that it has started.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from conformance.__main__ import main as conformance
from conformance.engine import pool
from conformance.engine.perform import Performed
from conformance.engine.tasks import Task
from conformance.execution.process import Process
from conformance.execution.status import Verdict
from conformance.execution.trial import Absence, Trial
from conformance.execution.workers import Workers
from conformance.worker.wire import Compiled

FOLDER = "CONFORMANCE_PRICE"
"""Variable with the folder that processes leave their prices in."""
USUAL = ("-n", "auto", "-m", "cpu")
ROWS = 40
"""Of a table, the dearest first."""
TICK = os.sysconf("SC_CLK_TCK")
TABLES = ("phases", "rows", "cases", "spent")

Prices = defaultdict[str, float]


class Clock:
    """Seconds of processor time of this process and of all kernels' processes that it has started."""

    def __init__(self) -> None:
        self._processes: list[int] = []

    def watch(self, process: int) -> None:
        """Count a kernel's process in; once it has ended, the system counts it."""
        self._processes.append(process)

    @property
    def own(self) -> float:
        """This process alone."""
        return time.process_time()

    @property
    def kernels(self) -> float:
        """Return those of kernels' processes, alive or ended."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        alive = 0.0
        for process in [*self._processes]:
            try:
                fields = Path(f"/proc/{process}/root/proc/{process}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                self._processes.remove(process)
                continue
            alive += sum(map(int, fields[11:15])) / TICK
        return ended.ru_utime + ended.ru_stime + alive

    @property
    def all(self) -> float:
        """Both."""
        return self.own + self.kernels


class Price:
    """What one process of a run spends."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._clock = folder, Clock()
        self._tables: dict[str, Prices] = {table: defaultdict(float) for table in TABLES}
        self._within: list[float] = []
        """Of the blocks that are being timed, what the blocks inside them have spent."""
        self._before = 0.0
        """What was spent before the first task."""
        self._patch(Process, "__init__", self._started)
        self._patch(Verdict, "timed", self._timed)
        self._patch(Workers, "close", self._closed)
        self._patch(pool, "perform", self._performed)
        Finalize(None, self._leave, exitpriority=1)

    def _patch(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, lambda *given, **named: wrapper(original, *given, **named))

    def _started(self, original: Callable[..., None], process: Process, *given: Any) -> None:
        original(process, *given)
        self._clock.watch(process.number)

    @contextmanager
    def _timed(self, original: Callable[..., Any], verdict: Verdict, phase: str) -> Iterator[None]:
        start, phases = self._clock.all, self._tables["phases"]
        self._within.append(0.0)
        try:
            with original(verdict, phase):
                yield
        finally:
            spent = self._clock.all - start
            phases["rest of a verdict" if phase == "total" else phase] += spent - self._within.pop()
            if self._within:
                self._within[-1] += spent

    def _performed(self, original: Callable[..., Performed], task: Task, *given: Any) -> Performed:
        """Carry out a task and price it."""
        phases, rows, cases = (self._tables[name] for name in TABLES[:3])
        before, own = self._clock.all, self._clock.own
        self._before = self._before or before
        verdicts = sum(phases.values())
        performed = original(task, *given)
        spent, judge = self._clock.all - before, self._clock.own - own
        phases["rest of a task"] += spent - (sum(phases.values()) - verdicts)
        subject = task.subject
        if not isinstance(subject, Absence):
            what = task.check or (subject.operator.name if isinstance(subject, Trial) else "training")
            kind = "check" if task.check else "operator"
            for row in (f"kernel {subject.implementation.name}", f"{kind} {what}"):
                rows[row] += spent
                rows[f"{row} judge"] += judge
                cases[row] += 1
        return performed

    def _closed(self, original: Callable[..., None], workers: Workers) -> None:
        """Note what JAX has compiled, as its processes say."""
        compiled: Compiled = workers.compiled
        for name, number in (("programs", compiled.programs), ("kept", compiled.kept), ("jax", compiled.seconds)):
            self._tables["spent"][name] += number
        original(workers)

    def _leave(self) -> None:
        """Leave the price where `priced` finds it."""
        phases = self._tables["phases"]
        if self._before:
            phases["before the first task"] = self._before
            phases["between tasks"] = self._clock.all - sum(phases.values())
        else:
            phases["the run, which judges nothing"] = self._clock.own
        (self._folder / f"{os.getpid()}.json").write_text(json.dumps(self._tables))


def priced(arguments: list[str], cache: str) -> dict[str, Prices]:
    """Make a run; return its prices, added up over its processes."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, FOLDER: folder, "XDG_CACHE_HOME": cache}
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, "-m", "tests.price", "run", *arguments]
        status = subprocess.run(command, env=environment, check=False).returncode
        after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
        prices: dict[str, Prices] = {table: defaultdict(float) for table in TABLES}
        for file in Path(folder).glob("*.json"):
            for table, numbers in json.loads(file.read_text()).items():
                for name, number in numbers.items():
                    prices[table][name] += number
    if not prices["rows"]:
        sys.exit(f"nothing was priced: the run ended with {status}")
    processor = sum(getattr(after, name) - getattr(before, name) for name in ("ru_utime", "ru_stime"))
    prices["spent"] |= {"processor": processor, "wall": seconds, "status": status}
    return prices


def shown(cold: dict[str, Prices], warm: dict[str, Prices]) -> Iterator[str]:
    """The tables, as lines of text."""
    for name, run in (("cold", cold), ("warm", warm)):
        spent = run["spent"]
        yield (
            f"{name}: {spent['processor']:,.0f} s of processor time, {spent['wall']:,.0f} s of wall, status "
            f"{spent['status']:.0f}; JAX was asked for {spent['programs']:,.0f} programs, {spent['kept']:,.0f} of them "
            f"kept, in {spent['jax']:,.0f} s"
        )
    for prices, kinds in (("phases", [""]), ("rows", ["kernel ", "operator ", "check "])):
        for kind in kinds:
            names = sorted(
                (name for name in cold[prices] if name.startswith(kind)), key=lambda name: -cold[prices][name]
            )
            names = [name for name in names if not name.endswith(" judge")][:ROWS]
            title = kind.strip() or "phase"
            yield f"\n{title:42} {'cold s':>9} {'warm s':>9} {'judge s':>9} {'cases':>7} {'warm ms':>8}"
            for name in names:
                judge, cases = warm["rows"][f"{name} judge"], warm["cases"][name]
                seconds, again = cold[prices][name], warm[prices][name]
                more = f" {judge:9.1f} {cases:7,.0f} {1000 * again / cases:8.2f}" if cases else ""
                yield f"{name.removeprefix(kind):42} {seconds:9.1f} {again:9.1f}{more}"


def main() -> None:
    """Price a run with cold caches and then with warm ones."""
    arguments = sys.argv[1:] or [*USUAL]
    with tempfile.TemporaryDirectory() as cache:
        cold = priced(arguments, cache)
        warm = priced(arguments, cache)
    print("\n".join(shown(cold, warm)))


if FOLDER in os.environ and __name__ in ("__main__", "__mp_main__"):
    Price(Path(os.environ[FOLDER]))
if __name__ == "__main__":
    if FOLDER in os.environ:
        sys.exit(conformance(sys.argv[1:]))
    main()
