"""The one way from whatever happens in an attempt to exactly one status, with waivers applied.

Verification, behaviour checks, timing and training all conclude here. Nothing that an implementation does raises from
`conclude`, except KeyboardInterrupt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from conformance.diagnosis.diagnose import Diagnosis
from conformance.execution.process import Crash
from conformance.execution.remote import blame, failure_of
from conformance.failure import Failure, in_brief
from conformance.implementations.errors import KernelFailure
from conformance.implementations.implementation import ImplementationError, Unsupported, Waiver
from conformance.inputs.golden import GoldenError
from conformance.judge import Contract, Judgement


class MissingReferenceError(Exception):
    """The expected outputs could not be computed here. This is no fault of the kernel, so that no waiver covers it."""


class InsufficientMemoryError(Exception):
    """The machine cannot hold the problem; the message says what it needs. No fault of the kernel either."""


class BehaviourError(KernelFailure):
    """A kernel that does not behave as it must; the message says how that showed.

    `wrong_on` is the input distribution, if it showed in results: a waiver of wrong results on it covers them here too.
    """

    def __init__(
        self, message: str, failure: Failure | None = None, *, wrong_on: str = "", diagnosis: Diagnosis | None = None
    ) -> None:
        super().__init__(message, failure, diagnosis)
        self.wrong_on = wrong_on


@dataclass(slots=True)
class Verdict:
    """The end of one case: exactly one status, why, and the numbers behind it."""

    status: str
    reason: str = ""
    failure: Failure | None = None
    """The reason as data, where the status is `fail` or `error`, or would be without the waiver."""
    judgements: tuple[Judgement, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    """Phase -> seconds."""
    contract: Contract | None = None
    """Contract that the kernel declares, if there was a kernel."""
    work: dict[str, int] = field(default_factory=dict)
    """Counts of what the kernel's one call did, if the bridge can count."""
    alone: Any = None
    """Case of a call that a check has made, and the verdict on it, if its result is wrong also as the first call in
    another process."""
    facts: Any = None
    """Measurements of a check that it does not judge."""
    waiver: Waiver | None = None
    """Waiver of the failure that `reason` describes, if the status is `waived`."""
    diagnosis: Diagnosis | None = None
    """Known mistakes that explain the failure, if any do."""
    exception: BaseException | None = None
    """Exception that the kernel raised, with its traceback, if that is why the status is `error`."""
    crashed: bool = False
    """Whether the kernel's process ended."""
    refusal: Unsupported | None = None
    """Exception that was raised if the status is `unsupported`."""
    refused: bool = False
    """Whether the kernel raised the refusal when it was called, although it had declared to support the case."""

    @property
    def unverified(self) -> tuple[str, ...]:
        """Outputs that pass because limits exceed most of their results, whatever these are."""
        return tuple(judgement.output for judgement in self.judgements if judgement.passed and judgement.says_nothing)

    @property
    def explanation(self) -> str:
        """Reason as it is shown: with that of the waiver, if there is one."""
        return self.explained()

    def explained(self, *, brief: bool = False) -> str:
        """Return the reason with that of the waiver, if there is one; if `brief`, without details."""
        reason, waiver = in_brief(self.reason, self.failure) if brief else self.reason, self.waiver
        return reason if waiver is None else f"waived: {waiver.reason} ({waiver.url})\n{reason}"

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the seconds of the block to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


def conclude(
    attempt: Callable[[Verdict], None],
    waiver: Callable[[BaseException | None], Waiver | None],
    *,
    must_fail: bool = False,
) -> Verdict:
    """Run an attempt, which fills in the verdict it is given and raises if it does not pass.

    `waiver` finds the waiver of what was raised. With `must_fail`, an attempt that passes although it is waived is a
    failure too: the waiver is out of date.
    """
    verdict = Verdict("pass")
    raised: BaseException | None = None
    try:
        with verdict.timed("total"):
            attempt(verdict)
    except KeyboardInterrupt:
        raise
    except Unsupported as refusal:
        verdict.status, verdict.reason, verdict.refusal = "unsupported", str(refusal), refusal
    except KernelFailure as wrong:
        raised = wrong
        verdict.status, verdict.reason, verdict.failure = "fail", str(wrong), wrong.failure
        verdict.diagnosis = wrong.diagnosis
    except ImplementationError as error:
        verdict.status, verdict.reason, verdict.failure = "error", str(error), error.failure
        return verdict
    except GoldenError as error:
        verdict.status, verdict.reason = "error", str(error)
        verdict.failure = Failure(kind="golden", message=error.alike)
        return verdict
    except MissingReferenceError as error:
        verdict.status, verdict.reason = "error", str(error)
        verdict.failure = Failure(kind="reference", message=str(error))
        return verdict
    except InsufficientMemoryError as shortage:
        verdict.status, verdict.reason = "unavailable", str(shortage)
        return verdict
    except Crash as crash:
        raised = crash
        verdict.status, verdict.reason, verdict.failure = "error", str(crash), crash.failure
        verdict.crashed = crash.counted
    except BaseException as error:  # SystemExit, or a pytest.skip that would leave the case uncounted
        raised = error
        verdict.status, verdict.reason, verdict.failure = "error", blame(error), failure_of(error)
        verdict.exception = error
    if verdict.status == "unsupported" or (verdict.status == "pass" and not must_fail):
        return verdict
    try:
        covering = waiver(raised)
    except ImplementationError as error:
        verdict.status, verdict.reason = "error", f"{error}\n{verdict.reason}".strip()
        verdict.failure = error.failure
        if raised is not None and isinstance(raised, KernelFailure):
            under = raised.failure.below(str(error).count("\n") + 1)
            verdict.failure = structs.replace(error.failure, details=under.details, headed=under.headed)
        return verdict
    if covering is not None and verdict.status == "pass":
        verdict.status = "fail"
        verdict.reason = (
            f"passes, although waived as {covering.reason!r} ({covering.url}): remove the waiver or narrow its when=, "
            f"{covering.place}"
        )
        verdict.failure = Failure(kind="waiver", message=verdict.reason)
    elif covering is not None:
        verdict.status, verdict.waiver = "waived", covering
    return verdict
