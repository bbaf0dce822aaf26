"""Threads of BLAS in a process that judges: one, but for what takes long.

OpenBLAS's threads look out for more work for 30 ms after a product, on the cores that a kernel's process needs: a third
of the processor time of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

LONG = 1 << 29
"""FLOPs from which a reference is computed by all threads: 30 ms by one."""

_before: list[tuple[ThreadpoolController, list[dict[str, Any]]]] = []
"""Of whoever spares threads now: the libraries, and how many threads they had."""


@contextmanager
def spared() -> Iterator[None]:
    """Leave the cores to the kernels' processes meanwhile."""
    libraries = ThreadpoolController()
    _before.append((libraries, libraries.info()))
    with libraries.limit(limits=1, user_api="blas"):
        try:
            yield
        finally:
            _before.pop()


@contextmanager
def enough(flops: int) -> Iterator[None]:
    """Take all threads that there were meanwhile, for so many operations if they take long."""
    if flops < LONG or not _before:
        yield
        return
    libraries, threads = _before[0]
    with libraries.limit(limits=threads, user_api="blas"):
        yield
