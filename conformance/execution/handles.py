"""Answers of a kernel's process, in the type that is expected; what a kernel raised there is raised here."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, ParamSpec, TypeVar, get_type_hints

import msgspec
import numpy as np

from conformance.execution.process import Crash, Handle, Process
from conformance.execution.status import KernelFailure
from conformance.implementations import implementation as declared
from conformance.implementations.devices import Unavailable
from conformance.worker import wire
from conformance.worker.call import Result

P = ParamSpec("P")
T = TypeVar("T")
MAX_COUNT = 1 << 20
"""Results of a call that are counted."""
KINDS: dict[str, type[Exception]] = {
    "unsupported": declared.Unsupported,
    "unavailable": Unavailable,
    "failure": KernelFailure,
    "declaration": declared.ImplementationError,
}
"""What a `wire.Failure` is raised as, besides what has its own name."""


class Raised(Exception):
    """What a kernel raised; a class of the same name is made for each. `traceback` is the part in the kernel."""

    blame = traceback = ""


class Exited(BaseException):
    """The same for what is no Exception, such as SystemExit."""

    blame = traceback = ""


def run(process: Process, routine: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """A function of the suite in a process. Raises what it raises there, KernelFailure for a finding, Crash."""
    found: T = value(process, process.ask(routine, *given, **named), _answer(routine))
    return found


@cache
def _answer(routine: Callable[..., T]) -> type[T]:
    """The type that a function is annotated with."""
    found: type[T] = get_type_hints(routine)["return"]
    return found


def asked(process: Process, expected: type[T], name: str, *given: Any) -> T:
    """The value of an operation that has a name. Raises the same."""
    return value(process, process.ask(name, *given), expected)


def value(process: Process, reply: wire.Reply, expected: type[T]) -> T:
    """The value of a reply; raises the same."""
    if reply.findings:
        raise KernelFailure("\n".join(reply.findings))
    if reply.failure is not None:
        raise _raised(reply.failure)
    try:
        return msgspec.convert(reply.value, expected, dec_hook=partial(_received, process))
    except msgspec.ValidationError as error:
        process.end(f"crashed: its process sent what is no answer ({error})")
        raise Crash(process.ended) from None


def _raised(failure: wire.Failure) -> BaseException:
    if failure.kind in KINDS:
        return KINDS[failure.kind](failure.message)
    base = Exited if failure.kind == "exit" else Raised
    error: Raised | Exited = type(failure.name, (base,), {})(failure.message)
    error.blame, error.traceback = failure.blame, failure.traceback
    return error


def _received(process: Process, expected: Any, told: Any) -> Any:
    """A part of an answer that MessagePack has no form for: an array, results, or a function that a file declares."""
    if expected is np.ndarray:
        return process.tensor(msgspec.convert(told, wire.ArrayLocation))
    if expected is not Result:
        return msgspec.convert(told, wire.FunctionSpec)
    returned = msgspec.convert(told, wire.Returned)
    handles = tuple(Handle(process, number) for number in returned.numbers)
    if returned.count is None and len(handles) == 1:
        return Result(handles[0])
    items = (*handles, *[None] * (min(returned.count or 0, MAX_COUNT) - len(handles)))
    if not returned.computes:
        return Result(items)
    computing = type("computing", (tuple,), {"__iter__": lambda self: tuple.__iter__(self)})
    computing.__qualname__ = returned.computes
    return Result(computing(items))
