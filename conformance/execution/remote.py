"""An implementation whose kernels run in another process: the judge's side of it looks like any other implementation.

Its bridge, kernels and predicates pass every question on, see `conformance.worker.call`; arrays are handles. Answers
have the type that is expected, and an exception that a kernel raised there is raised here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any, ParamSpec, Protocol, TypeVar, get_type_hints

import msgspec
import numpy as np
from msgspec.structs import asdict

from conformance.execution.process import Crash, Elsewhere, Handle, Process
from conformance.failure import Failure
from conformance.implementations import errors
from conformance.implementations import implementation as declared
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.bridges.tape import Footprint, Tape
from conformance.implementations.devices import Unavailable
from conformance.implementations.errors import KernelFailure, printable, shortened
from conformance.layouts import LayoutError, declare
from conformance.operators.base import Geometry
from conformance.worker import call, wire

P = ParamSpec("P")
T = TypeVar("T")
MAX_COUNT = 1 << 20
"""Most results of a call that are counted."""
MAX_ITEMS, MAX_ENTRIES, MAX_LABEL = 1 << 17, 100, 300
"""Most items of a list in an answer, most entries of what a bridge says of itself, and most characters of each entry
and of a version, which every record has."""
KINDS: dict[str, type[Exception]] = {
    "unsupported": declared.Unsupported,
    "unavailable": Unavailable,
}
"""Kind of a `wire.Thrown` -> the exception that is raised for it; others have their own name or a failure."""
FAILING: dict[str, type[KernelFailure | declared.ImplementationError]] = {
    "failure": KernelFailure,
    "declaration": declared.ImplementationError,
}
"""Kind of a `wire.Thrown` that has a failure -> the exception that is raised with it."""
Place = tuple[str, str, int]
"""Place of a declaration in its process: implementation, attribute that lists such declarations, and index."""


class Raised(Exception):
    """Exception that a kernel raised, as a class of the same name. `traceback` is the part in the kernel."""

    blame = traceback = ""
    failure: Failure


class Exited(BaseException):
    """Counterpart of `Raised` for an object that is not an Exception, such as SystemExit."""

    blame = traceback = ""
    failure: Failure


def run(process: Process, routine: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run a function of the suite in a process. Raises what it raises there, KernelFailure for a finding, Crash."""
    answer: T = value(process, process.ask(routine, *arguments, **named), _answer(routine))
    return answer


@cache
def _answer(routine: Callable[..., T]) -> type[T]:
    """Return the type that a function's result is annotated with."""
    kind: type[T] = get_type_hints(routine)["return"]
    return kind


def operate(process: Process, expected: type[T], name: str, *arguments: Any) -> T:
    """Run an operation that has a name in a process, and return its value. Raises the same as `run`."""
    return value(process, process.ask(name, *arguments), expected)


def value(process: Process, reply: wire.Reply, expected: type[T]) -> T:
    """Return the value of a reply. Raises the same as `run`."""
    if reply.findings:
        findings = _shown("\n".join(reply.findings))
        raise KernelFailure(findings, Failure(kind="cheat", message=findings.partition("\n")[0]))
    try:
        if reply.thrown is not None:
            raise _raised(reply.thrown)
        return msgspec.convert(_shown(reply.value), expected, dec_hook=partial(_received, process))
    except msgspec.ValidationError as error:
        failure = Failure(kind="crashed", message="its process sent what is no answer")
        process.end(f"crashed: its process sent what is no answer ({error})", failure)
        raise process.crash from None


def _shown(value: Any) -> Any:
    """Return what a process sent with all texts made printable and short enough for a terminal. Raises
    msgspec.ValidationError for a list that is too long."""
    if isinstance(value, str):
        return printable(shortened(value, wire.MAX_TEXT))
    if isinstance(value, (list, dict)) and len(value) > MAX_ITEMS:
        raise msgspec.ValidationError(f"a list of {len(value):,} items; at most {MAX_ITEMS:,}")
    if isinstance(value, list):
        return [_shown(part) for part in value]
    return {_shown(name): _shown(part) for name, part in value.items()} if isinstance(value, dict) else value


def _raised(thrown: wire.Thrown) -> BaseException:
    thrown = msgspec.convert(_shown(msgspec.to_builtins(thrown)), wire.Thrown)
    if thrown.kind in FAILING:
        return FAILING[thrown.kind](thrown.message, thrown.failure)
    if thrown.kind in KINDS:
        return KINDS[thrown.kind](thrown.message)
    base = Exited if thrown.kind == "exit" else Raised
    error: Raised | Exited = type(thrown.name, (base,), {})(thrown.message)
    error.blame, error.traceback = thrown.blame, thrown.traceback
    error.failure = msgspec.structs.replace(thrown.failure, kind="raised")
    return error


def blame(error: BaseException) -> str:
    """Return an error and its place in words, whichever process it was raised in."""
    return error.blame if isinstance(error, (Raised, Exited)) else errors.blame(error)


def failure_of(error: BaseException) -> Failure:
    """Return an error and its place as data."""
    classes = (Raised, Exited, KernelFailure, declared.ImplementationError, Crash)
    return error.failure if isinstance(error, classes) else errors.failure_of(error)


def _received(process: Process, expected: Any, data: Any) -> Any:
    """Convert a part of an answer for which MessagePack has no form: an array, results, or a declared function."""
    if expected is np.ndarray:
        return process.tensor(msgspec.convert(data, wire.ArrayLocation))
    if expected is not call.Result:
        return msgspec.convert(data, wire.FunctionSpec)
    returned = msgspec.convert(data, wire.Returned)
    handles = tuple(Handle(process, number) for number in returned.numbers)
    if returned.count is None and len(handles) == 1:
        return call.Result(handles[0])
    items = (*handles, *[None] * (min(returned.count or 0, MAX_COUNT) - len(handles)))
    if not returned.computes:
        return call.Result(items)
    computing = type("computing", (tuple,), {"__iter__": lambda self: tuple.__iter__(self)})
    computing.__qualname__ = returned.computes
    return call.Result(computing(items))


class Home(Protocol):
    """Source of an implementation, which has its process."""

    def process(self) -> Process:
        """Return the process, with the file of the implementation loaded. Raises Crash."""
        ...


class RemoteBridge(Elsewhere, ArrayBridge):
    """The bridge of an implementation whose kernels run in another process."""

    name = untimed = install = ""
    stands_for: tuple[str, ...] = ()
    unsafe: tuple[str, ...] = ()
    views = pages = negative_strides = can_differentiate = measures_training = False

    def __init__(self, home: Home, name: str, spec: wire.BridgeSpec) -> None:
        self.home, self.key = home, ("bridge", name)
        self._described: dict[str, str] | None = None
        self._absence = ""
        for attribute, value in (asdict(spec) | spec.place).items():
            setattr(self, attribute, value)

    def perform(self, routine: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run a function of the suite in the bridge's process."""
        return run(_process_of(arguments) or self.home.process(), routine, *arguments, **named)

    def require(self) -> None:
        """Raise Unavailable if it cannot be used. Asked once: neither devices nor packages come and go in a run."""
        if self._described is None and not self._absence:
            try:
                described = self.perform(call.described, self)
                if (count := len(described)) > MAX_ENTRIES:
                    raise ValueError(f"describe() has {count:,} entries; there may be at most {MAX_ENTRIES}")
                place = {} if self.home.process().isolated else {"process": "not isolated"}
                properties = {shortened(k, MAX_LABEL): shortened(v, MAX_LABEL) for k, v in described.items()}
                self._described = properties | place
            except Unavailable as absence:
                self._absence = str(absence)
            except Crash:
                self._described = {}  # the cases report it
            except (Exited, Exception) as error:
                self._absence = (
                    f"{self.name} cannot be used: {blame(error) if isinstance(error, (Raised, Exited)) else error}"
                )
        if self._absence:
            raise Unavailable(self._absence)

    def from_host(self, array: np.ndarray) -> Handle:
        return self.home.process().make(self, "from_host", array)

    def to_host(self, array: Any) -> np.ndarray:
        return self.perform(call.fetched, self, [array])[0]

    def synchronize(self, result: Any) -> None:
        self.perform(call.ask, self, "synchronize", result)

    def view(self, array: Any, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Handle | None:
        if not self.views:
            return None
        process: Process = array.process
        return process.make(self, "view", array, offset, tuple(shape), tuple(strides))

    def placed(self, array: np.ndarray, side: str) -> Handle | None:
        return self.home.process().make(self, "placed", array, side) if self.pages else None

    def overwrite(self, array: Any, host: np.ndarray) -> bool:
        return self.perform(call.ask, self, "overwrite", array, host)

    def overlap(self, first: Any, second: Any) -> bool:
        return self.perform(call.ask, self, "overlap", first, second)

    def describe(self) -> dict[str, str]:
        """Return the description that the bridge gave when it was required."""
        return dict(self._described or {})

    def floating_point_mode(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the mode of the process before it loaded anything, and now; see `conformance.floating_point`."""
        before, now = operate(self.home.process(), tuple[tuple[str, ...], tuple[str, ...]], "mode")
        if before != now:
            self.home.process().spoiled = True  # for others that share the process
        return before, now

    def differentiate(
        self, function: Callable[..., Any], arguments: Sequence[Any], places: Sequence[int], parameters: dict[str, Any]
    ) -> Tape:
        answer = self.perform(call.differentiated, self, function, arguments, places, parameters)

        def pull(gradient: Any) -> Any:
            return self.perform(call.started, answer.pull.value, [gradient], {}).value

        return Tape(answer.result.value, answer.saved, pull)

    def footprint(
        self, function: Callable[..., Any], arguments: int, parameters: dict[str, Any], batch: int
    ) -> Footprint:
        return self.perform(call.footprint, self, function, arguments, parameters, batch)


def _process_of(arrays: Iterable[Any]) -> Process | None:
    """Return the process that the first of some arrays is in; None if there are no arrays."""
    for value in arrays:
        if isinstance(value, Handle):
            return value.process
        if isinstance(value, (list, tuple)) and (process := _process_of(value)) is not None:
            return process
    return None


class RemoteFunction(Elsewhere):
    """A kernel or an autograd variant in another process."""

    def __init__(self, home: Home, place: Place, spec: Any) -> None:
        self.home, self.key = home, ("function", *place)
        self.declared: wire.FunctionSpec = spec

    def __call__(self, *arguments: Any, **parameters: Any) -> Any:
        """Return handles of what the function returns, whether that is finished or not: one, or several in a tuple."""
        return run(_process_of(arguments) or self.home.process(), call.started, self, arguments, parameters).value


def declared_at(function: Any) -> wire.FunctionSpec:
    """Return where a function is, in another process or in this one."""
    return function.declared if isinstance(function, RemoteFunction) else wire.importable(function)


class Condition:
    """A `when=` in another process. Its answers are kept: what is declared of a problem does not change, and a
    predicate that has crashed or hung is not asked again."""

    def __init__(self, home: Home, place: Place) -> None:
        self.home, self._place, self._known = home, place, dict[str, bool | str]()
        self._error: declared.ImplementationError | None = None

    def __call__(self, geometry: Geometry) -> bool:
        """Return whether it holds. Raises ImplementationError if it does not answer, and Unsupported with its
        reason."""
        self._ask([geometry])
        if self._error:
            raise declared.ImplementationError(str(self._error), self._error.failure)
        answer = self._known[geometry.descriptor]
        if isinstance(answer, str):
            raise declared.Unsupported(answer)
        return answer

    def learn(self, geometries: Iterable[Any]) -> None:
        """Ask about many problems in one exchange: one each took a fifth of a collection. If the predicate raises for
        one of them, it is asked about that problem and those behind it one by one."""
        with suppress(declared.ImplementationError):
            self._ask(geometries)

    def _ask(self, geometries: Iterable[Any]) -> None:
        unknown = {geometry.descriptor: geometry for geometry in geometries if geometry.descriptor not in self._known}
        if not unknown or self._error:
            return
        try:
            packed = [wire.packed(geometry) for geometry in unknown.values()]
            answers = operate(self.home.process(), list[bool | str], "hold", *self._place, packed)
            self._known.update(zip(unknown, answers, strict=False))
        except (Crash, KernelFailure) as error:
            self._error = _of_a_predicate(str(error), error.failure)
        except Exited as error:
            self._error = _of_a_predicate(error.blame, error.failure)


def _of_a_predicate(what: str, failure: Failure) -> declared.ImplementationError:
    """Return the error of a `when=` that did something else instead of answering, with the place where it did."""
    message = f"when=... {what}"
    place = Failure(kind="declaration", message=message.partition("\n")[0], file=failure.file, line=failure.line)
    return declared.ImplementationError(message, place)


def implementation(home: Home, spec: wire.ImplementationSpec) -> declared.Implementation:
    """Return the implementation of a file. Raises ImplementationError for what no honest file can declare."""
    name = spec.name
    implementation = declared.Implementation(
        name, spec.device, RemoteBridge(home, name, spec.bridge), spec.contract,
        shortened(spec.version, MAX_LABEL), spec.deterministic, spec.unsafe, spec.compiles_per_shape,
        spec.batch_invariant,
    )  # fmt: skip
    for layout, letters in spec.layouts.items():
        try:
            declare(layout, letters, name.partition("[")[0])  # its variants declare the same
        except LayoutError as error:
            raise declared.ImplementationError(f"layouts: {error}") from None
        implementation.layouts[layout] = letters
    for kind in ("kernels", "autograd_variants", "waivers"):
        declarations = [
            _reached(home, (name, kind, index), declaration) for index, declaration in enumerate(getattr(spec, kind))
        ]
        setattr(implementation, kind, declarations)
    implementation.settings, implementation.adapted = list(spec.settings), spec.adapted
    return implementation


def _reached(home: Home, place: Place, declaration: Any) -> Any:
    """Return a declaration whose function and `when=` are called in the process of its file. Its memory begins empty,
    whatever the process has sent."""
    there: dict[str, Any] = {}
    if hasattr(declaration, "function"):
        there["function"] = RemoteFunction(home, place, declaration.function)
    if getattr(declaration, "when", None) is not None:
        there["when"] = Condition(home, place)
    return replace(declaration, **there)
