"""The ceilings of a device, measured by the suite's own code: fp32 products, and bytes copied."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np

from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.bridges.torch import torch_arrays
from conformance.implementations.devices import Unavailable

TORCH = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "xpu": "xpu", "mps": "mps"}
"""Device -> torch's name for it."""
SIZES = {"cpu": ((512, 2048), 1 << 28)}
"""Device -> rows of the square matrices, of which the fastest counts, and bytes copied: far more than caches hold."""
DEFAULT_SIZES = ((2048, 8192), 1 << 30)
SECONDS = 0.2
"""Seconds of each measurement. Measurements are repeated in a run, and at least one of them sees the machine
undisturbed, where other work comes and goes."""
PRODUCT, COPY, REFERENCE_ROUNDS = 512, 1 << 26, 5
"""Rows of the reference kernel's matrices, bytes that it copies, and rounds of each: some 50 ms together."""


def measured(device: str) -> tuple[float, float, str, float]:
    """Return operations and bytes a second, how they were measured, and their spread: see
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
    frameworks: list[str] = []
    products: list[tuple[int, Callable[[], object]]] = []
    copies: list[Callable[[], object]] = []
    try:
        if device == "cpu":
            # which library multiplies faster depends on who made the processor
            frameworks.append("NumPy")
            for count in rows:
                products.append((count, partial(np.matmul, *(np.ones((count, count), np.float32) for _ in range(3)))))
            here, there = (np.ones(size // 4, np.float32) for _ in range(2))
            copies.append(partial(np.copyto, there, here))
        if with_torch:
            frameworks.append("torch")
            torch = import_module("torch")
            torch.backends.cuda.matmul.allow_tf32 = False
            for count in rows:
                a, b, c = (torch.ones(count, count, device=TORCH[device]) for _ in range(3))
                products.append((count, partial(_finished, bridge, partial(torch.matmul, a, b, out=c))))
                if device == "cpu":  # the same product by oneDNN: twice as fast as MKL's on a processor of AMD
                    pixels, filters = a.reshape(1, count, -1, 32), b.reshape(count, count, 1, 1)
                    convolve = torch.nn.functional.conv2d
                    products.append((count, partial(_finished, bridge, partial(convolve, pixels, filters))))
            source, target = (torch.ones(size // 4, device=TORCH[device]) for _ in range(2))
            copies.append(partial(_finished, bridge, partial(target.copy_, source)))
        flops, noise = max(_rates(2 * count**3, call) for count, call in products)
        bandwidth, other = max(_rates(2 * size, call) for call in copies)  # bytes are read and written
    except (RuntimeError, MemoryError) as error:
        raise Unavailable(f"not measured: {error}".partition("\n")[0]) from error
    text = f"{' or '.join(frameworks)}, {' or '.join(f'{count} x {count}' for count in rows)}, {size >> 20} MiB"
    return flops, bandwidth, text, max(noise, other)


@cache
def _memory() -> tuple[np.ndarray, ...]:
    """Return the arrays of the reference kernel, made once for a process: they stay where they are in memory."""
    return tuple(np.ones((PRODUCT, PRODUCT), np.float32) for _ in range(3)) + tuple(
        np.ones(COPY // 4, np.float32) for _ in range(2)
    )


def reference_seconds() -> tuple[float, float]:
    """Time the reference kernel, by which a machine is judged: a product on all cores and a copy of more than most
    caches hold, the median of some rounds of each. It is the suite's own, in NumPy, so that it is the same in every
    run."""
    a, b, c, source, target = _memory()
    product, copy = _rounds(partial(np.matmul, a, b, out=c)), _rounds(partial(np.copyto, target, source))
    return statistics.median(product), statistics.median(copy)


def _rounds(call: Callable[[], object]) -> list[float]:
    call()  # threads wake up
    seconds = []
    for _ in range(REFERENCE_ROUNDS):
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    return seconds


def _finished(bridge: ArrayBridge, call: Callable[[], Any]) -> None:
    bridge.synchronize(call())


def _rates(work: int, call: Callable[[], object]) -> tuple[float, float]:
    """Return the work a second of the fastest round, and how much longer the median round took, as a share.

    A ceiling is not what other work on the machine leaves of it.
    """
    call()
    seconds: list[float] = []
    start = time.perf_counter()
    while (begun := time.perf_counter()) < start + SECONDS:
        call()
        seconds.append(time.perf_counter() - begun)
    return work / min(seconds), statistics.median(seconds) / min(seconds) - 1
