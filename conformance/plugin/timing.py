"""Timing what was verified: the `measure_time` fixture and the table at the end of a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import msgspec
import pytest

from conformance.execution.case import Absence, Case
from conformance.execution.status import Verdict, conclude
from conformance.execution.verify import verify
from conformance.execution.workers import Workers
from conformance.implementations.devices import Unavailable
from conformance.plugin.fixtures import conclude as conclude_test
from conformance.results import build
from conformance.results.schema import Record
from conformance.timing import machine, roofline, table
from conformance.timing.measurement import RATES, Measurement
from conformance.timing.roofline import Ceilings
from conformance.timing.rotation import rotate

MAX_AGAIN, MAX_AGAIN_IN_ALL = 2, 6
"""Times that ceilings are measured again before one time is called impossible, and in one run."""
NAME = "conformance-timing"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "kernel conformance")
    group.addoption("--order", type=int, metavar="N", help="time in the order of an earlier run (default: random)")


class Timing:
    """What a run has timed. Registered by the session with the first benchmark that is collected."""

    def __init__(self, config: pytest.Config) -> None:
        order = config.getoption("--order")
        self.order = random.SystemRandom().randrange(10**6) if order is None else order
        """Seed of the order."""
        self.asked = self.verified = False
        self.threads: dict[str, int] = {}
        self.workers: Workers | None = None
        self.ceilings: dict[str, Ceilings | None] = {}
        """The best that each device has shown."""
        self.again = 0
        """How often ceilings were measured once more."""
        self.places: dict[str, int] = {}
        """Test -> where it stands in its table."""
        self.timed: list[tuple[str, Measurement, dict[str, Any]]] = []
        """Test, time, and what pytest-benchmark keeps of it."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[Any]) -> Iterator[None]:
        """Shuffle what is timed, among the places that it has, when all other plugins are done: two shards that shuffle
        before they are split have other cases than one run.

        Problems are shuffled, so that no implementation always runs when the machine is warm or busy, and the
        implementations on one problem, which stay beside each other: they are compared.
        """
        yield
        if hasattr(config, "workerinput"):
            return  # workers must agree on an order, and do not time
        session: Any = config.pluginmanager.get_plugin("conformance-session")
        self.workers = session.workers
        if self.workers is not None:
            self.workers.keep_all()
        groups: dict[Hashable, list[Any]] = {}
        for item in (item for item in items if item.get_closest_marker("benchmarks") is not None):
            self.places[item.nodeid] = len(self.places)
            case = item.callspec.params["case"]
            problem = case.problem.name if isinstance(case, Case) else case.id
            groups.setdefault((item.originalname, problem), []).append(item)
        generator, shuffled = random.Random(self.order), list(groups.values())
        generator.shuffle(shuffled)
        for group in shuffled:
            generator.shuffle(group)
        order = chain.from_iterable(shuffled)
        items[:] = [next(order) if item.nodeid in self.places else item for item in items]

    def add(self, test: str, found: Measurement, benchmark: Any, record: Record) -> None:
        """Hand a time to pytest-benchmark, and keep it for the table.

        Before it is called impossible, ceilings get another chance. pytest-benchmark counts rounds that have been timed
        already, by a clock that shows what the rotation's did: it cannot be given a device's time, nor rounds whose
        results are looked at before they count.
        """
        device = found.case.implementation.device
        if device not in self.ceilings:
            self.ceilings[device] = self._ceilings(device)
        for _ in range(MAX_AGAIN):
            known = self.ceilings[device]
            if self.again >= MAX_AGAIN_IN_ALL or known is None or replace(found, ceilings=known).finding is None:
                break
            self.again += 1
            more = self._ceilings(device)
            self.ceilings[device] = known if more is None else roofline.better(known, more)
        found = replace(found, ceilings=self.ceilings[device])
        self.threads |= found.threads
        benchmark.group = f"{found.case.operator.name} {found.case.problem.name}"
        benchmark.extra_info.update(msgspec.to_builtins(record) | found.record(None))
        benchmark._timer = chain.from_iterable((0.0, seconds) for seconds in found.rounds).__next__
        benchmark.pedantic(lambda: None, rounds=len(found.rounds))
        self.timed.append((test, found, benchmark.extra_info))

    def _ceilings(self, device: str) -> Ceilings | None:
        try:
            return roofline.measure_ceilings(device, self.workers)
        except Unavailable:
            return None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Iterator[None]:
        """A run that was asked for times and could verify nothing exits 5.

        All is known now, the best ceilings and torch's times, and pytest-benchmark has not written its file yet.
        """
        self.timed = [
            (test, replace(found, ceilings=self.ceilings[found.case.implementation.device]), extra)
            for test, found, extra in self.timed
        ]
        ratios = table.compared(found for _, found, _ in self.timed)
        for _, found, extra in self.timed:
            for name in RATES:
                extra.pop(name, None)
            extra.update(found.record(ratios.get(found.key)))
        if self.asked and not self.verified and exitstatus == 0:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Times, rates, ratios to torch on the same device, findings."""
        if not self.timed:
            return
        terminalreporter.section("speed of what was verified")
        terminalreporter.write_line(f"threads: {machine.threads_text(self.threads)}; order: --order {self.order}")
        for device, known in self.ceilings.items():
            terminalreporter.write_line(f"ceilings of {device}: {known or 'not known'}")
        shown = sorted(self.timed, key=lambda timed: self.places.get(timed[0], 0))
        for line in table.suite_table([found for _, found, _ in shown], terminalreporter._tw.fullwidth - 1):
            terminalreporter.write_line(line)


@pytest.fixture
def measure_time(request: pytest.FixtureRequest, benchmark: Any) -> Callable[[Case | Absence], None]:
    """A function that verifies a case and, only if it passes, times the kernel on inputs that are new to it."""
    timing: Any = request.config.pluginmanager.get_plugin(NAME)

    def run(case: Case | Absence) -> None:
        timing.asked = True
        found: Measurement | None = None
        if isinstance(case, Absence):
            verdict = Verdict(case.status, case.reason)
            record: Record = build.absence_record(case)
        else:
            verdict = verify(case)
            found = _time(case, verdict) if verdict.status == "pass" and benchmark.enabled else None
            record = build.record(case, verdict)
        benchmark.skipped = found is None  # nothing is wrong with a benchmark that was not used
        conclude_test(request, verdict, record)
        timing.verified = True
        if found is not None:
            timing.add(request.node.nodeid, found, benchmark, record)

    return run


def _time(case: Case, verdict: Verdict) -> Measurement | None:
    """The time of a kernel that has passed; None, and the verdict says why, where it does not while it is timed."""
    found: list[Measurement] = []
    ended = conclude(
        lambda _: found.append(rotate(case, verdict.seconds["kernel"])),
        lambda: case.waiver((case.variant.distribution,)),
    )
    if ended.status == "pass":
        return found[0]
    verdict.status, verdict.waiver, verdict.crashed = ended.status, ended.waiver, ended.crashed
    verdict.reason = f"no time: {ended.reason}" if ended.status == "fail" else ended.reason
    return None
