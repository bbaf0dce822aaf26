"""Where the processor time of a run goes: by phase, implementation, operator or check, and what compiling takes.

`python -m tests.price` makes the run of `tox -e cpu` twice, with caches of compiled code that are empty and then warm;
arguments go to pytest. A run is priced by this file as a plugin of pytest: each of its processes that verifies notes
what it has spent, with the kernels' processes that it has started.
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
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conformance.execution.process import Process
from conformance.execution.status import Verdict
from conformance.execution.trial import Absence, Trial
from conformance.plugin.collection import task_of
from conformance.plugin.hooks import RUN

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
        """Those of kernels, alive or ended."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        alive = 0.0
        for process in [*self._processes]:
            try:
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
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
    """What one process that verifies spends: a plugin of pytest."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.phases: Prices = defaultdict(float)
        self.rows: Prices = defaultdict(float)
        self.cases: Prices = defaultdict(float)
        self._within: list[float] = []
        """Of the blocks that are being timed, what the blocks inside them have spent."""
        self._patch(Process, "__init__", self._started)
        self._patch(Verdict, "timed", self._timed)

    def _patch(self, owner: type, name: str, wrapper: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, lambda *given, **named: wrapper(original, *given, **named))

    def _started(self, original: Callable[..., None], process: Process, *given: Any) -> None:
        original(process, *given)
        self.clock.watch(process.number)

    @contextmanager
    def _timed(self, original: Callable[..., Any], verdict: Verdict, phase: str) -> Iterator[None]:
        start = self.clock.all
        self._within.append(0.0)
        try:
            with original(verdict, phase):
                yield
        finally:
            spent = self.clock.all - start
            self.phases[phase if phase != "total" else "the rest of a verdict"] += spent - self._within.pop()
            if self._within:
                self._within[-1] += spent

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, Any, Any]:
        """Price the imports until then, and the plan."""
        self.phases["start"] = self.clock.all
        try:
            return (yield)
        finally:
            self.phases["plan"] = self.clock.all - self.phases["start"]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Price one case."""
        before, verdicts, own = self.clock.all, sum(self.phases.values()), self.clock.own
        try:
            return (yield)
        finally:
            spent = self.clock.all - before
            self.phases["record and pytest"] += spent - (sum(self.phases.values()) - verdicts)
            self._note(item, spent, self.clock.own - own)

    def _note(self, item: pytest.Item, spent: float, own: float) -> None:
        task = task_of(item)
        subject = None if task is None else task.subject
        if task is None or subject is None or isinstance(subject, Absence):
            return
        what = task.check or (subject.operator.name if isinstance(subject, Trial) else "training")
        for row in ("all", f"kernel {subject.implementation.name}", f"{'check' if task.check else 'operator'} {what}"):
            self.rows[row] += spent
            self.rows[f"{row} judge"] += own
            self.cases[row] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Leave the price where `main` finds it; of kernels' processes before they are ended."""
        workers = session.config.stash[RUN].run.workers
        compiled = workers.compiled if workers is not None else None
        spent = {
            "total": self.clock.all,
            "judge": self.clock.own,
            "programs": compiled.programs if compiled else 0,
            "kept": compiled.kept if compiled else 0,
            "jax": compiled.seconds if compiled else 0.0,
        }
        text = json.dumps({"phases": self.phases, "rows": self.rows, "cases": self.cases, "spent": spent})
        Path(os.environ[FOLDER], f"{os.getpid()}.json").write_text(text)


def pytest_configure(config: pytest.Config) -> None:
    """Price every process that carries out tasks."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Price(), "conformance-price")


def priced(arguments: list[str], cache: str) -> dict[str, Prices]:
    """Make a run; return its prices, added up over its processes."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, FOLDER: folder, "XDG_CACHE_HOME": cache}
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.price", *arguments]
        status = subprocess.run(command, env=environment, check=False).returncode
        after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
        prices: dict[str, Prices] = {table: defaultdict(float) for table in TABLES}
        for file in Path(folder).glob("*.json"):
            for table, numbers in json.loads(file.read_text()).items():
                for name, number in numbers.items():
                    prices[table][name] += number
    if not prices["rows"]:
        sys.exit(f"nothing was priced: pytest ended with {status}")
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
            yield f"\n{title:42} {'cold s':>9} {'warm s':>9} {'judge s':>9} {'cases':>7} {'ms each':>8}"
            for name in names:
                judge, cases = cold["rows"][f"{name} judge"], cold["cases"][name]
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


if __name__ == "__main__":
    main()
