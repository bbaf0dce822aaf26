"""torch tensors on any device torch knows."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from conformance.harness.arrays.base import refuse


def _torch() -> ModuleType:
    import torch

    return torch


@dataclass(frozen=True, slots=True)
class TorchArrays:
    """Contiguous tensors on `device` (torch's name: cpu, cuda, xpu, mps)."""

    device: str
    name: str = "torch"

    def unavailable(self) -> str:
        """torch not importable, or built without the device, or the device absent."""
        try:
            torch = _torch()
        except (ImportError, OSError) as problem:
            return f"torch cannot be imported: {problem}"
        if self.device == "cpu":
            return ""
        backend = getattr(torch, self.device, None) or getattr(torch.backends, self.device, None)
        if backend is None or not backend.is_available():
            return f"torch {torch.__version__} reports no {self.device} device"
        return ""

    def from_host(self, array: np.ndarray) -> Any:
        """bf16 travels as 16-bit integers, which NumPy and torch agree on."""
        torch = _torch()
        if array.dtype == ml_dtypes.bfloat16:
            tensor = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(array.copy())
        return tensor.to(self.device)

    def to_host(self, array: Any) -> np.ndarray:
        """A plain copy; tensor subclasses are refused, since they may compute when they are compared."""
        torch = _torch()
        if type(array) is not torch.Tensor:
            raise refuse(array, "torch.Tensor")
        tensor = array.detach().contiguous().cpu()
        if tensor.dtype == torch.bfloat16:
            return np.asarray(tensor.view(torch.int16)).view(ml_dtypes.bfloat16)
        return np.asarray(tensor)

    def synchronize(self, result: Any) -> None:
        """All streams of the device."""
        if self.device != "cpu":
            getattr(_torch(), self.device).synchronize()

    def describe(self) -> dict[str, str]:
        """torch's version and the device's name."""
        torch = _torch()
        name = torch.cuda.get_device_name() if self.device == "cuda" else self.device
        return {"torch": torch.__version__, "device": name}


def torch_arrays(device: str = "cpu") -> TorchArrays:
    """The bridge for kernels that take and return torch tensors."""
    return TorchArrays(device)
