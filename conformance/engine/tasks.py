"""Tasks of a run, made from the demands of the suites, and their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from conformance.checks import CHECKS
from conformance.checks.behaviour import BEHAVIOUR_CHECKS
from conformance.checks.behaviour_demand import dense, grouped
from conformance.checks.state import STATE, calls_are_right_later
from conformance.execution.plan import Plan
from conformance.execution.required import Demand, Predicate, VerificationDemand
from conformance.execution.status import Verdict
from conformance.execution.trial import Absence, Trial
from conformance.execution.workers import Workers
from conformance.implementations.devices import DEVICES
from conformance.operators import FAMILIES
from conformance.problems.case import Case
from conformance.results import build
from conformance.results.schema import SCHEMA, Record, TrainingRecord, TrainingRun
from conformance.training.tables import DISTRIBUTION as TRAINING
from conformance.training.tables import OPERATOR as TRAINING_OPERATOR
from conformance.training.training_demand import Training, TrainingDemand

VERIFIED: dict[str, tuple[str, Predicate | None]] = {
    f"{prefix}{operator.name}": (operator.name, when)
    for family in FAMILIES.values()
    for prefix, when in ((("", dense), ("grouped_", grouped)) if family.grouped_apart else (("", None),))
    for operator in family.operators
}
"""Name of a suite -> its operator, and a predicate of its problems: dense and grouped convolutions are suites apart."""
BEHAVES: dict[str, tuple[str, ...]] = {
    "behaviour": tuple(check.__name__ for check in BEHAVIOUR_CHECKS),
    "state": ("calls_in_a_row_are_right", *(check.__name__ for check in STATE)),
    "adjoint": ("directions_are_adjoint",),
    "invalid_arguments": ("invalid_arguments",),
    "partial_requests": ("outputs_asked_for_alone", "gradients_asked_for_alone", "results_are_added_to_arrays"),
    "memory": ("backward_keeps_what_is_declared", "training_holds_what_autograd_shows"),
    "switches": ("switches_are_unchanged",),
    "worked_example": ("worked_example_is_exact",),
    "arithmetic": ("arithmetic_is_as_declared",),
    "batch": ("images_do_not_depend_on_the_batch",),
}
"""Name of a suite -> its behaviour checks."""
TRAINS = ("digits", "unet")
"""Suites that train a network each."""

Key = tuple[str, Case, *tuple[Any, ...]]
"""Implementation and case; for cases that are absent, and only counted, also what their record says."""


class Asked(NamedTuple):
    """A demand of a suite, and the behaviour check that it is for, if any."""

    suite: str
    check: str
    demand: Demand


@dataclass(frozen=True, slots=True)
class Task:
    """A case to verify, a behaviour check to make on one, or a network to train; or an absence of these although they
    are claimed, which is a failure."""

    suite: str
    subject: Trial | Training | Absence
    check: str = ""

    @property
    def id(self) -> str:
        """Name that -k looks in: `conv_forward[acme-edge.plain-fp32-nchw-fixed]`."""
        operator = self.subject.operator if isinstance(self.subject, Absence) else self._operator
        return f"{self.suite}[{f'{self.check}-{operator}-' * bool(self.check)}{self.subject.id}]"

    @property
    def _operator(self) -> str:
        return self.subject.operator.name if isinstance(self.subject, Trial) else TRAINING_OPERATOR

    @property
    def kind(self) -> str:
        """Marker of its suite."""
        return "behaves" if self.check else "trains" if self.suite in TRAINS else "verifies"

    @property
    def devices(self) -> tuple[str, ...]:
        """Markers of devices; all of them for a file that cannot be loaded, whose device nobody knows."""
        device = self.subject.device if isinstance(self.subject, Absence) else self.subject.implementation.device
        return (device,) if device else tuple(DEVICES)

    @property
    def problem(self) -> str:
        """Name of the problem, by which cases share references and compiled programs."""
        return self.subject.problem.name if isinstance(self.subject, Trial) else ""

    @property
    def key(self) -> Key:
        """Key that tells the task's record from the others of a run: see `key_of`."""
        if isinstance(self.subject, Absence):
            return key_of(self.record(Verdict("error")))
        return self.subject.implementation.name, replace(self.subject.case, check=self.check)

    def record(self, verdict: Verdict) -> Record:
        """Return the record of a verdict on the task."""
        subject = self.subject
        if isinstance(subject, Absence):
            return build.absence_record(subject, self.check)
        if isinstance(subject, Trial):
            return (
                build.behaviour_record(subject, verdict, self.check) if self.check else build.record(subject, verdict)
            )
        implementation, network = subject.implementation, subject.configuration.network
        return TrainingRecord(
            schema=SCHEMA, implementation=implementation.name, operator=TRAINING_OPERATOR,
            device=implementation.device, cases=1, versions=build.versions(), source=implementation.source,
            problem=network, dtype="fp32", layout=subject.layout, distribution=TRAINING, seed=subject.seed, checks={},
            command=subject.command, level=subject.level, contracts={},
            training=TrainingRun(network=network, steps=0, verified=0),
            **build.verdict_fields(verdict, implementation.device),
        )  # fmt: skip


def key_of(record: Record) -> Key:
    """Return the key that tells a record from the others of a run."""
    counted = () if record.problem else (record.status, record.reason, record.cases)
    return record.implementation, record.case, *counted


def demanded(plan: Plan, suite: str, kind: str, names: Sequence[str], when: Predicate | None = None) -> Iterator[Asked]:
    """Yield what a suite asks for: it `verifies` an operator on the problems `when` a predicate holds, `behaves` as the
    checks of these names say, or `trains` a network."""
    if kind == "verifies":
        yield Asked(suite, "", VerificationDemand(plan.ranked, names[0], when))
    elif kind == "trains":
        yield Asked(suite, "", TrainingDemand(plan.selection, names[0]))
    else:
        yield from (Asked(suite, name, demand) for name in names for demand in CHECKS[name].demands(plan.ranked))


def demands(plan: Plan) -> Iterator[Asked]:
    """Yield the demands of all suites."""
    for suite, (operator, when) in VERIFIED.items():
        yield from demanded(plan, suite, "verifies", (operator,), when)
    for suite, checks in BEHAVES.items():
        yield from demanded(plan, suite, "behaves", checks)
    for network in TRAINS:
        yield from demanded(plan, network, "trains", (network,))


class Absences:
    """Absences in a run that are no failures, counted by reason and behaviour check. An operator that an implementation
    has no kernel of is absent once, whatever is asked for of it."""

    def __init__(self) -> None:
        self._cases: dict[tuple[Absence, str], int] = {}

    def add(self, absence: Absence, check: str) -> None:
        """Count an absence; of a behaviour check, if there is one."""
        is_operator = absence.undeclared is not None and absence.undeclared.kind == "operator"
        key = replace(absence, cases=0), "" if is_operator else check
        self._cases[key] = 1 if is_operator else self._cases.get(key, 0) + absence.cases

    def __bool__(self) -> bool:
        return bool(self._cases)

    def records(self) -> list[Record]:
        """Return a record of each absence."""
        return [
            build.absence_record(replace(absence, cases=cases), check)
            for (absence, check), cases in self._cases.items()
        ]


def tasks(plan: Plan, workers: Workers | None) -> tuple[list[Task], list[Record]]:
    """Return the tasks of a plan, in order, and the records of what is absent. What is claimed and absent fails, and is
    a task."""
    planned, absences = list[Task](), Absences()
    for suite, check, demand in demands(plan):
        for subject in plan.required(demand):
            if isinstance(subject, Absence) and subject.status != "fail":
                absences.add(subject, check)
            else:
                planned.append(Task(suite, subject, check))
    return sorted(planned, key=lambda task: place(task, workers)), absences.records()


def place(task: Task, workers: Workers | None) -> tuple[int, int, int]:
    """Return the place of a task in the order: that of the ranking, all operators in turn. One file's cases come after
    the other's, if not all files can have a process at once. Results come first: a kernel that crashes in one check
    after another is not run any more. Last comes the check that waits for a second since the first call to go by."""
    subject, number = task.subject, 0
    later = int(task.kind != "verifies") + (task.check == calls_are_right_later.__name__)
    if workers is not None and workers.crowded and not isinstance(subject, Absence):
        number = workers.place(subject.implementation)
    return number, later, subject.place if isinstance(subject, Trial) and not later else 0
