"""Carry out a task: verify, check or train, and note what its process has done beside that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import structs

from conformance import interrupts
from conformance.checks import CHECKS, check_behaviour
from conformance.checks.sample import NotChecked
from conformance.engine.tasks import Task
from conformance.execution.status import Verdict
from conformance.execution.trial import Absence, Claim, Trial
from conformance.execution.verify import verify
from conformance.execution.workers import Workers, printed
from conformance.reporting.modules import is_own
from conformance.results import build
from conformance.results.claims_file import enforced
from conformance.results.schema import Record


@dataclass(frozen=True, slots=True)
class Performed:
    """Verdict and record of a task. `beside` is the record of a case that a check has verified beside its own."""

    verdict: Verdict
    record: Record
    beside: Record | None = None


def perform(task: Task, workers: Workers | None, claims: Mapping[str, Claim]) -> Performed:
    """Carry out a task. Nothing that an implementation does raises from here, except KeyboardInterrupt."""
    interrupts.require_none()
    subject, beside = task.subject, None
    if isinstance(subject, Absence):
        verdict = Verdict(subject.status, subject.reason, subject.failure)
        return concluded(task, verdict, task.record(verdict), workers, claims)
    if not isinstance(subject, Trial):
        from conformance.training.train import verify_training  # torch is needed from here on

        return concluded(task, *verify_training(subject), workers, claims)
    if task.check:
        check = CHECKS[task.check]
        verdict = check_behaviour(subject, check.check, of_right_kernels=check.of_right_kernels)
        beside = build.record(*verdict.alone) if verdict.alone else None
        record = task.record(verdict)
    else:
        verdict = verify(subject)
        record = task.record(verdict)
        if is_own(record):
            from conformance.timing.beside_torch import beside_torch  # most kernels are no torch modules

            record = structs.replace(record, module_time=beside_torch(subject, verdict))
    return concluded(task, verdict, record, workers, claims, beside)


def concluded(
    task: Task,
    verdict: Verdict,
    record: Record,
    workers: Workers | None,
    claims: Mapping[str, Claim],
    beside: Record | None = None,
) -> Performed:
    """Return a verdict and its record, with the output of the kernel's process; a lost claim makes it a failure."""
    subject = task.subject
    if workers is not None and not isinstance(subject, Absence):
        workers.conclude(subject.implementation, verdict)
        if (lines := printed(subject.implementation)) and verdict.status in ("fail", "error"):
            record = structs.replace(record, printed=lines)
        workers.limit_growth(subject.implementation)
    if not isinstance(verdict.refusal, NotChecked):  # another check has failed
        record = enforced(record, claims)
        verdict.status, verdict.reason, verdict.failure = record.status, record.reason, record.failure
    return Performed(verdict, record, beside)
