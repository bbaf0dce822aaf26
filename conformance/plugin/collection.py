"""From tasks to tests: the tasks of a marked test function, the order of tests, and tasks that are not tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from conformance.engine import options
from conformance.engine.tasks import Absences, Asked, Key, Task, demanded, key_of, place
from conformance.execution.selection import SelectionError
from conformance.execution.trial import Absence, Trial
from conformance.implementations.registry import BrokenFile
from conformance.results import build
from conformance.results.schema import Record
from conformance.timing.timing_demand import TimingDemand
from conformance.training.training_demand import Training

if TYPE_CHECKING:
    from conformance.plugin.hooks import Hooks
    from conformance.plugin.timing import TimingRun

MARKERS = {
    "verifies": "verifies(operator, when): cases of an operator, where when(geometry) holds",
    "behaves": "behaves(*names): behaviour checks, on the cases that each of them is required on",
    "trains": "trains(network): a network, trained through every implementation",
    "benchmarks": "benchmarks(operator, problems): those that device and level require, timed",
}


class Collection:
    """The tests of a run, which has a test for each task."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks, self._run = hooks, hooks.run
        self._absences = Absences()
        self.is_asked = False
        """Whether any test is here to verify something."""
        self.timing: TimingRun | None = None
        """None unless benchmarks were collected."""

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Make one test per task that the marker of a test function asks for."""
        marker = next(filter(None, map(metafunc.definition.get_closest_marker, MARKERS)), None)
        if marker is None:
            return
        self.is_asked |= marker.name != "benchmarks"
        names = ("name", "case") if marker.name == "behaves" else ("case",)
        marked = {mark.name for mark in metafunc.definition.iter_markers()}
        parameters = []
        for suite, check, demand in self._demands(marker, metafunc.definition.originalname):
            for subject in self._run.plan.required(demand):
                task = Task(suite, subject, check)
                # in benchmarks an absence is a test, because nothing else reports it
                if isinstance(subject, Absence) and subject.status != "fail" and marker.name != "benchmarks":
                    if self._counts_absences({*marked, *task.devices}):
                        self._absences.add(subject, check)
                    continue
                marks = [getattr(pytest.mark, device) for device in task.devices]
                arguments = (check, subject) if check else (subject,)
                parameters.append(pytest.param(*arguments, id=task.id.partition("[")[2][:-1], marks=marks))
        metafunc.parametrize(names, parameters)

    def _counts_absences(self, markers: set[str]) -> bool:
        """Return whether absences are counted: if `-m` selects their markers, and no tests are chosen by name, since an
        absence has no name. If a run is split into parts, the first part counts them."""
        config = self._hooks.config
        by_name = config.getoption("keyword") or config.getoption("deselect") or any("::" in w for w in config.args)
        is_first = config.getoption("group", None) in (None, 1)
        return is_first and not by_name and options.selects(config.getoption("markexpr", "") or "", markers)

    def _demands(self, marker: pytest.Mark, suite: str) -> Iterator[Asked]:
        """Yield the demands of a marker."""
        if marker.name != "benchmarks":
            yield from demanded(self._run.plan, suite, marker.name, marker.args, marker.kwargs.get("when"))
            return
        if self._run.recorded:
            raise SelectionError("--resume: times are not in records; time again with --overwrite")
        if self.timing is None:
            from conformance.plugin.timing import TimingRun  # most runs time nothing

            self.timing = TimingRun(self._run, self._hooks.config)
        selection = self._run.selection
        by_hand = not selection.is_of_tables  # a problem that the user names replaces the table
        problems = selection.problems if by_hand else marker.kwargs["problems"]
        yield Asked(suite, "", TimingDemand(selection, marker.args[0], problems, by_hand))

    def arrange(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Drop tests without a task, which pytest would report as skipped, sort the other tests, and add one for each
        broken file."""
        config, run = self._hooks.config, self._run
        marked = [any(item.get_closest_marker(name) for name in MARKERS) for item in items]
        kept = [
            item
            for item, is_ours in zip(items, marked, strict=True)
            if not is_ours or not hasattr(item, "callspec") or task_of(item) is not None
        ]
        failed = config.cache.get("cache/lastfailed", {}) if config.getoption("failedfirst", False) else {}
        places = {item: place(task, run.workers) for item in kept if (task := task_of(item)) is not None}
        kept.sort(key=lambda item: (item.nodeid not in failed, places.get(item, (0, 0, 0))))
        if self.is_asked or any(item.get_closest_marker("benchmarks") for item in kept):
            kept += [
                Broken.from_parent(session, name=path, path_text=path, broken=broken)
                for path, broken in run.plan.registry.broken.items()
            ]
        items[:] = [item for item in kept if not run.is_recorded(self._key(item))] if run.recorded else kept

    def _key(self, item: pytest.Item) -> Key | None:
        """Return the key of the record that a test will have; None for a test that is not the suite's."""
        if isinstance(item, Broken):
            return key_of(item.record)
        task = task_of(item)
        return None if task is None else task.key

    def finish(self, items: list[pytest.Item]) -> None:
        """Note whether the selected tests verify anything: a vendor may select only tests that have nothing to do with
        the suite."""
        ours = [item for item in items if isinstance(item, Broken) or task_of(item) is not None]
        registry = self._run.plan.registry
        has_kernels = bool(registry.implementations or registry.broken or registry.unavailable)
        # otherwise suites without a single kernel would be green if a project's own tests passed
        self.is_asked = bool(ours or self._absences or (self.is_asked and not has_kernels))
        for item in ours if hasattr(self._hooks.config.option, "reruns") else ():
            item.add_marker(pytest.mark.flaky(reruns=0))  # pytest-rerunfailures would count each run, until one passes
        if self.timing is not None:
            self.timing.take(items)

    def absences(self) -> list[Record]:
        """Return the records of absences, except absences that are in the resumed records."""
        records, run = self._absences.records(), self._run
        return [record for record in records if not (run.recorded and run.is_recorded(key_of(record)))]


class Broken(pytest.Item):
    """The test of a file in `impls/` that cannot be used: it fails, and the tests of other files still run."""

    fixturenames = ("benchmark",)
    """Fixtures by which `--benchmark-only` of pytest-benchmark knows that it must not skip this test."""

    def __init__(self, *, path_text: str, broken: BrokenFile, **rest: Any) -> None:
        super().__init__(**rest)
        self.reason = broken.reason
        self.record = build.broken_record(path_text, broken)

    def runtest(self) -> None:
        """Publish the record, and fail."""
        from conformance.plugin.hooks import publish

        publish(self, self.record)
        pytest.fail(self.reason, pytrace=False)

    def reportinfo(self) -> tuple[str, None, str]:
        """Return the file as the headline."""
        return self.name, None, self.name


def task_of(item: pytest.Item) -> Task | None:
    """Return the task that a test carries out; None for a test that is not the suite's."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    subject = parameters.get("case")
    if not isinstance(subject, (Trial, Absence, Training)):
        return None
    check = parameters["name"] if item.get_closest_marker("behaves") else ""
    return Task(item.originalname.removeprefix("test_"), subject, check)  # type: ignore[attr-defined]
