"""Operations of the judge that measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from conformance.implementations.bridges import ArrayBridge
from conformance.worker import ceilings, wire
from conformance.worker.instruments import Instruments


class ProcessState(Protocol):
    """What a kernel's process has loaded and holds."""

    def bridge(self, name: str) -> ArrayBridge: ...
    def function(self, name: str, kind: str, index: int) -> Callable[..., Any]: ...
    def given(self, numbers: Sequence[int | None]) -> list[Any]: ...
    def keep(self, result: Any, number: int) -> wire.Returned: ...


class Measuring:
    """Every public method is an operation, as those of `conformance.worker.serve.Server`, to whose names they add
    `measuring.`."""

    def __init__(self, known: ProcessState) -> None:
        self._known = known

    def timed(
        self,
        name: str,
        kind: str,
        index: int,
        number: int,
        calls: Sequence[Sequence[int | None]],
        parameters: dict[str, Any],
    ) -> wire.Timed:
        """Results of the last call get the numbers from `number` on."""
        call, inputs = (self._known.function(name, kind, index), parameters), [*map(self._known.given, calls)]
        result, walls, events = self._instruments(name).timed(call, inputs)
        return wire.Timed(self._known.keep(result, number), walls, events)

    def growth(
        self, name: str, kind: str, index: int, arguments: Sequence[int | None], parameters: dict[str, Any]
    ) -> tuple[int | None, int | None]:
        call = self._known.function(name, kind, index), parameters
        return self._instruments(name).growth(call, self._known.given(arguments))

    def repeated(
        self, name: str, kind: str, index: int, number: int,
        turns: Sequence[tuple[Sequence[int | None], dict[str, Any]]], calls: int, seconds: float,
    ) -> list[wire.Repeated]:  # fmt: skip
        """The first result of each turn gets the numbers from `number` on, the one that differs those after it."""
        function = self._known.function(name, kind, index)
        given = [(self._known.given(inputs), parameters) for inputs, parameters in turns]
        found = []
        for first, other, count in self._instruments(name).repeated(function, given, calls, seconds):
            kept = [self._known.keep(first, number), self._known.keep(other, number + wire.MAX_RESULTS)]
            found.append(wire.Repeated(kept[0], None if other is None else kept[1], count))
            number += 2 * wire.MAX_RESULTS
        return found

    def forked(
        self, name: str, kind: str, index: int, number: int, inputs: Sequence[int | None],
        parameters: dict[str, Any], seconds: float,
    ) -> wire.Returned | str:  # fmt: skip
        """Results get the numbers from `number` on."""
        call = self._known.function(name, kind, index), parameters
        found = self._instruments(name).forked(call, self._known.given(inputs), seconds)
        return wire.plain(found) if isinstance(found, str) else self._known.keep(found, number)

    def growth_by_shape(
        self, name: str, kind: str, index: int, cases: Sequence[Any], least: int, seconds: float
    ) -> tuple[int, int, int]:
        function = self._known.function(name, kind, index)
        return self._instruments(name).growth_by_shape(function, cases, least, seconds)

    def copies(self, name: str, inputs: Sequence[int | None], results: Sequence[int | None]) -> tuple[float, float]:
        return self._instruments(name).copies(self._known.given(inputs), self._known.given(results))

    def plain(self, name: str, instrument: str, *given: Any) -> Any:
        """Any other method of `Instruments`, none of which takes arrays."""
        return getattr(self._instruments(name), instrument)(*given)

    def ceilings(self, device: str) -> tuple[float, float, str, float]:
        return ceilings.measured(device)

    def reference(self) -> tuple[float, float]:
        return ceilings.reference().seconds()

    def _instruments(self, name: str) -> Instruments:
        return Instruments(self._known.bridge(name))
