"""The verdict on a training. Nothing that an implementation does raises from here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from conformance.execution.status import KernelFailure, Verdict, conclude
from conformance.implementations.implementation import Unsupported, Waiver
from conformance.inputs import DISTRIBUTIONS
from conformance.results import build
from conformance.results.schema import SCHEMA, Scores, TrainingRecord, TrainingRun, number
from conformance.training import train
from conformance.training.audit import Audit
from conformance.training.due import Training
from conformance.training.tables import DIRECTIONS, DISTRIBUTION, OPERATOR
from conformance.training.train import History, StalledError


@dataclass(slots=True)
class Outcome:
    """How a training ended and what became of it."""

    verdict: Verdict
    audit: Audit = field(default_factory=Audit)
    history: History = field(default_factory=History)


def concluded(training: Training) -> Outcome:
    """Train, judge every call, and say how it ended; raises KeyboardInterrupt only."""
    outcome, errors = Outcome(Verdict("pass")), list[BaseException]()
    course, audit = training.course, outcome.audit

    def attempt(verdict: Verdict) -> None:
        try:
            outcome.history = train.run(course, training.implementation, training.layout, training.seed, audit)
            train.require_fallen(course, outcome.history)
        except BaseException as error:
            errors.append(error)
            raise

    def waiver() -> Waiver | None:
        """What excuses the call that training ended at: a kernel waived on a problem's data is waived on any."""
        if audit.asked is None or any(isinstance(error, StalledError) for error in errors):
            return None
        find: Any = partial(training.implementation.waiver, *audit.asked, "fp32")
        return next(filter(None, map(find, DISTRIBUTIONS)), None)

    verdict = outcome.verdict = conclude(attempt, waiver)
    if errors and not isinstance(errors[0], (KernelFailure, Unsupported)):
        verdict.reason = f"{audit.place}\n{verdict.reason}".strip()
    verdict.seconds["judge"] = audit.seconds
    return outcome


def record_of(training: Training, outcome: Outcome) -> TrainingRecord:
    """The record of a training: the network, how it went, and under which contracts."""
    implementation, course, history, audit = training.implementation, training.course, outcome.history, outcome.audit
    # the contract of the first kernel that is for fp32; another one may be for some of the geometries
    contracts = {
        name: next(
            k.contract.as_record()
            for k in implementation.kernels
            if k.operator == name and "fp32" in k.dtypes and training.layout in k.layouts
        )
        for name in DIRECTIONS
    }
    return TrainingRecord(
        schema=SCHEMA,
        implementation=implementation.name,
        operator=OPERATOR,
        device=implementation.device,
        cases=1,
        **build.verdict_fields(outcome.verdict),
        source=implementation.source,
        contracts=contracts,
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
            scores=Scores(**{n: number(score) for n, score in history.scores.items()}) if history.scores else None,
            configuration=asdict(course),
        ),
        versions=build.versions() | build.texts(implementation.arrays.describe()),
        command=training.command,
    )
