"""Requests of a file for CUDA where there is none: most published `get_inputs` return tensors on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Staying(TorchFunctionMode):  # type: ignore[misc]
    """Tensors stay on their device instead of moving to CUDA, and new ones are made on the default device."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = {name: value for name, value in (kwargs or {}).items() if name != "device" or not _is_cuda(value)}
        moved = func is torch.Tensor.to and len(args) == 1 and not named.keys() & {"dtype", "other", "memory_format"}
        if func is torch.Tensor.cuda or moved:
            return args[0]
        if func is torch.Tensor.to:
            args = [args[0].device if _is_cuda(argument) else argument for argument in args]
        return func(*args, **named)


def _is_cuda(value: object) -> bool:
    return str(value).partition(":")[0] == "cuda" if isinstance(value, (str, torch.device)) else type(value) is int


@contextmanager
def as_if_cuda() -> Iterator[None]:
    """Let a file ask for tensors and modules on CUDA in the block, although there is none. torch says as before whether
    there is CUDA: a file that asks first has its own way."""
    if torch.cuda.is_available():
        yield
        return
    synchronize, torch.cuda.synchronize = torch.cuda.synchronize, lambda device=None: None
    try:
        with _Staying():
            yield
    finally:
        torch.cuda.synchronize = synchronize
