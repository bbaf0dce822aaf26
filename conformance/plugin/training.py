"""pytest wiring of training: one test per implementation and network, its verdict, and a table at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from conformance.execution.case import Absence
from conformance.execution.verify import Verdict
from conformance.implementations.devices import DEVICES
from conformance.implementations.implementation import Implementation
from conformance.plugin.plugin import conclude, publish, record_of
from conformance.reporting.training import table
from conformance.results import build
from conformance.results.schema import SCHEMA, Record, Scores, TrainingRecord, TrainingRun, number
from conformance.training.due import Training, due
from conformance.training.tables import DIRECTIONS, DISTRIBUTION, OPERATOR


def pytest_configure(config: pytest.Config) -> None:
    """A run starts with an empty table."""
    config.addinivalue_line("markers", "trains(network): a network, trained through every implementation")
    config.pluginmanager.register(Table(), "conformance-training")


class Table:
    """The trainings of a run, as their records say, printed when it ends."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        record = record_of(report)
        if isinstance(record, TrainingRecord):
            self.records.append(record)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line per training."""
        found = table((record.implementation, record) for record in self.records)
        if found is not None:
            terminalreporter.section("training")
            for line in (*found.lines(), found.note):
                terminalreporter.write_line(line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per implementation."""
    marker = metafunc.definition.get_closest_marker("trains")
    if marker is not None:
        session: Any = metafunc.config.pluginmanager.get_plugin("conformance-session")
        session.asked = True
        metafunc.parametrize("training", [_parameter(one) for one in due(session.plan, marker.args[0])])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Drop tests that no training is due for, which pytest would report as skipped."""
    items[:] = filter(_has_training, items)


@pytest.fixture
def trained(request: pytest.FixtureRequest) -> Callable[[Training | Absence], None]:
    """A function that trains and turns the verdict into the test's outcome."""

    def run(training: Training | Absence) -> None:
        if isinstance(training, Absence):
            verdict = Verdict(training.status, training.reason)
            record: Record = build.absence_record(training)
        else:
            from conformance.training.verdict import concluded  # torch is needed from here on

            outcome = concluded(training)
            verdict, record = outcome.verdict, _record(training, outcome)
        publish(request.node, record)
        conclude(verdict, record.command)

    return run


def _record(training: Training, outcome: Any) -> TrainingRecord:
    """The record of a training: the network, how it went."""
    implementation, course, history, audit = training.implementation, training.course, outcome.history, outcome.audit
    names = {"commonest": "baseline"}
    scores = {names.get(name, name.replace(" ", "_")): number(score) for name, score in history.scores.items()}
    return TrainingRecord(
        schema=SCHEMA,
        implementation=implementation.name,
        operator=OPERATOR,
        device=implementation.device,
        cases=1,
        **build.verdict_fields(outcome.verdict),
        source=implementation.source,
        contracts={name: _contract(implementation, name, training.layout) for name in DIRECTIONS},
        problem=course.network,
        dtype="fp32",
        layout=training.layout,
        distribution=DISTRIBUTION,
        level=training.level,
        seed=training.seed,
        checks={role: {"worst error / bound": (number(worst), 1.0)} for role, worst in audit.worst.items()},
        training=TrainingRun(
            network=course.network,
            steps=len(history.losses),
            verified=audit.judged,
            losses=tuple(map(number, history.losses)),
            scores=Scores(**scores) if scores else None,
            configuration=asdict(course),
        ),
        versions=build.versions() | build.texts(implementation.arrays.describe()),
        command=training.command,
    )


def _contract(implementation: Implementation, direction: str, layout: str) -> dict[str, Any]:
    """The contract of the first kernel that is for fp32; another one may be for some of the geometries."""
    fitting = (k for k in implementation.kernels if (k.operator, "fp32" in k.dtypes) == (direction, True))
    return next(k.contract.as_record() for k in fitting if layout in k.layouts)


def _parameter(one: Training | Absence) -> Any:
    device = one.device if isinstance(one, Absence) else one.implementation.device
    marks = [getattr(pytest.mark, name) for name in ([device] if device else DEVICES)]
    return pytest.param(one, id=one.id, marks=marks)


def _has_training(item: pytest.Item) -> bool:
    """False for a test whose parameters were empty."""
    parameters = getattr(item, "callspec", None)
    return parameters is None or isinstance(parameters.params.get("training"), (Training, Absence, type(None)))
