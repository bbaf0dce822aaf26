"""Find the operand whose storage a verdict depends on: repeat the call with fewer operands stored that way."""

from __future__ import annotations

import builtins
from collections.abc import Callable

from conformance.diagnosis.diagnose import Diagnosis
from conformance.execution.nondeterminism import NondeterminismError
from conformance.execution.process import Crash
from conformance.execution.status import Verdict
from conformance.failure import Failure
from conformance.implementations.errors import KernelFailure, described
from conformance.implementations.implementation import KernelMemory, Unsupported
from conformance.storage import KINDS, parse, written

REFUSING = (ValueError, TypeError, NotImplementedError, RuntimeError, BufferError)
"""Exceptions by which a kernel may refuse a storage, beside Unsupported and those of libraries; not IndexError."""


class OutOfBounds(Crash):
    """End of a process whose reason is known, so that it says nothing about other cases."""

    counted = False


def attempt(storage: str, memory: KernelMemory, verdict: Verdict, run: Callable[[Verdict, str], None]) -> None:
    """Call `run`, which raises if the case does not pass, with the case's storage. If it raises, call it with fewer
    operands stored so, to name the operand in the error. Raises the first error if storage is not the reason."""
    kinds = parse(storage)
    left_out = {o: kind for o, kind in kinds.items() if f"{o}:{kind}" in memory.ended_by}
    rest = {o: kind for o, kind in kinds.items() if o not in left_out}
    try:
        run(verdict, written(rest))
    except (Crash, Exception) as error:
        if not rest or isinstance(error, NondeterminismError) or _outcome(run, "")[0] is not None:
            raise
        _conclude(verdict, memory, rest, error, run)
    if left_out:
        what = f"{', '.join(_causes(left_out))}: not run again with {written(left_out)}, which ended the process before"
        raise OutOfBounds(what, Failure(kind="memory", message=what))


def _conclude(
    verdict: Verdict,
    memory: KernelMemory,
    kinds: dict[str, str],
    error: BaseException,
    run: Callable[[Verdict, str], None],
) -> None:
    """Try the storage of every operand alone, and raise what is known. With contiguous operands the call is right."""
    alone = {o: _outcome(run, f"{o}:{kind}") for o, kind in kinds.items()} if len(kinds) > 1 else {}
    failing = {o: outcome for o, outcome in alone.items() if outcome[0] is not None}
    wrong = {o: outcome for o, outcome in failing.items() if not _is_refusal(outcome[0])}
    guilty = {o: kinds[o] for o in wrong or failing or kinds}
    for raised, tried in wrong.values():
        error = raised or error
        verdict.judgements = tried.judgements
    names = written(guilty)
    if _is_refusal(error):
        words = str(error) if isinstance(error, Unsupported) else described(error)
        raise Unsupported(f"refuses {names}: {words}") from None
    if isinstance(error, Crash):
        if len(guilty) == 1 or wrong:
            memory.ended_by.update(f"{o}:{kind}" for o, kind in guilty.items())
        what, end = f"{', '.join(_causes(guilty))}: only with {names}", error.failure
        failure = Failure(kind="memory", message=what, file=end.file, line=end.line)
        raise OutOfBounds(f"{what}\n{error}", failure) from None
    if isinstance(error, KernelFailure):
        cause = Diagnosis(_causes(guilty), 0.0, f"wrong only with {names}")
        raise KernelFailure(error.message, error.failure, cause) from None
    raise error


def _outcome(run: Callable[[Verdict, str], None], storage: str) -> tuple[BaseException | None, Verdict]:
    verdict = Verdict("pass")
    try:
        run(verdict, storage)
    except (Crash, Exception) as error:
        return error, verdict
    return None, verdict


def _is_refusal(error: BaseException | None) -> bool:
    """Return whether a kernel says, in words, that it does not take operands stored that way."""
    if isinstance(error, Unsupported):
        return True
    if not isinstance(error, Exception) or isinstance(error, KernelFailure) or not str(error).strip():
        return False
    name = type(error).__name__  # all that is known of an exception's class in another process
    return not hasattr(builtins, name) or name in [kind.__name__ for kind in REFUSING]


def _causes(kinds: dict[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(KINDS[kind].format(operand) for operand, kind in kinds.items()))
