"""What a DMA moves, in how many pieces, and how long the DMA engines of a NeuronCore take for it.

Bandwidth: "Guideline to Avoid Under-Utilizing DMA Bandwidth", table of engines, Neuron SDK 2.32. Efficiency: the figure
of "Introduction to Direct Memory Access (DMA) with NKI", section "Performance Considerations", SDK 2.32, read to about
half a percent: throughput by bytes per partition, over that of the longest.

The figure shows single transfers of 128 partitions, so that up to 2 KiB its points have one time, 0.85 us: what is
per transfer and what per descriptor cannot be told apart in it. It is taken as per descriptor here, which overestimates
many short transfers in flight at once.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import ceil, lcm

from .targets import Target
from .tensor import NkiTensor

ENGINES = 16
"""Of a NeuronCore; each serves eight partitions of SBUF."""
LANES = 8
BANDWIDTH = {2: 272.0, 3: 368.0}
"""Bytes a nanosecond of all engines of a core, by generation: 17 and 23 each."""
LATENCY = 1300.0
"""Nanoseconds from semaphore to start of a transfer: the same guideline, "Why Large Contiguous DMA Payloads"."""
TRANSPOSED = 0.9
"""Share of the bandwidth that the transpose of gen3 reaches: "DMA Transpose", Trainium2 Architecture Guide."""
EFFICIENCY = {
    32: 0.013, 64: 0.026, 128: 0.051, 256: 0.10, 512: 0.21, 1024: 0.42, 2048: 0.81, 4096: 0.97, 8192: 0.98,
    16384: 0.99, 32768: 1.0,
}  # fmt: skip
"""Bytes of a contiguous run -> share of the bandwidth."""
_RUNS = tuple(EFFICIENCY)
_TIMES = tuple(run / share for run, share in EFFICIENCY.items())
"""Bytes that the engines could have moved in the time of one run."""


def occupied(run: float) -> float:
    """Bytes that the bandwidth would have moved in the time of one run of so many bytes.

    Between two points the time grows evenly with the length; below 32 bytes it does not fall.
    """
    if run <= _RUNS[0]:
        return _TIMES[0]
    if run >= _RUNS[-1]:
        return run
    i = bisect_right(_RUNS, run)
    share = (run - _RUNS[i - 1]) / (_RUNS[i] - _RUNS[i - 1])
    return _TIMES[i - 1] + share * (_TIMES[i] - _TIMES[i - 1])


def run_length(tensor: NkiTensor) -> int:
    """Elements that follow one another in memory; partitions of SBUF lie apart from one another."""
    length = 1
    shape, strides = tensor.shape, tensor.strides
    last = 1 if tensor.storage.region.on_chip else 0
    for dim in range(len(shape) - 1, last - 1, -1):
        if shape[dim] > 1:
            if strides[dim] != length:
                break
            length *= shape[dim]
    return length


@dataclass(frozen=True, slots=True)
class Transfer:
    """One DMA. `hbm_run` is the shorter of two if it goes from HBM to HBM.

    moved        bytes, those of the wider dtype
    descriptors  pieces that are contiguous on both sides
    hbm_run, sbuf_run   bytes of a contiguous run there, 0 for a side that is not there
    run          bytes of the average piece
    engines      that have a part in it
    occupied     bytes that the full bandwidth would have moved meanwhile
    """

    moved: int
    descriptors: int
    hbm_run: int
    sbuf_run: int
    run: float
    engines: int
    occupied: float


def transfer(dst: NkiTensor, src: NkiTensor, target: Target, transposes: bool) -> Transfer:
    """The pieces of a dma_copy or dma_transpose."""
    size = max(dst.dtype.itemsize, src.dtype.itemsize)
    runs = run_length(dst), run_length(src)
    share = 1.0
    if transposes:
        fast = target.generation > 2 and size in (2, 4) and dst.shape[0] % 128 == 0 and dst.shape[-1] % 16 == 0
        runs, share = ((runs[1], runs[1]), TRANSPOSED) if fast else ((1, 1), 1.0)
    count = dst.size
    descriptors = count // runs[0] + count // runs[1] - count // lcm(*runs)
    run = count * size / descriptors
    outside = [
        length * side.dtype.itemsize
        for side, length in zip((dst, src), runs, strict=True)
        if not side.storage.region.on_chip
    ]
    inside = [
        length * side.dtype.itemsize
        for side, length in zip((dst, src), runs, strict=True)
        if side.storage.region.on_chip
    ]
    partitions = [side.shape[0] for side in (dst, src) if side.storage.region.on_chip]
    engines = min(ENGINES, ceil(max(partitions) / LANES)) if partitions else min(ENGINES, descriptors)
    return Transfer(
        count * size, descriptors, min(outside, default=0), min(inside, default=0), run, engines,
        descriptors * occupied(run) / share,
    )  # fmt: skip
