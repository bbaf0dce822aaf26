"""Switches of torch that hold for a whole process: a module leaves them as they were."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from conformance.implementations.errors import KernelFailure

ATTRIBUTES = (
    "backends.cuda.matmul.allow_tf32",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.cudnn.allow_tf32",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
    "backends.cudnn.enabled",
    "backends.mkldnn.enabled",
)
FUNCTIONS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch.get_float32_matmul_precision()": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "torch.get_default_dtype()": (torch.get_default_dtype, torch.set_default_dtype),
    "torch.are_deterministic_algorithms_enabled()": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "torch.get_num_threads()": (torch.get_num_threads, torch.set_num_threads),
    "torch.is_grad_enabled()": (torch.is_grad_enabled, torch.set_grad_enabled),
}
"""Switches that are read and set by functions; these themselves may be replaced later."""
PATCHABLE: tuple[tuple[str, Any], ...] = (
    ("torch", torch),
    ("torch.nn", torch.nn),
    ("torch.nn.functional", torch.nn.functional),
    ("torch.Tensor", torch.Tensor),
    *((f"torch.nn.{n}", getattr(torch.nn, n)) for n in ("Module", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d")),
)
"""Where functions may be replaced by others."""


class Switches:
    """As they are when this is made."""

    def __init__(self) -> None:
        self._values = {f"torch.{path}": self._read(path) for path in ATTRIBUTES}
        self._values |= {name: read() for name, (read, _) in FUNCTIONS.items()}
        self._functions = [(name, place, dict(vars(place))) for name, place in PATCHABLE]

    def restored(self) -> list[str]:
        """What has changed since, in words; it is put back."""
        changed = []
        for path in ATTRIBUTES:
            old, new = self._values[f"torch.{path}"], self._read(path)
            if new != old:
                changed.append(f"torch.{path} from {old} to {new}")
                place, _, name = path.rpartition(".")
                setattr(self._place(place), name, old)
        for name, (read, write) in FUNCTIONS.items():
            if (new := read()) != self._values[name]:
                changed.append(f"{name} from {self._values[name]} to {new}")
                write(self._values[name])
        for name, place, functions in self._functions:
            now = vars(place)
            for one, function in functions.items():
                if now.get(one) is not function and callable(function) and not isinstance(function, types.ModuleType):
                    changed.append(f"the function {name}.{one}")
                    setattr(place, one, function)
        return changed

    @staticmethod
    def _place(path: str) -> Any:
        found: Any = torch
        for name in path.split("."):
            found = getattr(found, name)
        return found

    def _read(self, path: str) -> Any:
        with suppress(RuntimeError):  # of switches that were set by a newer way
            return self._place(path)
        return None


@contextmanager
def unchanged(on_import: list[str]) -> Iterator[None]:
    """Around calls of a module. Raises KernelFailure where these, or the import of its file, have changed a switch."""
    before = Switches()
    try:
        yield
    finally:
        changed = before.restored()
    if changed:
        raise KernelFailure(f"a call changes a switch of the whole process: {'; '.join(changed)}")
    if on_import:
        raise KernelFailure(f"its import changes a switch of the whole process: {'; '.join(on_import)}")
