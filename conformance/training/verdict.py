"""The verdict on a training. Nothing that an implementation does raises from here."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from conformance.execution import verify
from conformance.execution.verify import MalformedError, Verdict
from conformance.implementations.implementation import ImplementationError, Unsupported, Waiver
from conformance.inputs import DISTRIBUTIONS
from conformance.training import train
from conformance.training.audit import Audit, BrokenStepError
from conformance.training.due import Training
from conformance.training.train import History, StalledError

ROOM = str(Path(__file__).parent)

ENDS: dict[type[BaseException], str] = {
    BrokenStepError: "fail",
    MalformedError: "fail",
    StalledError: "fail",
    Unsupported: "unsupported",
    ImplementationError: "error",
}
"""What ends a training -> its status; anything else is an error."""


@dataclass(slots=True)
class Outcome:
    """How a training ended and what became of it."""

    verdict: Verdict
    audit: Audit
    history: History = field(default_factory=History)


def concluded(training: Training) -> Outcome:
    """Train, judge, and say how it ended; raises KeyboardInterrupt only."""
    start = time.perf_counter()
    outcome = Outcome(Verdict("pass"), Audit())
    try:
        outcome.history = train.run(
            training.course, training.implementation, training.layout, training.seed, outcome.audit
        )
        train.require_fallen(training.course, outcome.history)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # SystemExit, or a pytest.skip that would leave the training uncounted
        status = next((status for kind, status in ENDS.items() if isinstance(problem, kind)), "error")
        reason = f"{outcome.audit.place}\n{_blame(problem)}" if status == "error" else str(problem)
        outcome.verdict = verify.excused(Verdict(status, reason.strip()), _waiver(training, outcome.audit, problem))
    outcome.verdict.seconds = {"total": time.perf_counter() - start, "judge": outcome.audit.seconds}
    return outcome


def _waiver(training: Training, audit: Audit, problem: BaseException) -> Waiver | None:
    """What excuses the call that training ended at: a kernel waived on a problem's data is waived on any."""
    if audit.asked is None or isinstance(problem, (ImplementationError, StalledError)):
        return None
    find: Any = partial(training.implementation.waiver, *audit.asked, "fp32")
    return next(filter(None, map(find, DISTRIBUTIONS)), None)


def _blame(problem: BaseException) -> str:
    """The error, and the place in the kernel's own file that led to it: what this room called last."""
    frames = traceback.extract_tb(problem.__traceback__)
    ours = [number for number, frame in enumerate(frames) if frame.filename.startswith(ROOM)]
    called = frames[ours[-1] + 1 :] if ours else []
    own = [frame for frame in called if frame.filename == called[0].filename]
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    return f"raised {type(problem).__name__}: {problem}{where}"
