"""Operations of the judge that measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from conformance.implementations.bridges import ArrayBridge
from conformance.worker import ceilings, wire
from conformance.worker.instruments import Instruments


class Known(Protocol):
    """What a kernel's process has loaded and holds."""

    def bridge(self, name: str) -> ArrayBridge: ...
    def function(self, name: str, kind: str, index: int) -> Callable[..., Any]: ...
    def given(self, numbers: Sequence[int | None]) -> list[Any]: ...
    def keep(self, result: Any, number: int) -> wire.Returned: ...


class Measuring:
    """Every public method is an operation, as those of `conformance.worker.serve.Server`, to whose names they add
    `measuring.`."""

    def __init__(self, known: Known) -> None:
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

    def copies(self, name: str, inputs: Sequence[int | None], results: Sequence[int | None]) -> tuple[float, float]:
        return self._instruments(name).copies(self._known.given(inputs), self._known.given(results))

    def plain(self, name: str, instrument: str, *given: Any) -> Any:
        """Any other method of `Instruments`, none of which takes arrays."""
        return getattr(self._instruments(name), instrument)(*given)

    def ceilings(self, device: str) -> tuple[float, float, str, float]:
        return ceilings.measured(device)

    def _instruments(self, name: str) -> Instruments:
        return Instruments(self._known.bridge(name))
