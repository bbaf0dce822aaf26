"""Switches of torch that hold for a whole process: a module leaves them as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from typing import Any

import torch

from conformance.implementations.errors import KernelFailure

ATTRIBUTES = (
    *("backends.cuda.matmul.allow_tf32", "backends.cudnn.allow_tf32", "backends.mkldnn.enabled"),
    *("backends.cudnn.benchmark", "backends.cudnn.deterministic", "backends.cudnn.enabled"),
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
)
FUNCTIONS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "deterministic_algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
    "grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
}
"""Switches that are read and set by functions; these themselves may be replaced later."""
PLACES = ("", "Tensor", "nn", "nn.functional", "nn.Module", "nn.Conv2d")
"""Where functions may be replaced by others."""


class Switches:
    """As they are when this is made."""

    def __init__(self) -> None:
        self._values = {path: _read(path) for path in ATTRIBUTES} | {name: FUNCTIONS[name][0]() for name in FUNCTIONS}
        self._functions = {path: {n: f for n, f in vars(_read(path)).items() if callable(f)} for path in PLACES}

    def restored(self) -> list[str]:
        """What has changed since, in words; it is put back."""
        changed = []
        for name, old in self._values.items():
            new = FUNCTIONS[name][0]() if name in FUNCTIONS else _read(name)
            if new != old:
                changed.append(f"torch.{name} from {old} to {new}")
                if name in FUNCTIONS:
                    FUNCTIONS[name][1](old)
                else:
                    setattr(_read(name.rpartition(".")[0]), name.rpartition(".")[2], old)
        for path, functions in self._functions.items():
            place = _read(path)
            now = vars(place)
            for name, function in functions.items():
                if now.get(name) is not function:
                    changed.append(f"the function {'.'.join(filter(None, ('torch', path, name)))}")
                    setattr(place, name, function)
        return changed


def _read(path: str) -> Any:
    """Of torch; None for a switch that was set by a newer way."""
    with suppress(RuntimeError):
        return reduce(getattr, filter(None, path.split(".")), torch)
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
