"""Timing what was verified: the `timed` fixture and the table at the end of a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import msgspec
import pytest

from conformance.execution.case import Absence, Case
from conformance.execution.status import Verdict, conclude
from conformance.execution.verify import verify
from conformance.plugin.fixtures import conclude as conclude_test
from conformance.results import build
from conformance.results.schema import Record
from conformance.timing import lane, machine
from conformance.timing.facts import RATES, Facts, doubt
from conformance.timing.measure import known_ceilings
from conformance.timing.order import shuffled
from conformance.timing.roofline import Ceilings, better, measured
from conformance.timing.rotation import Rounds, rotate

PATIENCE, MOST = 2, 6
"""Measurements of the ceilings before one time is called impossible, and in one run."""


@dataclass(slots=True)
class _Run:
    """What a run has timed."""

    order: int
    """Seed of the order."""
    asked: bool = False
    verified: bool = False
    threads: str = ""
    ceilings: dict[str, Ceilings | None] = field(default_factory=dict)
    """The best that each device has shown."""
    again: int = 0
    """How often ceilings were measured once more."""
    facts: list[Facts] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    """What pytest-benchmark keeps of each, in the same order."""
    places: dict[str, int] = field(default_factory=dict)
    """Test -> where it stands in its table."""
    found: list[str] = field(default_factory=list)
    """The tests of all times, in the same order."""

    def facts_of(self, case: Case, rounds: Rounds, first: float) -> Facts:
        """What a time means. Before it is called impossible, ceilings get another chance."""
        kernel, device = case.kernel, case.implementation.device
        known = self.ceilings.setdefault(device, known_ceilings(device))
        for _ in range(PATIENCE):
            if known is None or self.again >= MOST or not doubt(case, kernel.contract, rounds, known):
                break
            self.again += 1
            more = measured(device)
            self.ceilings[device] = known = known if isinstance(more, str) else better(known, more)
        return Facts(case, kernel.contract, rounds, first, known, doubt(case, kernel.contract, rounds, known))

    def settled(self) -> list[Facts]:
        """All times by what is known in the end: the ceilings, and torch's."""
        found = []
        for facts in self.facts:
            known = self.ceilings[facts.timing.device]
            finding = doubt(facts.case, facts.contract, facts.rounds, known)
            found.append(replace(facts, ceilings=known, finding=finding))
        ratios = lane.compared(found)
        return [replace(f, ratio=ratios.get(f.timing.key)) for f in found]


_RUN = pytest.StashKey[_Run]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The order can be repeated."""
    group = parser.getgroup("conformance", "kernel conformance")
    group.addoption("--order", type=int, metavar="N", help="time in the order of an earlier run (default: by chance)")


def pytest_configure(config: pytest.Config) -> None:
    """A run starts without timings."""
    seed = config.getoption("--order")
    config.stash[_RUN] = _Run(random.SystemRandom().randrange(10**6) if seed is None else seed)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Shuffle what is timed, among the places that it has, when all others have had their say: two shards that shuffle
    before they are split have other cases than one run."""
    yield
    if hasattr(config, "workerinput"):
        return  # workers must agree on an order, and do not time
    state = config.stash[_RUN]
    due = [item for item in items if item.get_closest_marker("benchmarks") is not None]
    state.places = {item.nodeid: place for place, item in enumerate(due)}
    chance = iter(shuffled(due, _place, state.order))
    items[:] = [next(chance) if item.nodeid in state.places else item for item in items]


def _place(item: Any) -> tuple[Any, ...]:
    case = item.callspec.params["case"]
    return item.originalname, case.problem.name if isinstance(case, Case) else case.id


@pytest.fixture
def measure_time(request: pytest.FixtureRequest, benchmark: Any) -> Callable[[Case | Absence], None]:
    """A function that verifies a case and, only if it passes, times the kernel on inputs that are new to it."""

    def run(case: Case | Absence) -> None:
        state = request.config.stash[_RUN]
        state.asked = True
        state.threads = state.threads or machine.share_threads()
        if isinstance(case, Absence):
            benchmark.skipped = True
            verdict, rounds = Verdict(case.status, case.reason), None
            record: Record = build.absence_record(case)
        else:
            verdict, rounds = _tried(case, wanted=benchmark.enabled)
            record = build.record(case, verdict)
        benchmark.skipped = rounds is None  # nothing is wrong with a benchmark that was not used
        conclude_test(request, verdict, record)
        state.verified = True
        if rounds is not None and isinstance(case, Case):
            _keep(state, benchmark, case, rounds, record)
            state.found.append(request.node.nodeid)

    return run


def _tried(case: Case, *, wanted: bool) -> tuple[Verdict, Rounds | None]:
    """The verdict on a case, and its time if it passes and keeps passing while it is timed."""
    verdict = verify(case)
    if verdict.status != "pass" or not wanted:
        return verdict, None
    timed: list[Rounds] = []
    ended = conclude(lambda _: timed.append(rotate(case)), lambda: case.waiver((case.variant.distribution,)))
    if ended.status == "pass":
        return verdict, timed[0]
    verdict.status, verdict.waiver = ended.status, ended.waiver
    verdict.reason = f"no time: {ended.reason}" if ended.status == "fail" else ended.reason
    return verdict, None


def _keep(state: _Run, benchmark: Any, case: Case, rounds: Rounds, record: Record) -> None:
    """Hand a time to pytest-benchmark, and keep what it means for the table."""
    facts = state.facts_of(case, rounds, record.seconds["kernel"])
    benchmark.group = f"{case.operator.name} {case.problem.name}"
    benchmark.extra_info.update(msgspec.to_builtins(record) | facts.record())
    _report(benchmark, rounds)
    state.facts.append(facts)
    state.records.append(benchmark.extra_info)


def _report(benchmark: Any, rounds: Rounds) -> None:
    """pytest-benchmark counts rounds that have been timed already: its clock shows what the rotation's did.

    It cannot be given a device's time, nor rounds whose results are looked at before they count.
    """
    clock = chain.from_iterable((0.0, seconds) for seconds in rounds.seconds)
    benchmark._timer = clock.__next__
    benchmark.pedantic(lambda: None, rounds=len(rounds.seconds))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Iterator[None]:
    """A run that was asked for times and could verify nothing does not end well.

    Ratios are known now, and pytest-benchmark has not written its file yet.
    """
    state = session.config.stash[_RUN]
    state.facts = state.settled()
    for facts, record in zip(state.facts, state.records, strict=True):
        for name in RATES:
            record.pop(name, None)
        record.update(facts.record())
    if state.asked and not state.verified and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Times, rates, ratios to torch on the same device, findings."""
    state = config.stash[_RUN]
    if state.facts:
        terminalreporter.section("speed of what was verified")
        terminalreporter.write_line(f"threads: {state.threads}; order: --order {state.order}")
        for device in dict.fromkeys(facts.timing.device for facts in state.facts):
            terminalreporter.write_line(f"ceilings of {device}: {state.ceilings[device] or 'not known'}")
        shown = sorted(zip(state.found, state.facts, strict=True), key=lambda pair: state.places.get(pair[0], 0))
        for line in lane.lines([facts for _, facts in shown], terminalreporter._tw.fullwidth - 1):
            terminalreporter.write_line(line)
