"""An implementation whose kernels run in another process: the judge's side of it looks like any other implementation.

Its bridge, kernels and predicates pass every question on. Arrays are handles, which the process knows by a number: see
`conformance.execution.handles`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from conformance.contract import Contract
from conformance.execution.handles import Exited, Handle, Raised, T, asked, named, numbers, received, require_handle
from conformance.execution.process import Crash, Process
from conformance.execution.status import KernelFailure
from conformance.implementations import implementation as declared
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.bridges.tape import Footprint, Tape
from conformance.implementations.devices import Unavailable
from conformance.layouts import LayoutError, declare
from conformance.worker import autodiff, wire
from conformance.worker import instruments as local


class Home(Protocol):
    """Where an implementation lives."""

    def process(self) -> Process:
        """Its process, with its file loaded. Raises Crash."""
        ...


class RemoteBridge(ArrayBridge):
    """The bridge of an implementation, in its process."""

    def __init__(self, home: Home, name: str, seen: wire.BridgeSpec) -> None:
        self.home, self._implementation, self._seen = home, name, seen
        self._described: dict[str, str] | None = None
        self._absence = ""
        self.instruments = RemoteInstruments(self)
        for attribute, value in seen.place.items():
            setattr(self, attribute, value)
        for method in seen.able:
            setattr(self, method, getattr(self, f"_{method}"))

    @property
    def name(self) -> str:
        return self._seen.name

    @property
    def stands_for(self) -> tuple[str, ...]:
        return self._seen.stands_for

    @property
    def untimed(self) -> str:
        return self._seen.untimed

    @property
    def install(self) -> str:
        return self._seen.install

    @property
    def unsafe(self) -> tuple[str, ...]:
        return self._seen.unsafe

    @property
    def views(self) -> bool:
        return self._seen.views

    @property
    def pages(self) -> bool:
        return self._seen.pages

    @property
    def negative_strides(self) -> bool:
        return self._seen.negative_strides

    def require(self) -> None:
        """Asked once: neither devices nor packages come and go in a run."""
        if self._described is None and not self._absence:
            try:
                self._described = self.ask(dict[str, str], "require")
            except Unavailable as absence:
                self._absence = str(absence)
            except Crash:
                self._described = {}  # the cases report it
            except (Exited, Exception) as error:
                self._absence = f"{self.name} cannot be used: {getattr(error, 'blame', '') or error}"
        if self._absence:
            raise Unavailable(self._absence)

    def from_host(self, array: np.ndarray) -> Handle:
        process = self.home.process()
        handle = Handle(process, process.numbers())
        process.post("put", self._implementation, handle.number, process.store(array))
        return handle

    def to_host(self, array: Any) -> np.ndarray:
        return self.to_hosts([array])[0]

    def to_hosts(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Several in one exchange."""
        process, found = require_handle(arrays[0]).process, numbers(arrays)
        try:
            tensors = asked(process, list[wire.ArrayLocation], "fetch_all", self._implementation, found)
        except Raised as error:
            if type(error).__name__ == "TypeError":
                raise TypeError(str(error)) from None
            raise
        if len(tensors) != len(arrays):
            process.end("crashed: its process sent another number of tensors than it was asked for")
            raise Crash(process.ended)
        return [process.tensor(tensor) for tensor in tensors]

    def synchronize(self, result: Any) -> None:
        handles = [result] if isinstance(result, Handle) else list(result)
        process = next((one.process for one in handles if isinstance(one, Handle)), None)
        if process is not None:
            asked(process, type(None), "synchronize", self._implementation, numbers(handles))

    def view(self, array: Any, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Handle | None:
        if not self.views:
            return None
        handle = Handle(array.process, array.process.numbers())
        given = (handle.number, array.number, offset, tuple(shape), tuple(strides))
        array.process.post("view", self._implementation, *given)
        return handle

    def placed(self, array: np.ndarray, side: str) -> Handle | None:
        if not self.pages:
            return None
        process = self.home.process()
        handle = Handle(process, process.numbers())
        process.post("placed", self._implementation, handle.number, process.store(array), side)
        return handle

    def overwrite(self, array: Any, host: np.ndarray) -> bool:
        process = require_handle(array).process
        given = (array.number, process.store(host))
        return bool(asked(process, bool, "overwrite", self._implementation, *given))

    def overlap(self, first: Any, second: Any) -> bool:
        process = require_handle(first).process
        given = (first.number, require_handle(second).number)
        return bool(asked(process, bool, "overlap", self._implementation, *given))

    def describe(self) -> dict[str, str]:
        """As it was when it was required."""
        return dict(self._described or {})

    def floating_point_mode(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of the process, before it loaded anything and now; see `conformance.floating_point`."""
        before, now = self.ask(tuple[tuple[str, ...], tuple[str, ...]], "mode", named=False)
        if before != now:
            self.home.process().spoiled = True  # others that share the process
        return before, now

    @contextmanager
    def _metered(self) -> Iterator[dict[str, int]]:
        counted: dict[str, int] = {}
        self.ask(type(None), "meter")
        yield counted
        counted.update(self.ask(dict[str, int], "metered", named=False))

    def _differentiate(
        self, function: RemoteFunction, given: Sequence[Any], wanted: Sequence[int], parameters: dict[str, Any]
    ) -> Tape:
        process = next(one.process for one in given if isinstance(one, Handle))
        tape, first = Handle(process, process.numbers()), process.numbers(wire.MAX_RESULTS)
        name, _, index = function.place
        asking = (index, numbers(given), tuple(wanted), parameters, tape.number, first)
        found = asked(process, autodiff.Taped, "perform", name, autodiff.differentiate, *asking)

        def pull(gradient: Any) -> Any:
            place = process.numbers(wire.MAX_RESULTS)
            asking = (tape.number, require_handle(gradient).number, place)
            return received(process, asked(process, wire.Returned, "perform", name, autodiff.pull, *asking), place)

        return Tape(received(process, found.returned, first), found.saved, pull)

    def _footprint(self, function: RemoteFunction, arguments: int, parameters: dict[str, Any], batch: int) -> Footprint:
        name, _, index = function.place
        asking = (index, arguments, parameters, batch)
        return asked(self.home.process(), Footprint, "perform", name, autodiff.footprint, *asking)

    def ask(self, expected: type[T], name: str, *given: Any, named: bool = True) -> T:
        words = (self._implementation, *given) if named else given
        return asked(self.home.process(), expected, name, *words)


class RemoteInstruments(local.Instruments):
    """Those of a kernel's process: what they say is its word."""

    bridge: RemoteBridge

    def timed(self, call: Any, inputs: Sequence[Sequence[Any]]) -> tuple[Any, tuple[float, ...], float | None]:
        (function, parameters), process = call, require_handle(inputs[-1][0]).process
        first, given = process.numbers(wire.MAX_RESULTS), [numbers(handles) for handles in inputs]
        found = asked(process, wire.Timed, "measuring.timed", *function.place, first, given, parameters)
        return received(process, found.returned, first), found.walls, found.events

    def growth(self, call: Any, inputs: Sequence[Any]) -> tuple[int | None, int | None]:
        function, parameters = call
        place = function.place[1:]
        return self._ask(tuple[int | None, int | None], "growth", *place, numbers(inputs), parameters)

    def repeated(
        self, function: Any, turns: Sequence[tuple[Sequence[Any], Any]], calls: int, seconds: float
    ) -> list[tuple[Any, Any, int]]:
        process = require_handle(turns[-1][0][0]).process
        first = process.numbers(2 * wire.MAX_RESULTS * len(turns))
        asking = (first, [(numbers(given), parameters) for given, parameters in turns], calls, seconds)
        found = asked(process, list[wire.Repeated], "measuring.repeated", *function.place, *asking)
        results = []
        for place, one in enumerate(found[: len(turns)]):
            number = first + 2 * wire.MAX_RESULTS * place
            other = one.other and received(process, one.other, number + wire.MAX_RESULTS)
            results.append((received(process, one.first, number), other, one.calls))
        return results

    def forked(self, call: Any, inputs: Sequence[Any], seconds: float) -> Any:
        (function, parameters), process = call, require_handle(inputs[0]).process
        first, either = process.numbers(wire.MAX_RESULTS), wire.Returned | str
        asking = (first, numbers(inputs), parameters, seconds)
        found: Any = asked(process, either, "measuring.forked", *function.place, *asking)  # type: ignore[arg-type]
        return found if isinstance(found, str) else received(process, found, first)

    def growth_by_shape(self, function: Any, cases: Sequence[Any], least: int, seconds: float) -> tuple[int, int, int]:
        return self._ask(tuple[int, int, int], "growth_by_shape", *function.place[1:], cases, least, seconds)

    def copies(self, inputs: Sequence[Any], results: Sequence[Any]) -> tuple[float, float]:
        return self._ask(tuple[float, float], "copies", numbers(inputs), numbers(results))

    def exchange(self) -> None:
        self._plain(type(None), "exchange")

    def keep_pages(self) -> bool:
        return self._plain(bool, "keep_pages")

    def cache(self, device: str) -> int | None:
        size: Any = int | None
        found: int | None = self._plain(size, "cache", device)
        return found

    def flood(self, device: str, count: int) -> None:
        self._plain(type(None), "flood", device, count)

    def release(self) -> None:
        self._plain(type(None), "release")

    def threads(self, count: int) -> dict[str, int]:
        return self._plain(dict[str, int], "threads", count)

    def tf32(self) -> tuple[str, ...]:
        return self._plain(tuple[str, ...], "tf32")

    def _plain(self, expected: type[T], name: str, *given: Any) -> T:
        return self._ask(expected, "plain", name, *given)

    def _ask(self, expected: type[T], name: str, *given: Any) -> T:
        return self.bridge.ask(expected, f"measuring.{name}", *given)


class RemoteFunction:
    """A kernel or an autograd variant."""

    def __init__(self, home: Home, name: str, kind: str, index: int, seen: wire.FunctionSpec) -> None:
        self.home, self.place = home, (name, kind, index)
        self.declared = seen

    def __call__(self, *given: Any, **parameters: Any) -> Any:
        """Handles of what it returns: one, or several in a tuple."""
        return self._called(given, parameters, wait=False)[0]

    def finished(self, *given: Any, **parameters: Any) -> tuple[Any, tuple[str, ...]]:
        """The same when the device has finished, and what else the call has written to."""
        return self._called(given, parameters, wait=True)

    def _called(self, given: Sequence[Any], parameters: dict[str, Any], *, wait: bool) -> tuple[Any, tuple[str, ...]]:
        process = next((one.process for one in given if isinstance(one, Handle)), None) or self.home.process()
        first = process.numbers(wire.MAX_RESULTS)
        by_keyword = {keyword: named(value) for keyword, value in parameters.items()}
        returned = asked(process, wire.Returned, "call", *self.place, first, numbers(given), by_keyword, wait)
        return received(process, returned, first), returned.changed


class Condition:
    """A `when=`. Its answers are kept: what is declared of a problem does not change, and one that has crashed or hung
    is not asked again."""

    def __init__(self, home: Home, name: str, kind: str, index: int) -> None:
        self.home, self._place, self._known = home, (name, kind, index), dict[str, bool]()
        self._error = ""

    def __call__(self, geometry: Any) -> bool:
        """Raises ImplementationError for what is no answer."""
        descriptor = geometry.descriptor
        if descriptor not in self._known and not self._error:
            with self._reported():
                self._known[descriptor] = asked(self.home.process(), bool, "holds", *self._place, geometry)
        if self._error:
            raise declared.ImplementationError(self._error)
        return self._known[descriptor]

    def learn(self, geometries: Iterable[Any]) -> None:
        """Ask of many in one exchange: one each took a fifth of a collection. Of the first one that it raises for, and
        of those behind it, it is asked one by one."""
        unknown = {one.descriptor: one for one in geometries if one.descriptor not in self._known}
        if unknown and not self._error:
            with self._reported():
                answers = asked(self.home.process(), list[bool], "hold", *self._place, [*unknown.values()])
                self._known.update(zip(unknown, answers, strict=False))

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """What is no answer is what it raises from now on."""
        try:
            yield
        except (Crash, KernelFailure) as error:
            self._error = f"when=... {error}"
        except Exited as error:
            self._error = f"when=... {error.blame}"


def implementation(home: Home, seen: wire.ImplementationSpec) -> declared.Implementation:
    """What a file declares. Raises ImplementationError and ContractError for what no honest file can declare."""
    name = seen.name
    found = declared.Implementation(
        name, seen.device, RemoteBridge(home, name, seen.bridge), Contract(**seen.contract), seen.version,  # type: ignore[arg-type]
        seen.deterministic, seen.unsafe, seen.compiles_per_shape,
    )  # fmt: skip
    for layout, letters in seen.layouts.items():
        try:
            declare(layout, letters, name.partition("[")[0])  # its variants declare the same
        except LayoutError as error:
            raise declared.ImplementationError(f"layouts: {error}") from None
        found.layouts[layout] = letters
    for index, kernel in enumerate(seen.kernels):
        function = RemoteFunction(home, name, "kernel", index, kernel.function)
        when = Condition(home, name, "kernel", index) if kernel.conditional else None
        contract = Contract(**kernel.contract)  # type: ignore[arg-type]
        found.kernels.append(
            declared.Kernel(
                function, kernel.operator, kernel.dtypes, kernel.layouts, when, contract, kernel.function.keywords
            )
        )
    for index, variant in enumerate(seen.variants):
        function = RemoteFunction(home, name, "variant", index, variant.function)
        keywords = variant.function.keywords
        found.autograd_variants.append(
            declared.AutogradVariant(function, variant.operator, variant.label, variant.saves, keywords)
        )
    for index, waiver in enumerate(seen.waivers):
        when = Condition(home, name, "waiver", index) if waiver.conditional else None
        found.waivers.append(
            declared.Waiver(
                waiver.operator, waiver.reason, waiver.url, when, waiver.dtypes, waiver.distributions, waiver.storages
            )
        )
    for setting in seen.settings:  # what it prepares and wraps is that process's own
        found.settings.append(declared.Setting(setting.label, setting.environment, None, None))
    return found
