"""The one place where a kernel is called: keywords bound, inputs brought to the device, results fetched and checked.

Whoever calls a kernel (verification, behaviour checks, invalid arguments, memory, timing, training) does it through an
`Invocation`, so that a defect of synchronisation is fixed in one place. The judge has host arrays (NumPy) in canonical
order; the kernel has what a bridge makes of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance import storage
from conformance.dtypes import PACKED, STORAGE, name_of, packed
from conformance.failure import Failure
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.errors import KernelFailure
from conformance.implementations.implementation import AutogradVariant, Kernel, Unsupported
from conformance.layouts import arranged, arrangement, groups_of
from conformance.operators.base import Arrays, Tensor, Workload
from conformance.worker.call import Audited, audited, fetched, is_several
from conformance.worker.measuring import Timed, timed


class MalformedError(KernelFailure):
    """A result that cannot be compared; the message says what was expected."""

    kind = "malformed"


class MismatchedError(MalformedError):
    """Results of other shapes or dtypes than asked for; `returned` holds them in the kernel's layout."""

    def __init__(self, message: str, failure: Failure, returned: Arrays) -> None:
        super().__init__(message, failure)
        self.returned = returned


@dataclass(frozen=True, slots=True)
class Laid:
    """An operand's memory on the device, and what was put there."""

    operand: str
    kind: str
    before: np.ndarray
    memory: Any


def require_storage(bridge: ArrayBridge, text: str) -> None:
    """Raise Unsupported if this framework cannot store operands as `text` says."""
    kinds = storage.parse(text).values()
    if kinds and not bridge.views:
        raise Unsupported(f"operands are always contiguous: {bridge.name} has no views")
    if not bridge.pages and any(kind in storage.PAGES for kind in kinds):
        raise Unsupported(f"pages beside operands cannot be guarded with {bridge.name} on this device")
    if "reversed" in kinds and not bridge.negative_strides:
        raise Unsupported(f"operands are never reversed: {bridge.name} has no negative strides")


def fill_freed_memory(
    bridge: ArrayBridge, tensors: Iterable[Tensor], blocks: int = 3, byte: int = storage.NAN_BYTE
) -> None:
    """Fill memory with a byte, by default NaN, and free it for the next allocation, in the sizes of these tensors and
    of their accumulators, several blocks of each: an element that a kernel does not write must not be zero by
    chance."""
    sizes = {tensor.size * itemsize for tensor in tensors for itemsize in (2, 4, 8)}
    filled = [bridge.from_host(np.full(size, byte, np.uint8)) for size in sizes for _ in range(blocks)]
    del filled


def handed(tensor: Tensor, dtype: str, layout: str, geometry: Any) -> tuple[np.dtype, tuple[int, ...]]:
    """Return the dtype and the shape of an argument as a kernel gets it."""
    shape = arranged(tensor, layout, geometry).stored
    if tensor.packed:
        return np.dtype(np.uint8), (*shape[:-1], -(-shape[-1] // 2))
    return STORAGE[tensor.stored_as(dtype)], shape


def _lies_as(array: np.ndarray, memory: np.ndarray, place: storage.Placement) -> bool:
    """Return whether an array is what its view of the memory has."""
    size = array.itemsize
    view = np.ndarray(array.shape, array.dtype, memory, place.offset * size, [size * step for step in place.strides])
    return np.array_equal(view, array)


@dataclass(frozen=True, slots=True)
class Invocation:
    """A kernel (or an autograd variant, which has a kernel's signature) bound to the parameters of one problem."""

    kernel: Kernel | AutogradVariant
    bridge: ArrayBridge
    workload: Workload
    dtype: str
    layout: str
    storage: str = ""
    requested: tuple[str, ...] = ()
    """Outputs that are asked for, of a kernel with an `output_mask`; all of them if none is named."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Outputs that must be returned, by name."""
        outputs = self.workload.outputs
        return {name: outputs[name] for name in outputs if name in (self.requested or outputs)}

    def stored(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray | None]:
        """Return the arguments by position as the layout stores them on the host, numbers of 4 bits two to a byte; None
        for an absent one. Raises LayoutError for an array whose channels the layout's groups do not divide."""
        geometry, tensors = self.workload.geometry, self.workload.inputs
        arguments: list[np.ndarray | None] = []
        for name in self.workload.operator.arguments:
            if (array := inputs.get(name)) is None:
                arguments.append(None)
                continue
            if array.ndim != len(tensors[name].shape):  # in an invalid call; no layout arranges it
                arguments.append(np.ascontiguousarray(array))
                continue
            # the array's own shape: in an invalid call it is not the problem's
            place = arrangement(array.shape, self.layout, groups_of(tensors[name], geometry), tensors[name].axes)
            memory = np.ascontiguousarray(place.to_memory(array))
            arguments.append(packed(memory) if array.dtype == STORAGE[PACKED] else memory)
        return arguments

    def to_device(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        """Return fresh copies of the arguments on the device."""
        return [None if array is None else self.bridge.from_host(array) for array in self.stored(inputs)]

    def laid_out(self, inputs: Mapping[str, np.ndarray]) -> tuple[list[Any], list[Laid]]:
        """Return fresh copies of the arguments on the device, stored as `storage` says, and the memory that they lie
        in. Raises Unsupported if the framework has no views, or no memory beside guarded pages."""
        kinds, tensors, native, memories = storage.parse(self.storage), self.workload.inputs, [], []
        for name, array in zip(self.workload.operator.arguments, self.stored(inputs), strict=True):
            kind = kinds.get(name)
            if kind is None or array is None or not array.size:
                native.append(None if array is None else self.bridge.from_host(array))
                continue
            require_storage(self.bridge, f"{name}:{kind}")
            tensor = tensors[name]
            if tensor.packed:  # which lies as its axes are, and has fewer bytes than numbers
                tensor = replace(tensor, shape=array.shape)
            place = storage.placement(kind, arranged(tensor, self.layout, self.workload.geometry), array.itemsize)
            before = storage.buffer(array, place)
            if tensor.packed and not _lies_as(array, before, place):
                raise Unsupported("the last byte has one number: bytes do not repeat as numbers do")
            guarded = place.page and self.bridge.pages
            memory = self.bridge.placed(before, place.page) if guarded else self.bridge.from_host(before)
            native.append(self.bridge.view(memory, place.offset, array.shape, place.strides))
            memories.append(Laid(name, kind, before, memory))
        return native, memories

    def parameters(self, **changed: Any) -> dict[str, Any]:
        """Return the keyword arguments that the function asks for; `changed` replaces values."""
        mask = tuple(name in self.tensors for name in self.workload.outputs)
        available = {
            **self.workload.parameters,
            **{"layout": self.layout, "output_mask": mask, "into": None},
            **changed,
        }
        return {name: available[name] for name in self.kernel.keywords}

    def start(self, native: Sequence[Any], **changed: Any) -> Any:
        """Call the function, and return its result, be the device finished or not. `changed` replaces parameters."""
        return self.kernel.function(*native, **self.parameters(**changed))

    def timed(self, *inputs: Sequence[Any]) -> Timed:
        """Time calls on several inputs."""
        return self.bridge.perform(timed, self.bridge, self.kernel.function, self.parameters(), inputs)

    def call(self, native: Sequence[Any]) -> tuple[Any, ...]:
        """Call the kernel, and return its finished results. Raises MalformedError for another number of them."""
        return self.audited(native)[0]

    def audited(self, native: Sequence[Any]) -> tuple[tuple[Any, ...], Audited]:
        """Call the kernel, and return its finished results and what else is known of the call."""
        if self.kernel.memory.first_called is None:
            self.kernel.memory.first_called = time.monotonic()
        names, parameters = self.workload.operator.arguments, self.parameters()
        audit = self.bridge.perform(audited, self.bridge, self.kernel.function, names, native, parameters)
        return self.split(audit.result.value), audit

    def split(self, result: Any) -> tuple[Any, ...]:
        """Return a result as a tuple, one item for each output. Raises MalformedError for another number of items."""
        names = self.tensors
        results = tuple(result) if is_several(result) else (result,)
        if len(results) != len(names):
            failure = Failure(kind="malformed", message="returned another number of results")
            expected = f"{len(names)} ({', '.join(names)})"
            raise MalformedError(f"returned {len(results)} results; expected {expected}", failure)
        return results

    def fetch(self, results: Sequence[Any]) -> list[np.ndarray]:
        """Return results on the host, as they are now. Raises MalformedError for all but the framework's own arrays."""
        if not results:
            return []
        try:
            return self.bridge.perform(fetched, self.bridge, results)
        except KernelFailure as error:
            raise MalformedError(str(error), error.failure) from None

    def outputs(self, results: Sequence[Any]) -> Arrays:
        """Return results on the host in canonical order. Raises MismatchedError for a wrong shape or dtype."""
        tensors = self.tensors
        returned = dict(zip(tensors, self.fetch(results), strict=True))
        canonical = {}
        for name, tensor in tensors.items():
            place = arranged(tensor, self.layout, self.workload.geometry)
            host, dtype = returned[name], tensor.stored_as(self.dtype)
            if host.shape != place.stored:
                failure = Failure(kind="malformed", message=f"{name} has another shape ({self.layout})")
                expected = f"{place.stored} ({self.layout})"
                raise MismatchedError(f"{name} has shape {host.shape}; expected {expected}", failure, returned)
            if host.dtype != STORAGE[dtype]:
                has = name_of(host.dtype)
                failure = Failure(kind="malformed", message=f"{name} has another dtype", dtype=has)
                raise MismatchedError(f"{name} has dtype {has}; expected {dtype}", failure, returned)
            canonical[name] = np.ascontiguousarray(place.from_memory(host))
        return canonical
