"""pytest wiring of training: one test per implementation and network, its verdict, and a table at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from conformance.execution.case import Absence
from conformance.execution.verify import Verdict
from conformance.implementations.devices import DEVICES
from conformance.implementations.implementation import Implementation
from conformance.plugin.plugin import PROPERTY, conclude, publish
from conformance.results import records
from conformance.training.due import Training, due
from conformance.training.tables import DIRECTIONS, DISTRIBUTION, OPERATOR

HEADINGS = (
    "implementation",
    "network",
    "steps",
    "loss",
    "right",
    "test loss",
    "right",
    "guess",
    "judged",
    "worst",
    "s",
)
LEGEND = (
    "right: share of right answers; guess: share of the commonest one in the test; "
    "judged: tensors compared with their bound; worst: error as a share of it"
)


def pytest_configure(config: pytest.Config) -> None:
    """A run starts with an empty table."""
    config.addinivalue_line("markers", "trains(network): a network, trained through every implementation")
    config.pluginmanager.register(Table(), "conformance-training")


class Table:
    """The trainings of a run, as their records say, printed when it ends."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the records of trainings that got as far as a test."""
        text = dict(report.user_properties).get(PROPERTY) if report.when == "call" else None
        record = json.loads(str(text)) if text is not None else {}
        if record.get("training", {}).get("scores"):
            self.records.append(record)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line per training."""
        if self.records:
            terminalreporter.section("training")
            for line in table(self.records):
                terminalreporter.write_line(line)


def table(kept: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines of text, headings first."""
    rows = [HEADINGS, *map(_row, kept)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
    yield LEGEND


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    training = record["training"]
    scores = {name: float(score) for name, score in training["scores"].items()}
    worst = max(float(check["worst error / bound"][0]) for check in record["checks"].values())
    return (
        record["implementation"],
        training["network"],
        str(training["steps"]),
        f"{scores['first loss']:.3f} to {scores['last loss']:.3f}",
        f"{scores['accuracy']:.0%}",
        f"{scores['test loss']:.3f}",
        f"{scores['test accuracy']:.0%}",
        f"{scores['commonest']:.0%}",
        f"{training['judged']:,}",
        f"{worst:.0%}",
        f"{record['seconds']['total']:.1f}",
    )


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
            verdict, record = Verdict(training.status, training.reason), records.absence_record(training)
        else:
            from conformance.training.verdict import concluded  # torch is needed from here on

            outcome = concluded(training)
            verdict, record = outcome.verdict, _record(training, outcome)
        publish(request.node, record)
        conclude(verdict, record.get("command", ""))

    return run


def _record(training: Training, outcome: Any) -> dict[str, Any]:
    """The record of a training: the head of every record, the network, how it went."""
    implementation, course, verdict = training.implementation, training.course, outcome.verdict
    head = records.absence_record(
        Absence(implementation.name, OPERATOR, implementation.device, verdict.status, verdict.reason, 1)
    )
    history, audit = outcome.history, outcome.audit
    return {
        **head,
        "source": implementation.source,
        "contracts": {name: _contract(implementation, name, training.layout) for name in DIRECTIONS},
        "problem": course.network,
        "dtype": "fp32",
        "layout": training.layout,
        "distribution": DISTRIBUTION,
        "level": training.level,
        "seed": training.seed,
        "checks": {role: {"worst error / bound": [records.number(worst), 1.0]} for role, worst in audit.worst.items()},
        "training": {
            **asdict(course),
            "steps": len(history.losses),
            "judged": audit.judged,
            "losses": [records.number(loss) for loss in history.losses],
            "scores": {name: records.number(score) for name, score in history.scores.items()},
        },
        "seconds": {phase: round(value, 6) for phase, value in verdict.seconds.items()},
        "versions": head["versions"] | implementation.arrays.describe(),
        "command": training.command,
    }


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
