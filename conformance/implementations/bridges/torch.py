"""torch tensors on any device torch knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from conformance.implementations.bridges.base import (
    ArrayBridge,
    beside_guard_page,
    between_events,
    can_guard_pages,
    extent,
    meet,
    refuse,
)
from conformance.implementations.bridges.tape import Footprint, Tape, first, of_some
from conformance.implementations.devices import Unavailable
from conformance.zeros import copied

CARRIED = (
    ("bfloat16", "int16", np.dtype(ml_dtypes.bfloat16)),
    ("float8_e4m3fn", "int8", np.dtype(ml_dtypes.float8_e4m3fn)),
    ("float8_e5m2", "int8", np.dtype(ml_dtypes.float8_e5m2)),
)
"""Dtypes that are carried as integers, which NumPy and torch agree on."""


def _torch() -> ModuleType:
    return import_module("torch")


@dataclass(frozen=True, slots=True)
class TorchArrays(ArrayBridge):
    """Contiguous tensors on `device` (torch's name: cpu, cuda, xpu, mps)."""

    device: str
    name: str = "torch"
    unsafe: ClassVar[tuple[str, ...]] = ("fork",)

    def require(self) -> None:
        try:
            torch = _torch()
        except (ImportError, OSError) as problem:
            raise Unavailable(f"torch cannot be imported: {problem}") from None
        if self.device == "cpu":
            return
        backend = getattr(torch, self.device, None) or getattr(torch.backends, self.device, None)
        if backend is None or not backend.is_available():
            raise Unavailable(f"torch {torch.__version__} reports no {self.device} device")

    def from_host(self, array: np.ndarray) -> Any:
        return _tensor(copied(array)).to(self.device)

    def to_host(self, array: Any) -> np.ndarray:
        """Return plain memory. Tensor subclasses are refused, since they may compute when they are compared, and
        tensors of another device, since their results are not this one's."""
        torch = _torch()
        if type(array) is not torch.Tensor:
            raise refuse(array, "torch.Tensor")
        if array.device.type != self.device:
            raise TypeError(f"returned a tensor on {array.device.type}; expected one on {self.device}")
        tensor = array.detach().contiguous().cpu()
        for name, integers, dtype in CARRIED:
            if tensor.dtype == getattr(torch, name):
                return np.asarray(tensor.view(getattr(torch, integers))).view(dtype)
        return np.asarray(tensor)

    def synchronize(self, result: Any) -> None:
        """Wait for all streams of the device."""
        if self.device != "cpu":
            getattr(_torch(), self.device).synchronize()

    def view(self, array: Any, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Any | None:
        return array.as_strided(tuple(shape), tuple(strides), offset)

    def placed(self, array: np.ndarray, side: str) -> Any | None:
        return _tensor(beside_guard_page(array, side)) if self.pages else None

    @property
    def pages(self) -> bool:
        return self.device == "cpu" and can_guard_pages()

    def overwrite(self, array: Any, host: np.ndarray) -> bool:
        array.detach().copy_(self.from_host(host))
        return True

    def overlap(self, first: Any, second: Any) -> bool:
        return meet(_extent(first), _extent(second))

    @contextmanager
    def bare(self) -> Iterator[None]:
        """Switch oneDNN off in the block: its plans stay in its cache."""
        backend = _torch().backends.mkldnn
        before, backend.enabled = backend.enabled, False
        try:
            yield
        finally:
            backend.enabled = before

    def stopwatch(self, call: Callable[[], Any]) -> tuple[float, float] | None:
        """Time a call by events on CUDA and ROCm; on the CPU a call leaves nothing behind but threads."""
        if self.device != "cuda":
            return None
        cuda = _torch().cuda
        before, after = (cuda.Event(enable_timing=True) for _ in range(2))
        return between_events(before, after, cuda.synchronize, call)

    def differentiate(
        self, function: Callable[..., Any], arguments: Sequence[Any], places: Sequence[int], parameters: dict[str, Any]
    ) -> Tape:
        """Record function(*arguments, **parameters) by torch's autograd in those at `places`, with the tensors that
        it keeps for the backward."""
        memory = import_module("conformance.implementations.bridges.torch_memory")
        call = of_some(function, arguments, places, parameters)
        tape: Tape = memory.differentiate(call, [arguments[index] for index in places])
        return tape

    def footprint(
        self, function: Callable[..., Any], arguments: int, parameters: dict[str, Any], batch: int
    ) -> Footprint:
        """Return the bytes of a training step of a tutorial's network
        (`conformance.implementations.bridges.torch_memory`) with a function of x, w and further arguments, which are
        None."""
        memory = import_module("conformance.implementations.bridges.torch_memory")
        call = of_some(function, [None] * arguments, (0, 1), parameters)
        footprint: Footprint = memory.footprint(lambda x, w: first(call(x, w)), batch, self.device)
        return footprint

    def describe(self) -> dict[str, str]:
        torch = _torch()
        name = torch.cuda.get_device_name() if self.device == "cuda" else self.device
        return {"torch": torch.__version__, "device": name}


def _tensor(array: np.ndarray) -> Any:
    """Return a tensor on the array's memory."""
    torch = _torch()
    for name, integers, dtype in CARRIED:
        if array.dtype == dtype:
            return torch.from_numpy(array.view(integers)).view(getattr(torch, name))
    return torch.from_numpy(array)


def _extent(tensor: Any) -> range:
    itemsize = tensor.element_size()
    return extent(tensor.data_ptr(), tensor.shape, [stride * itemsize for stride in tensor.stride()], itemsize)


def torch_arrays(device: str = "cpu") -> TorchArrays:
    """Return the bridge for kernels that take and return torch tensors."""
    return TorchArrays(device)
