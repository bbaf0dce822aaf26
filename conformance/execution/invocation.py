"""The one place where a kernel is called: keywords bound, inputs brought to the device, results fetched and checked.

Whoever calls a kernel (verification, behaviour checks, invalid arguments, memory, timing, training) does it through an
`Invocation`, so that a defect of synchronisation is mended once. Host arrays in canonical order (NumPy) are the judge's
side of it; what a bridge makes of them is the kernel's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from conformance.dtypes import STORAGE, name_of
from conformance.implementations.bridges import ArrayBridge
from conformance.implementations.errors import KernelFailure
from conformance.implementations.implementation import AutogradVariant, Kernel
from conformance.operators.base import Arrays, Operator
from conformance.worker.audit import audited
from conformance.worker.instruments import Instruments

TO_LAYOUT = {"nchw": (0, 1, 2, 3), "nhwc": (0, 2, 3, 1)}
FROM_LAYOUT = {"nchw": (0, 1, 2, 3), "nhwc": (0, 3, 1, 2)}


@runtime_checkable
class AwaitedFunction(Protocol):
    """A kernel that can be called until it is finished; it tells what else the call has written to."""

    def finished(self, *given: Any, **parameters: Any) -> tuple[Any, tuple[str, ...]]: ...


class MalformedError(KernelFailure):
    """A result that cannot be compared; the message says what was expected."""


class MismatchedError(MalformedError):
    """Results of other shapes or dtypes than asked for: `returned`, as they are in the kernel's layout."""

    def __init__(self, message: str, returned: Arrays) -> None:
        super().__init__(message)
        self.returned = returned


def instruments(bridge: ArrayBridge) -> Instruments:
    """Of the process that a bridge's arrays are in."""
    found: Instruments | None = getattr(bridge, "instruments", None)
    return found or Instruments(bridge)


@dataclass(frozen=True, slots=True)
class Invocation:
    """A kernel (or an autograd variant, which has a kernel's signature) bound to the parameters of one problem."""

    kernel: Kernel | AutogradVariant
    bridge: ArrayBridge
    operator: Operator
    geometry: Any
    dtype: str
    layout: str

    def stored(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray | None]:
        """Arguments by position as the layout stores them on the host; None for an absent one."""
        arrays = (inputs.get(name) for name in self.operator.arguments)
        to = TO_LAYOUT[self.layout]
        return [a if a is None or a.ndim != 4 else np.ascontiguousarray(a.transpose(to)) for a in arrays]

    def to_device(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        """Fresh copies of the arguments on the device."""
        return [None if array is None else self.bridge.from_host(array) for array in self.stored(inputs)]

    def parameters(self, **changed: Any) -> dict[str, Any]:
        """The keyword arguments that the function asks for; `changed` replaces values."""
        available = {**self.operator.parameters(self.geometry), "layout": self.layout, **changed}
        asked = self.kernel.keywords
        return available if asked is None else {name: available[name] for name in asked}

    def start(self, native: Sequence[Any], **changed: Any) -> Any:
        """What the function returns, whether the device has finished or not. `changed` replaces parameters."""
        return self.kernel.function(*native, **self.parameters(**changed))

    @property
    def instruments(self) -> Instruments:
        """Of the process that the function runs in."""
        return instruments(self.bridge)

    def timed(self, *inputs: Sequence[Any]) -> tuple[Any, tuple[float, ...], float | None]:
        """Calls on several inputs, see `Instruments.timed`."""
        return self.instruments.timed((self.kernel.function, self.parameters()), inputs)

    def growth(self, native: Sequence[Any]) -> tuple[int | None, int | None]:
        """Bytes that a call takes, see `Instruments.growth`."""
        return self.instruments.growth((self.kernel.function, self.parameters()), native)

    def call(self, native: Sequence[Any]) -> tuple[Any, ...]:
        """The results, finished. Raises MalformedError for another number of them."""
        return self.audited(native)[0]

    def audited(self, native: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        """The same, and what the call has written to besides, in words: see `conformance.worker.audit`."""
        function, parameters = self.kernel.function, self.parameters()
        if isinstance(function, AwaitedFunction):  # in another process
            result, changed = function.finished(*native, **parameters)
        else:
            result, changed = audited(self.bridge, function, self.operator.arguments, native, parameters)
        return self.split(result), changed

    def split(self, result: Any) -> tuple[Any, ...]:
        """What was returned, one for each output. Raises MalformedError for another number of results."""
        names = self.operator.outputs(self.geometry)
        results = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        if len(results) != len(names):
            raise MalformedError(f"returned {len(results)} results; expected {len(names)} ({', '.join(names)})")
        return results

    def fetch(self, results: Sequence[Any]) -> list[np.ndarray]:
        """Results on the host, as they are now. Raises MalformedError for what is not the framework's own array."""
        try:
            return [self.bridge.to_host(array) for array in results]
        except TypeError as error:
            raise MalformedError(str(error)) from None

    def outputs(self, results: Sequence[Any]) -> Arrays:
        """Results on the host in canonical order. Raises MismatchedError for another shape or dtype than asked for."""
        tensors = self.operator.outputs(self.geometry)
        returned = dict(zip(tensors, self.fetch(results), strict=True))
        to, back = TO_LAYOUT[self.layout], FROM_LAYOUT[self.layout]
        canonical = {}
        for name, tensor in tensors.items():
            is_image = len(tensor.shape) == 4
            shape = tuple(tensor.shape[axis] for axis in to) if is_image else tensor.shape
            host, dtype = returned[name], tensor.stored_as(self.dtype)
            if host.shape != shape:
                raise MismatchedError(f"{name} has shape {host.shape}; expected {shape} ({self.layout})", returned)
            if host.dtype != STORAGE[dtype]:
                raise MismatchedError(f"{name} has dtype {name_of(host.dtype)}; expected {dtype}", returned)
            canonical[name] = np.ascontiguousarray(host.transpose(back)) if is_image else host
        return canonical
