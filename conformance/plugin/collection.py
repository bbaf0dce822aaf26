"""From cases to tests: which cases a marked test function has, in which order they run, and what is no test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from conformance.checks import CHECKS
from conformance.checks.state import calls_are_right_later
from conformance.execution.case import Absence, Case
from conformance.execution.required import Demand, VerificationDemand
from conformance.implementations.devices import DEVICES
from conformance.implementations.registry import BrokenFile
from conformance.plugin import options, recording
from conformance.plugin.recording import ABSENCES, TESTS, encoded, publish
from conformance.plugin.session import Session
from conformance.problems import PROBLEMS
from conformance.results import build
from conformance.results.schema import Record
from conformance.timing.timing_demand import TimingDemand
from conformance.training.training_demand import Training, TrainingDemand

MARKERS = {
    "verifies": "verifies(operator, when): cases of an operator, where when(geometry) holds",
    "behaves": "behaves(*names): behaviour checks, on the cases that each of them is required on",
    "trains": "trains(network): a network, trained through every implementation",
    "benchmarks": "benchmarks(operator, problems): those that device and level require, timed",
}


class Collection:
    """The tests of a run, which has a test for each case but for those that nothing is here to run for."""

    def __init__(self, session: Session) -> None:
        self._run = session
        self._config = session.config
        self._absent: Counter[tuple[Absence, tuple[str, ...]]] = Counter()
        """What is not here, with its check if it has one -> its cases."""

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """One test per case that the marker of a test function asks for."""
        marker = next(filter(None, map(metafunc.definition.get_closest_marker, MARKERS)), None)
        if marker is None:
            return
        self._run.asked |= marker.name != "benchmarks"
        names = ("name", "case") if marker.name == "behaves" else ("case",)
        marked = {mark.name for mark in metafunc.definition.iter_markers()}
        parameters = []
        for prefix, check, demand in self._demands(marker):
            for case in self._run.plan.required(demand):
                device = case.device if isinstance(case, Absence) else case.implementation.device
                devices = [device] if device else [*DEVICES]
                # three quarters of the tests of a file with one operator were absences; what is claimed is a test,
                # because it fails, and so is what is timed
                if isinstance(case, Absence) and case.status != "fail" and marker.name != "benchmarks":
                    if options.counts_absences(self._config, {*marked, *devices}):
                        self._absent[replace(case, cases=0), check] += case.cases
                    continue
                marks = [getattr(pytest.mark, known) for known in devices]
                parameters.append(pytest.param(*check, case, id=prefix + case.id, marks=marks))
        metafunc.parametrize(names, parameters)

    def _demands(self, marker: pytest.Mark) -> Iterator[tuple[str, tuple[str, ...], Demand]]:
        """What a marker asks for, each with what its test's id begins with and its behaviour check, if any."""
        ranked, selection = self._run.plan.ranked, self._run.selection
        if marker.name == "behaves":
            for name in marker.args:
                for demand in CHECKS[name].demands(ranked):
                    yield f"{name}-{demand.operator}-", (name,), demand
        elif marker.name == "verifies":
            yield "", (), VerificationDemand(ranked, marker.args[0], marker.kwargs.get("when"))
        elif marker.name == "trains":
            yield "", (), TrainingDemand(selection, marker.args[0])
        else:
            if self._run.recorded:
                raise pytest.UsageError("--resume: times are not in records; time again with --overwrite")
            if self._run.timing is None:
                from conformance.plugin.timing import TimingRun  # most runs time nothing

                self._run.timing = TimingRun(self._run)
            by_hand = selection.problems is not PROBLEMS  # a table is none of somebody who names a problem
            problems = selection.problems if by_hand else marker.kwargs["problems"]
            yield "", (), TimingDemand(selection, marker.args[0], problems, by_hand)

    def arrange(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Drop tests that no case is required for, which pytest would report as skipped, sort the others, and add one
        for each broken file."""
        kept = []
        for item in items:
            ours = any(item.get_closest_marker(name) for name in MARKERS)
            if not ours or not hasattr(item, "callspec") or recording.asked(item)[0] is not None:
                kept.append(item)
        failed = self._config.cache.get("cache/lastfailed", {}) if self._config.getoption("failedfirst", False) else {}
        kept.sort(key=lambda item: (item.nodeid not in failed, self._place(item)))
        if self._run.asked or any(item.get_closest_marker("benchmarks") for item in kept):
            kept += [
                Broken.from_parent(session, name=path, path_text=path, broken=broken)
                for path, broken in self._run.plan.registry.broken.items()
            ]
        items[:] = [item for item in kept if not self._is_recorded(recording.key(item))] if self._run.recorded else kept

    def _place(self, item: pytest.Item) -> tuple[int, int, int]:
        """In the order of the ranking, all operators in turn. One file's cases after the other's, where not all of them
        can have a process at once. Results first: a kernel that crashes in one check after another is not run any
        more. Last what waits for a second since the first call, which by then has mostly gone by."""
        case, name = recording.asked(item)
        workers, whose = self._run.workers, 0
        later = int(isinstance(case, Training) or item.get_closest_marker("behaves") is not None)
        later += name == calls_are_right_later.__name__
        if workers is not None and workers.crowded and isinstance(case, (Case, Training)):
            whose = workers.place(case.implementation)
        return whose, later, case.place if isinstance(case, Case) and not later else 0

    def _is_recorded(self, key: recording.Key) -> bool:
        """Of two tests with one key, and one record, one is left."""
        self._run.recorded[key] -= 1
        return self._run.recorded[key] >= 0

    def finish(self, session: pytest.Session) -> None:
        """Tell every test of the suite how many there are, 0 where they are among others, and count what is no test."""
        items = session.items
        ours = [item for item in items if isinstance(item, Broken) or recording.asked(item)[0] is not None]
        # of a vendor's own tests, some can be selected that have nothing to do with the suite
        self._run.asked = bool(ours or self._absent)
        for item in ours:
            item.user_properties.append((TESTS, len(items) if len(ours) == len(items) else 0))
            if hasattr(
                self._config.option, "reruns"
            ):  # pytest-rerunfailures would count every attempt, until one passes
                item.add_marker(pytest.mark.flaky(reruns=0))
        absences = [encoded(record) for record in self._absences()]
        if not self._run.is_worker:
            self._run.count_absences(absences)
        elif items:  # all workers have the same first test, and one of them runs it
            items[0].user_properties.append((ABSENCES, absences))
        else:
            workeroutput: dict[str, Any] = getattr(self._config, "workeroutput", {})
            workeroutput[ABSENCES] = absences
        if self._run.timing is not None:
            self._run.timing.take(items)

    def _absences(self) -> Iterator[Record]:
        """The records of what is not here, without what the resumed records have."""
        for (absence, check), cases in self._absent.items():
            found = build.absence_record(replace(absence, cases=cases), *check)
            if not self._run.recorded or not self._is_recorded(recording.key_of(found)):
                yield recording.of_run(self._config, found)


class Broken(pytest.Item):
    """A file in `impls/` that cannot be used: one loud error, and the others still run."""

    fixturenames = ("benchmark",)
    """By which `--benchmark-only` of pytest-benchmark knows what it must not skip."""

    def __init__(self, *, path_text: str, broken: BrokenFile, **rest: Any) -> None:
        super().__init__(**rest)
        self.reason = broken.reason
        publish(self, build.broken_record(path_text, broken))

    def runtest(self) -> None:
        """Always fails."""
        pytest.fail(self.reason, pytrace=False)

    def reportinfo(self) -> tuple[str, None, str]:
        """The file is the headline."""
        return self.name, None, self.name
