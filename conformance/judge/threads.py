"""BLAS threads in the judging process: one, except for long computations.

OpenBLAS's threads wait for more work for 30 ms after a product, on the cores that a kernel's process needs: this took a
third of the processor time of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

LONG = 1 << 29
"""FLOPs from which a reference is computed by all threads; one thread takes 30 ms for them."""

_before: list[tuple[ThreadpoolController, list[dict[str, Any]]]] = []
"""For each active `spared`: the libraries, and the numbers of threads that they had before."""


@contextmanager
def spared() -> Iterator[None]:
    """Limit BLAS to one thread inside the context, to leave the cores to the kernels' processes."""
    libraries = ThreadpoolController()
    _before.append((libraries, libraries.info()))
    with libraries.limit(limits=1, user_api="blas"):
        try:
            yield
        finally:
            _before.pop()


@contextmanager
def enough(flops: int) -> Iterator[None]:
    """Use as many threads as before `spared` inside the context, if `flops` operations take long."""
    if flops < LONG or not _before:
        yield
        return
    libraries, threads = _before[0]
    with libraries.limit(limits=threads, user_api="blas"):
        yield
