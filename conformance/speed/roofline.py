"""The ceilings of a device, measured in the run that uses them: fp32 products, and bytes copied.

A kernel of F operations that moves B bytes takes at least max(F / rate, B / bandwidth) (Williams, Waterman and
Patterson 2009). Both ceilings are what good code reaches on this machine, not what its data sheet says: a kernel may
lie above them, and one that saves multiplications (Winograd) may by far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from conformance.dtypes import STORAGE
from conformance.harness.arrays.torch import torch_arrays
from conformance.operators import Operator

TORCH = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "xpu": "xpu", "mps": "mps"}
"""Device -> what torch calls it."""
SIZES = {"cpu": (2048, 1 << 28)}
"""Device -> rows of the square matrices, and bytes copied: far more than its caches hold."""
LARGE = (8192, 1 << 30)
SECONDS = 1.5
"""Of each measurement: enough to see a machine undisturbed at least once, where other work comes and goes."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Operations and bytes a second; `source` is how they were measured."""

    flops: float
    bandwidth: float
    source: str

    def floor(self, operator: Operator, geometry: Any, dtype: str) -> float:
        """Least seconds of a problem: its operations, or its inputs read and its outputs written once."""
        moved = operator.bytes(geometry, STORAGE[dtype].itemsize)
        return max(operator.flops(geometry) / self.flops, moved / self.bandwidth)

    def __str__(self) -> str:
        return f"{self.flops / 1e12:.3g} TFLOP/s fp32 products, {self.bandwidth / 1e9:.3g} GB/s copied ({self.source})"


@dataclass(frozen=True, slots=True)
class _Work:
    """A product of matrices and a copy, each finished when it returns."""

    product: Callable[[], object]
    copy: Callable[[], object]
    source: str


@cache
def ceilings(device: str) -> Ceilings | str:
    """The ceilings of a device, or why there are none. TF32 is off while they are measured."""
    rows, size = SIZES.get(device, LARGE)
    try:
        work = _work(device, rows, size)
        if isinstance(work, str):
            return work
        # bytes are read and written
        return Ceilings(2 * rows**3 / _best(work.product), 2 * size / _best(work.copy), work.source)
    except (RuntimeError, MemoryError) as problem:
        return f"not measured: {problem}".partition("\n")[0]


def _work(device: str, rows: int, size: int) -> _Work | str:
    if device not in TORCH:
        return f"no ceilings are known for {device}"
    reason = torch_arrays(TORCH[device]).unavailable()
    if not reason:
        return _by_torch(TORCH[device], rows, size)
    return _by_numpy(rows, size) if device == "cpu" else reason


def _by_torch(device: str, rows: int, size: int) -> _Work:
    torch, bridge = import_module("torch"), torch_arrays(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b, c = (torch.ones(rows, rows, device=device) for _ in range(3))
    source, target = (torch.ones(size // 4, device=device) for _ in range(2))

    def finished(call: Callable[[], object]) -> Callable[[], None]:
        return lambda: bridge.synchronize(call())

    product, copy = finished(lambda: torch.matmul(a, b, out=c)), finished(lambda: target.copy_(source))
    return _Work(product, copy, f"torch, {rows} x {rows}, {size >> 20} MiB")


def _by_numpy(rows: int, size: int) -> _Work:
    a, b, c = (np.ones((rows, rows), np.float32) for _ in range(3))
    source, target = (np.ones(size // 4, np.float32) for _ in range(2))
    text = f"NumPy, {rows} x {rows}, {size >> 20} MiB"
    return _Work(lambda: np.matmul(a, b, out=c), lambda: np.copyto(target, source), text)


def _best(call: Callable[[], object]) -> float:
    """Seconds of the fastest round: a ceiling is not what other work on the machine leaves of it."""
    call()
    best, start = math.inf, time.perf_counter()
    while (begun := time.perf_counter()) < start + SECONDS:
        call()
        best = min(best, time.perf_counter() - begun)
    return best
