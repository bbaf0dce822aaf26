"""Run one case: tensors to the device, the kernel, tensors back, judgement."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from conformance.diagnosis.diagnose import diagnose
from conformance.dtypes import STORAGE, name_of
from conformance.execution.case import Case
from conformance.execution.judging import judged, prepare_reference
from conformance.implementations.bridges import ArrayBridge
from conformance.implementations.implementation import ImplementationError, Kernel, Unsupported, Waiver
from conformance.inputs import Expectation, expectation
from conformance.inputs.golden import GoldenError, check
from conformance.judge import Contract, Judgement
from conformance.operators import Arrays, Tensor

HARNESS = str(Path(__file__).parent)
TO_LAYOUT = {"nchw": (0, 1, 2, 3), "nhwc": (0, 2, 3, 1)}
FROM_LAYOUT = {"nchw": (0, 1, 2, 3), "nhwc": (0, 3, 1, 2)}


@dataclass(slots=True)
class Verdict:
    """The end of one case: exactly one status, why, and the numbers behind it. Seconds are by phase."""

    status: str
    reason: str = ""
    judgements: tuple[Judgement, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    contract: Contract | None = None
    """What the kernel promised, if there was one."""
    work: dict[str, int] = field(default_factory=dict)
    """What its one call did, where a bridge can count: see `metered`."""


class MalformedError(Exception):
    """A result that cannot be compared; the message says what was expected."""


def verify(case: Case) -> Verdict:
    """The verdict on a case. Nothing an implementation does raises from here, except KeyboardInterrupt."""
    seconds: dict[str, float] = {}
    work: dict[str, int] = {}
    try:
        kernel = case.kernel
        with _timed(seconds, "total"):
            verdict = (
                Verdict("unsupported", kernel) if isinstance(kernel, str) else _attempt(case, kernel, seconds, work)
            )
        verdict.contract = None if isinstance(kernel, str) else kernel.contract
        verdict.seconds, verdict.work = seconds, work
        return _unless_waived(case, verdict)
    except (ImplementationError, GoldenError) as problem:  # no waiver of a kernel's failures covers these
        return Verdict("error", str(problem), seconds=seconds)


def _unless_waived(case: Case, verdict: Verdict) -> Verdict:
    waiver = case.implementation.waiver(
        case.operator.name, case.problem.geometry, case.variant.dtype, case.variant.distribution
    )
    if waiver is not None and verdict.status == "pass":
        verdict.status = "fail"
        verdict.reason = f"passes, although waived as {waiver.reason!r} ({waiver.url}): remove the waiver"
        return verdict
    return excused(verdict, waiver)


def excused(verdict: Verdict, waiver: Waiver | None) -> Verdict:
    """A failure that a waiver covers is waived, and says why; every other verdict stays."""
    if waiver is not None and verdict.status in ("fail", "error"):
        verdict.status = "waived"
        verdict.reason = f"waived: {waiver.reason} ({waiver.url})\n{verdict.reason}"
    return verdict


def _attempt(case: Case, kernel: Kernel, seconds: dict[str, float], work: dict[str, int]) -> Verdict:
    exempted = kernel.contract.exempts(case.variant.distribution, case.variant.dtype)
    if exempted:
        return Verdict("unsupported", exempted)
    try:
        with _timed(seconds, "reference"):
            expected = expectation(case.recipe)
            prepare_reference(case, expected)
    except (MemoryError, ValueError) as problem:
        return Verdict("error", f"no reference, is the problem too large for this machine? {problem}")
    try:
        with _timed(seconds, "golden"):
            check(expected)
        outputs = _outputs(case, kernel, expected, seconds, work)
    except Unsupported as refusal:
        return Verdict("unsupported", str(refusal))
    except MalformedError as problem:
        return Verdict("fail", str(problem))
    except (KeyboardInterrupt, GoldenError):
        raise
    except BaseException as problem:  # SystemExit, or a pytest.skip that would leave the case uncounted
        return Verdict("error", blame(problem))
    with _timed(seconds, "judge"):
        judgements = judged(case, expected, outputs, kernel.contract)
    failed = [judgement for judgement in judgements if not judgement.passed]
    with _timed(seconds, "diagnosis"):
        looks = diagnose(case.operator, case.problem.geometry, expected.inputs, outputs) if failed else None
    reason = "\n".join([judgement.explain() for judgement in failed] + ([str(looks)] if looks else []))
    return Verdict("fail" if failed else "pass", reason, judgements)


def _outputs(
    case: Case, kernel: Kernel, expected: Expectation, seconds: dict[str, float], work: dict[str, int]
) -> Arrays:
    """Call the kernel and bring its results home, in canonical order."""
    bridge = case.implementation.arrays
    with _timed(seconds, "transfer"):
        call = prepare(case, kernel, expected)
    with _timed(seconds, "kernel"), metered(bridge) as counted:
        result = call()
    work.update(counted)
    tensors = case.operator.outputs(case.problem.geometry)
    with _timed(seconds, "transfer"):
        hosts = [to_host(bridge, array) for array in as_tuple(result, tensors)]
        return {
            name: canonical(case, name, tensor, host)
            for (name, tensor), host in zip(tensors.items(), hosts, strict=True)
        }


def metered(bridge: ArrayBridge) -> AbstractContextManager[dict[str, int]]:
    """Counts of what kernels do inside the block, by name, complete when it ends; none unless the bridge has `metered`.

    An emulator counts exactly what a device would move and issue, which tells more than its time on a CPU.
    """
    meter = getattr(bridge, "metered", None)
    return nullcontext({}) if meter is None else meter()


def prepare(case: Case, kernel: Kernel, expected: Expectation) -> Callable[[], Any]:
    """The kernel bound to fresh device copies of its inputs. A call returns when the device has finished."""
    operator, geometry, layout = case.operator, case.problem.geometry, case.variant.layout
    bridge = case.implementation.arrays
    given = [argument(expected, name, layout) for name in operator.arguments]
    native = [None if array is None else bridge.from_host(array) for array in given]
    keywords = kernel.keyword_arguments({**operator.parameters(geometry), "layout": layout})

    def call() -> Any:
        result = kernel.function(*native, **keywords)
        bridge.synchronize(result)
        return result

    return call


def argument(expected: Expectation, name: str, layout: str) -> np.ndarray | None:
    """An input as the layout stores it, None for an absent one."""
    return in_layout(expected.inputs.get(name), layout)


def in_layout(array: np.ndarray | None, layout: str) -> np.ndarray | None:
    """A canonical tensor as the layout stores it; vectors and absent ones stay."""
    if array is None or array.ndim != 4:
        return array
    return np.ascontiguousarray(array.transpose(TO_LAYOUT[layout]))


def as_tuple(result: Any, tensors: dict[str, Tensor]) -> tuple[Any, ...]:
    """What a kernel returned, one for each output. Raises MalformedError for another number of results."""
    results = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    if len(results) != len(tensors):
        raise MalformedError(f"returned {len(results)} results; expected {len(tensors)} ({', '.join(tensors)})")
    return results


def to_host(bridge: ArrayBridge, array: Any) -> np.ndarray:
    """A result on the host. Raises MalformedError for what is not the framework's own array."""
    try:
        return bridge.to_host(array)
    except TypeError as problem:
        raise MalformedError(str(problem)) from None


def canonical(case: Case, name: str, tensor: Tensor, host: np.ndarray) -> np.ndarray:
    """An output in canonical order, if it is what was asked for."""
    layout, dtype = case.variant.layout, tensor.stored_as(case.variant.dtype)
    four = len(tensor.shape) == 4
    shape = tuple(tensor.shape[a] for a in TO_LAYOUT[layout]) if four else tensor.shape
    if host.shape != shape:
        raise MalformedError(f"{name} has shape {host.shape}; expected {shape} ({layout})")
    if host.dtype != STORAGE[dtype]:
        raise MalformedError(f"{name} has dtype {name_of(host.dtype)}; expected {dtype}")
    return np.ascontiguousarray(host.transpose(FROM_LAYOUT[layout])) if four else host


def blame(problem: BaseException) -> str:
    """The error and the place in the kernel's file that led to it."""
    frames = [f for f in traceback.extract_tb(problem.__traceback__) if not f.filename.startswith(HARNESS)]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    return f"raised {type(problem).__name__}: {problem}{where}"


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - start
