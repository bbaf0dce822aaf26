"""The ceilings of a device, measured by the suite's own code: fp32 products, and bytes copied."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from conformance.implementations.bridges import ArrayBridge
from conformance.implementations.bridges.torch import torch_arrays
from conformance.implementations.devices import Unavailable

TORCH = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "xpu": "xpu", "mps": "mps"}
"""Device -> what torch calls it."""
SIZES = {"cpu": ((512, 2048), 1 << 28)}
"""Device -> rows of the square matrices, of which the fastest counts, and bytes copied: far more than caches hold."""
DEFAULT_SIZES = ((2048, 8192), 1 << 30)
SECONDS = 1.5
"""Of each measurement: enough to see a machine undisturbed at least once, where other work comes and goes."""


def measured(device: str) -> tuple[float, float, str, float]:
    """Operations and bytes a second, how they were measured, and their spread: see
    `conformance.timing.roofline.Ceilings`. Raises Unavailable. TF32 is off meanwhile."""
    if device not in TORCH:
        raise Unavailable(f"no ceilings are known for {device}")
    rows, size = SIZES.get(device, DEFAULT_SIZES)
    bridge = torch_arrays(TORCH[device])
    with_torch = True
    try:
        bridge.require()
    except Unavailable:
        with_torch = False
        if device != "cpu":
            raise
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
        raise Unavailable(f"not measured: {error}".partition("\n")[0]) from error
    bandwidth, other = copied  # bytes are read and written
    text = f"{framework}, {' or '.join(f'{count} x {count}' for count in rows)}, {size >> 20} MiB"
    return flops, bandwidth, text, max(noise, other)


def _finished(bridge: ArrayBridge, call: Callable[[], Any]) -> None:
    bridge.synchronize(call())


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
