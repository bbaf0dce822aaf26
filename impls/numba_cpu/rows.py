"""Groups too narrow to fill a register tile (depthwise and its kin): a row of outputs at a time, from rows of sources
that are read in place.

The gathering form of geometry.py serves forward and backward-data.
"""

from __future__ import annotations

from typing import Any

from .launch import cached_kernel, index
from .microkernel import vector_lanes
from .plan import F, G
from .row_kernels import MOST_VECTORS, OPEN, bias_gradient, correlation, row_product

Pointer = Any
UNITS_PER_WORKER = 4


@cached_kernel
def gather(
    worker: int, workers: int, plan: Pointer, work: Pointer, out: Pointer, src: Pointer, w: Pointer, bias: Pointer,
    scratch: Pointer, spare: Pointer,
) -> None:  # fmt: skip
    """Compute a share of the bands of output rows of every channel."""
    lanes = vector_lanes(out)
    row = worker * MOST_VECTORS * lanes
    for lattice in range(plan[0]):
        p = plan[1 + lattice]
        groups, channels, targets = plan[p + F.groups], plan[p + F.channels], plan[p + F.targets]
        count_u, count_v, bands = plan[p + F.count_u], plan[p + F.count_v], plan[p + F.bands]
        increment = plan[p + F.out_v]
        near = increment <= 2  # the vector code stores to neighbours and to every second element
        units = plan[p + F.images] * groups * targets * bands
        first, last = units * worker // workers, units * (worker + 1) // workers
        band, k, image = first % bands, first // bands % (groups * targets), first // bands // (groups * targets)
        group, target = k // targets, k % targets
        for _ in range(first, last):
            src_at = plan[p + F.src_at] + image * plan[p + F.src_n] + group * channels * plan[p + F.src_c]
            w_at = group * plan[p + F.w_group] + target * plan[p + F.w_k]
            k = group * targets + target
            out_at = plan[p + F.out_at] + image * plan[p + F.out_n] + k * plan[p + F.out_k]
            first_u, extent, v = 0, count_u, 0
            if bands > 1:
                first_u = band * count_u // bands
                extent = (band + 1) * count_u // bands - first_u
            out_at += first_u * plan[p + F.out_u]
            while v < count_v:
                rest = count_v - v
                vectors = 1 if plan[p + F.window] == OPEN or rest <= lanes else 2 if rest <= 2 * lanes else MOST_VECTORS
                count = min(rest, vectors * lanes)
                to, at, pitch = (out, out_at + v * increment, plan[p + F.out_u]) if near else (scratch, row, 0)
                for u in range(0, extent, extent if near else 1):
                    row_product(
                        to, at, pitch, count, vectors, src, src_at, (first_u + u) * plan[p + F.step_h],
                        extent if near else 1, v * plan[p + F.step_w], w, w_at, bias[index(k)], plan, p,
                    )  # fmt: skip
                    for j in range(0 if near else count):
                        out[index(out_at + u * plan[p + F.out_u] + (v + j) * increment)] = scratch[index(row + j)]
                v += count
            # Divisions would take longer than a small plane.
            band += 1
            if band == bands:
                band, target = 0, target + 1
            if target == targets:
                target, group = 0, group + 1
            if group == groups:
                group, image = 0, image + 1


@cached_kernel
def correlate(
    worker: int, workers: int, plan: Pointer, work: Pointer, dw: Pointer, x: Pointer, dy: Pointer, dbias: Pointer,
    spare: Pointer, other: Pointer,
) -> None:  # fmt: skip
    """Compute a share of the weights, a pair of channels or a row of them at a time, and of the biases."""
    channels, targets, open_window = plan[G.channels], plan[G.targets], plan[G.window] == OPEN
    filters = plan[G.groups] * targets
    rows = plan[G.kernel_h] if open_window else 1
    units = filters * channels * rows
    first, last = units * worker // workers, units * (worker + 1) // workers
    r, c, k = first % rows, first // rows % channels, first // rows // channels
    group, target = k // targets, k % targets
    for _ in range(first, last):
        k = group * targets + target
        dw_at, x_at = k * plan[G.dw_k] + c * plan[G.dw_c], (group * channels + c) * plan[G.x_c]
        correlation(dw, dw_at, r, x, x_at, dy, k * plan[G.dy_k], plan)
        r += 1
        if r == rows:
            r, c = 0, c + 1
        if c == channels:
            c, target = 0, target + 1
        if target == targets:
            target, group = 0, group + 1
    for k in range(worker, filters if plan[G.biased] else 0, workers):
        dy_at = k * plan[G.dy_k]
        bias_gradient(
            dbias, k, plan[G.row_kind], dy, dy_at, plan[G.images], plan[G.count_p], plan[G.count_q], plan, False
        )
