"""How pytest-xdist distributes cases, also the remaining cases when a kernel takes its worker down."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from conformance.engine.run import Run
from conformance.execution.implementation_names import base_of
from conformance.execution.workers import group_of
from conformance.implementations import registry
from conformance.operators import OPERATORS


class ByProblem(LoadScopeScheduling):  # type: ignore[misc]
    """A scheduler that sends the cases of a problem to one worker, which then computes references and compiles kernels
    for the problem once. If the run is `crowded`, it keeps the cases of a problem and an implementation together, so
    that the implementation's process can stay.

    It goes by names, because xdist 3.8 cannot tell pytest 9.2 about `xdist_group`; and it has a recovery of its own,
    because the inherited one waits forever for a worker that was sent a finished group or a single test.
    """

    def __init__(self, config: pytest.Config, log: Any, problems: Iterable[str], crowded: bool = False) -> None:
        super().__init__(config, log)
        self._crowded = crowded
        self._problems = sorted(problems, key=len, reverse=True)
        self._scopes: dict[str, str] = {}
        self._places: dict[Any, dict[str, int]] = {}
        """Worker -> the place of every test in its collection."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the longest problem name in the test's brackets, where names are joined by hyphens."""
        if nodeid not in self._scopes:
            _, _, case = nodeid.partition("[")
            problem = next((name for name in self._problems if f"-{name}-" in case), None)
            implementation = case.partition(f"-{problem}-")[0] if self._crowded and problem else ""
            for operator in OPERATORS:  # names of a behaviour check and an operator come first
                implementation = implementation.rpartition(f"-{operator}-")[2]
            self._scopes[nodeid] = f"{implementation}{problem}" if problem else nodeid
        return self._scopes[nodeid]

    def remove_node(self, node: Any) -> str | None:
        """Hand the tests that a worker left undone to other workers; return the test that took it down."""
        work = self.assigned_work.pop(node)
        undone = [test for unit in work.values() for test, done in unit.items() if not done]
        for test in undone[1:]:
            self.workqueue.setdefault(self._split_scope(test), {})[test] = False
        for other in self.nodes if undone else ():
            self._reschedule(other)
        return undone[0] if undone else None

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget the test. The inherited method counts, after each test, all tests that a worker was ever given: that
        takes minutes for 80,000 tests."""
        test = self.registered_collections[node][item_index]
        units, scope = self.assigned_work[node], self._split_scope(test)
        units[scope].pop(test, None)
        if not units[scope]:
            del units[scope]
        self._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        """Send a worker a unit of tests, whose places are looked up: the inherited method searches a list for each
        test."""
        if node not in self._places:
            self._places[node] = {test: place for place, test in enumerate(self.registered_collections[node])}
        scope, unit = self.workqueue.popitem(last=False)
        self.assigned_work[node].setdefault(scope, {}).update(unit)
        node.send_runtest_some([self._places[node][test] for test in unit])

    def schedule(self) -> None:
        """Distribute tests twice, because a worker starts a test only when it knows the next one."""
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)

    def _reschedule(self, node: Any) -> None:
        """Give a worker more tests, unless it is still collecting. If it has just died, the tests go elsewhere."""
        if node in self.registered_collections:
            with suppress(OSError):
                super()._reschedule(node)


def scheduler(run: Run, config: pytest.Config, log: Any) -> ByProblem:
    """Return the scheduler of a run, which decides which worker gets which tests."""
    config.option.loadscopereorder = False  # else problems with many cases come first, whatever the ranking
    selection = run.selection
    paths = [*selection.paths]
    if selection.implementations or not paths:
        paths += registry.discover(run.options.impls)
    groups = {group_of(path) for path in paths}
    count = len(groups) + sum(base_of(name) != name for name in selection.implementations)
    crowded = run.workers is not None and (count > run.workers.most or selection.variants)
    return ByProblem(config, log, {problem.name for problem in selection.problems}, crowded)
