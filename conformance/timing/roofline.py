"""The ceilings of a device, measured in the run that uses them: fp32 products, and bytes copied.

A kernel of F operations that moves B bytes takes at least max(F / rate, B / bandwidth) (Williams, Waterman and
Patterson 2009). Both ceilings are what good code reaches on this machine, not what its data sheet says: a kernel may
lie above them, and one that saves multiplications (Winograd) may by far.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np

from conformance.dtypes import STORAGE
from conformance.implementations.bridges.torch import torch_arrays
from conformance.operators import Operator

TORCH = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "xpu": "xpu", "mps": "mps"}
"""Device -> what torch calls it."""
SIZES = {"cpu": ((512, 2048), 1 << 28)}
"""Device -> rows of the square matrices, of which the fastest counts, and bytes copied: far more than caches hold."""
LARGE = ((2048, 8192), 1 << 30)
SECONDS = 1.5
"""Of each measurement: enough to see a machine undisturbed at least once, where other work comes and goes."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Operations and bytes a second; `source` is how they were measured.

    `spread` is how far the median round lay from the fastest, which is the ceiling, as a share of it: the larger one's.
    """

    flops: float
    bandwidth: float
    source: str
    spread: float = 0.0

    def floor(self, operator: Operator, geometry: Any, dtype: str) -> float:
        """Least seconds of a problem: its operations, or its inputs read and its outputs written once."""
        moved = operator.bytes(geometry, STORAGE[dtype].itemsize)
        return max(operator.flops(geometry) / self.flops, moved / self.bandwidth)

    def __str__(self) -> str:
        return f"{self.flops / 1e12:.3g} TFLOP/s fp32 products, {self.bandwidth / 1e9:.3g} GB/s copied ({self.source})"


@dataclass(frozen=True, slots=True)
class _Work:
    """Products of matrices and a copy, each finished when it returns."""

    products: tuple[Callable[[], object], ...]
    """By `rows`."""
    copy: Callable[[], object]
    source: str


@cache
def ceilings(device: str) -> Ceilings | str:
    """The ceilings of a device, or why there are none. TF32 is off while they are measured."""
    return measured(device)


def measured(device: str) -> Ceilings | str:
    """The same, measured now."""
    rows, size = SIZES.get(device, LARGE)
    try:
        work = _work(device, rows, size)
        if isinstance(work, str):
            return work
        # bytes are read and written
        found = [_rates(2 * count**3, call) for count, call in zip(rows, work.products, strict=True)]
        (flops, noise), (bandwidth, other) = max(found), _rates(2 * size, work.copy)
        return Ceilings(flops, bandwidth, work.source, max(noise, other))
    except (RuntimeError, MemoryError) as problem:
        return f"not measured: {problem}".partition("\n")[0]


def better(first: Ceilings, second: Ceilings) -> Ceilings:
    """What a device has reached in either of two measurements, and how far these lie apart at least."""
    flops, bandwidth = max(first.flops, second.flops), max(first.bandwidth, second.bandwidth)
    apart = max(flops / min(first.flops, second.flops), bandwidth / min(first.bandwidth, second.bandwidth)) - 1
    return Ceilings(flops, bandwidth, first.source, max(first.spread, second.spread, apart))


def _work(device: str, rows: tuple[int, ...], size: int) -> _Work | str:
    if device not in TORCH:
        return f"no ceilings are known for {device}"
    reason = torch_arrays(TORCH[device]).unavailable()
    if not reason:
        return _by_torch(TORCH[device], rows, size)
    return _by_numpy(rows, size) if device == "cpu" else reason


def _by_torch(device: str, rows: tuple[int, ...], size: int) -> _Work:
    torch, bridge = import_module("torch"), torch_arrays(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    squares = [[torch.ones(count, count, device=device) for _ in range(3)] for count in rows]
    source, target = (torch.ones(size // 4, device=device) for _ in range(2))

    def finished(call: Callable[[], object]) -> Callable[[], None]:
        return lambda: bridge.synchronize(call())

    products = tuple(finished(partial(torch.matmul, a, b, out=c)) for a, b, c in squares)
    return _Work(products, finished(lambda: target.copy_(source)), _source("torch", rows, size))


def _by_numpy(rows: tuple[int, ...], size: int) -> _Work:
    squares = [[np.ones((count, count), np.float32) for _ in range(3)] for count in rows]
    source, target = (np.ones(size // 4, np.float32) for _ in range(2))
    products = tuple(partial(np.matmul, a, b, out=c) for a, b, c in squares)
    return _Work(products, lambda: np.copyto(target, source), _source("NumPy", rows, size))


def _source(framework: str, rows: tuple[int, ...], size: int) -> str:
    return f"{framework}, {' or '.join(f'{count} x {count}' for count in rows)}, {size >> 20} MiB"


def _rates(work: int, call: Callable[[], object]) -> tuple[float, float]:
    """Work a second of the fastest round, and how much longer the median one took, as a share.

    A ceiling is not what other work on the machine leaves of it.
    """
    call()
    found: list[float] = []
    start = time.perf_counter()
    while (begun := time.perf_counter()) < start + SECONDS:
        call()
        found.append(time.perf_counter() - begun)
    return work / min(found), statistics.median(found) / min(found) - 1
