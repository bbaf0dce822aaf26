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
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from conformance.dtypes import STORAGE
from conformance.implementations.bridges import ArrayBridge
from conformance.implementations.bridges.torch import torch_arrays
from conformance.implementations.devices import Unavailable
from conformance.operators import Operator

TORCH = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "xpu": "xpu", "mps": "mps"}
"""Device -> what torch calls it."""
SIZES = {"cpu": ((512, 2048), 1 << 28)}
"""Device -> rows of the square matrices, of which the fastest counts, and bytes copied: far more than caches hold."""
DEFAULT_SIZES = ((2048, 8192), 1 << 30)
SECONDS = 1.5
"""Of each measurement: enough to see a machine undisturbed at least once, where other work comes and goes."""


class CeilingsError(RuntimeError):
    """A device whose ceilings cannot be measured; the message says why."""


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


def measure_ceilings(device: str) -> Ceilings:
    """Raises CeilingsError. TF32 is off while they are measured."""
    if device not in TORCH:
        raise CeilingsError(f"no ceilings are known for {device}")
    rows, size = SIZES.get(device, DEFAULT_SIZES)
    bridge = torch_arrays(TORCH[device])
    with_torch = True
    try:
        bridge.require()
    except Unavailable as absence:
        with_torch = False
        if device != "cpu":
            raise CeilingsError(str(absence)) from None
    products: list[Callable[[], object]]
    try:
        if not with_torch:
            framework = "NumPy"
            squares = [[np.ones((count, count), np.float32) for _ in range(3)] for count in rows]
            source, target = (np.ones(size // 4, np.float32) for _ in range(2))
            products = [partial(np.matmul, a, b, out=c) for a, b, c in squares]
            copied = _rates(2 * size, lambda: np.copyto(target, source))
        else:
            framework, torch = "torch", import_module("torch")
            torch.backends.cuda.matmul.allow_tf32 = False
            squares = [[torch.ones(count, count, device=TORCH[device]) for _ in range(3)] for count in rows]
            source, target = (torch.ones(size // 4, device=TORCH[device]) for _ in range(2))
            products = [partial(_finished, bridge, partial(torch.matmul, a, b, out=c)) for a, b, c in squares]
            copied = _rates(2 * size, partial(_finished, bridge, partial(target.copy_, source)))
        flops, noise = max(_rates(2 * count**3, call) for count, call in zip(rows, products, strict=True))
    except (RuntimeError, MemoryError) as error:
        raise CeilingsError(f"not measured: {error}".partition("\n")[0]) from error
    bandwidth, other = copied  # bytes are read and written
    text = f"{framework}, {' or '.join(f'{count} x {count}' for count in rows)}, {size >> 20} MiB"
    return Ceilings(flops, bandwidth, text, max(noise, other))


def _finished(bridge: ArrayBridge, call: Callable[[], Any]) -> None:
    bridge.synchronize(call())


def better(first: Ceilings, second: Ceilings) -> Ceilings:
    """What a device has reached in either of two measurements, and how far these lie apart at least."""
    flops, bandwidth = max(first.flops, second.flops), max(first.bandwidth, second.bandwidth)
    apart = max(flops / min(first.flops, second.flops), bandwidth / min(first.bandwidth, second.bandwidth)) - 1
    return Ceilings(flops, bandwidth, first.source, max(first.spread, second.spread, apart))


def _rates(work: int, call: Callable[[], object]) -> tuple[float, float]:
    """Work a second of the fastest round, and how much longer the median one took, as a share.

    A ceiling is not what other work on the machine leaves of it.
    """
    call()
    seconds: list[float] = []
    start = time.perf_counter()
    while (begun := time.perf_counter()) < start + SECONDS:
        call()
        seconds.append(time.perf_counter() - begun)
    return work / min(seconds), statistics.median(seconds) / min(seconds) - 1
