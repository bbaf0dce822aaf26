"""Triton's interpreter, in which the kernels of a module run where there is no CUDA: a context in which they do, and a
count of launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

from conformance.implementations.modules.no_cuda import as_if_cuda

_launched = 0


def has_kernels(defined: Mapping[str, Any]) -> bool:
    """Return whether a file defines kernels of Triton. From now on their launches are counted."""
    try:
        interface = import_module("triton.runtime.jit").KernelInterface
        executor = import_module("triton.runtime.interpreter").GridExecutor
    except ImportError:
        return False
    if not hasattr(executor, "counted"):
        launch = executor.__call__

        def counted(self: Any, *arguments: Any, **named: Any) -> Any:
            global _launched
            _launched += 1
            return launch(self, *arguments, **named)

        executor.__call__, executor.counted = counted, True
    return any(isinstance(value, interface) for value in defined.values())


def launched() -> int:
    """Return how many kernels this process has launched since launches are counted."""
    return _launched


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Make `Tensor.is_cuda` true in the block, and put tensors that a module asks for on CUDA on the CPU. Many files
    test `is_cuda` before they launch a kernel, and otherwise call torch, which was verified in the kernel's place."""
    if "is_cuda" in vars(torch.Tensor):  # a call within a call
        yield
        return
    torch.Tensor.is_cuda = property(lambda tensor: True)
    try:
        with as_if_cuda():
            yield
    finally:
        del torch.Tensor.is_cuda  # the base class's attribute is seen again
