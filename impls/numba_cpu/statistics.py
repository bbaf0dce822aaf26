"""Passes over the channels of an image tensor: sums, and the maps of batch normalisation and its gradient.

A tensor is cut into lines of equal lanes, and every lane has a channel of its own: in nhwc a line is one or
several whole pixels, in nchw part of one plane.  So both layouts run the same contiguous loops, over lanes that
carry the constants of their channels.  Sums, constants and what is computed with them are fp64 whatever the
tensor is: these loops wait for memory, and a mean that is large beside the deviation costs no digits.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numba import get_num_threads

from .geometry import Array, Quad
from .launch import cached_kernel, index, launch, njit_inner
from .storage import compute_dtype, store_row, stored, widen_row

LANES = 512
PLANE_LANES = 256
UNIT = 1 << 15
SUMS, NORMALISE, GRADIENT = range(3)

Lines = Quad  # elements, elements of a unit, lanes of a line, channels of a plane tensor (0 where lanes are channels)


@njit_inner(fastmath={"contract"})
def _add_sums(sums: Array, a: Array, a_at: int, z: Array, at: int, count: int, constants: Array) -> None:
    """Compute sums[0] += a - shift, sums[1] += (a - shift) * (z - mean); constants are (shift, mean)."""
    for j in range(count):
        deviation = a[index(a_at + j)] - constants[0, index(j)]
        sums[0, index(j)] += deviation
        sums[1, index(j)] += deviation * (z[index(at + j)] - constants[1, index(j)])


@njit_inner(fastmath={"contract"})
def _normalise(line: Array, z: Array, at: int, count: int, constants: Array) -> None:
    """Compute (z - mean) * scale + offset; constants are (offset, mean, scale)."""
    for j in range(count):
        line[index(j)] = (z[index(at + j)] - constants[1, index(j)]) * constants[2, index(j)] + constants[0, index(j)]


@njit_inner(fastmath={"contract"})
def _gradient(line: Array, a: Array, a_at: int, z: Array, at: int, count: int, constants: Array) -> None:
    """Compute a * factor + (z - mean) * scale + offset; constants are (offset, mean, scale, factor)."""
    for j in range(count):
        through = (z[index(at + j)] - constants[1, index(j)]) * constants[2, index(j)] + constants[0, index(j)]
        line[index(j)] = a[index(a_at + j)] * constants[3, index(j)] + through


@njit_inner()
def _one_line(
    task: int, line: Array, sums: Array, a: Array, a_at: int, z: Array, at: int, count: int, constants: Array
) -> None:
    if task == SUMS:
        _add_sums(sums, a, a_at, z, at, count, constants)
    else:
        _gradient(line, a, a_at, z, at, count, constants)


@njit_inner()
def _fill(lanes: Array, constants: Array, channel: int) -> None:
    for i in range(constants.shape[0]):
        constant = constants[i, channel]
        for j in range(lanes.shape[1]):
            lanes[i, index(j)] = constant


@njit_inner()
def _clear(sums: Array) -> None:
    for i in range(2):
        for j in range(sums.shape[1]):
            sums[i, index(j)] = 0


@njit_inner()
def _keep(partials: Array, unit: int, sums: Array) -> None:
    """Keep the sums of a unit by lane, or their total where all lanes have one channel."""
    kept = partials.shape[2]
    for i in range(2):
        for j in range(kept):
            partials[unit, i, index(j)] = sums[i, index(j)]
        for j in range(kept, sums.shape[1]):
            partials[unit, i, 0] += sums[i, index(j)]


@cached_kernel
def _pass(
    worker: int, workers: int, task: int, target: Array, target_bits: Array, other: Array, other_bits: Array,
    fp16: bool, z: Array, lines: Lines, constants: Array, partials: Array, line_of: Array, spare_of: Array,
    lanes_of: Array, sums_of: Array,
) -> None:  # fmt: skip
    """Process units worker, worker + workers, ... of consecutive lines; a unit of a plane tensor is a plane."""
    size, unit_size, width, planes = lines
    line, spare, lanes, sums = line_of[worker], spare_of[worker], lanes_of[worker], sums_of[worker]
    if not planes:  # repeat the constants of all channels along the lanes of a line
        for i in range(constants.shape[0]):
            for j in range(width):
                lanes[i, index(j)] = constants[i, index(j % constants.shape[1])]
    for unit in range(worker, -(-size // unit_size), workers):
        start, end = unit * unit_size, min(size, (unit + 1) * unit_size)
        if planes:
            _fill(lanes, constants, unit % planes)
        _clear(sums)
        for at in range(start, end, width):
            count = min(width, end - at)
            if task == NORMALISE:
                _normalise(line, z, at, count, lanes)
            elif other_bits.size:
                widen_row(spare, 0, other_bits, at, count, fp16)
                _one_line(task, line, sums, spare, 0, z, at, count, lanes)
            else:
                _one_line(task, line, sums, other, at, z, at, count, lanes)
            if task != SUMS:
                store_row(target, target_bits, fp16, at, line, count)
        if task == SUMS:
            _keep(partials, unit, sums)


def _run(task: int, target: Array, other: Array, z: Array, constants: Array, layout: str) -> Array:
    """Make one pass; return the sums, [2, channels]."""
    workers, channels = get_num_threads(), constants.shape[1]
    if layout[1] == "c":
        planes, unit = channels, prod(z.shape[2:])
        width = min(unit, PLANE_LANES)
    else:
        planes, width = 0, channels * max(1, LANES // channels)
        unit = width * max(1, UNIT // width)
    units = -(-z.size // unit) if task == SUMS else 0
    partials = np.empty((units, 2, 1 if planes else width))
    launch(
        _pass, compute_dtype(z.dtype), workers, task, *stored(target, True), *stored(other),
        np.float16 in (target.dtype, other.dtype), z.reshape(-1), (z.size, unit, width, planes), constants, partials,
        *np.empty((2, workers, width), z.dtype), np.empty((workers, constants.shape[0], width)),
        np.empty((workers, 2, width)),
    )  # fmt: skip
    by_channel = partials[:, :, 0].reshape(-1, channels, 2).transpose(0, 2, 1) if planes else partials
    return by_channel.reshape(-1, 2, 1 if planes else width // channels, channels).sum(axis=(0, 2))


def sums(other: Array, shift: Array, z: Array, mean: Array, layout: str) -> Array:
    """Return per channel the sums of (other - shift) and of (other - shift) * (z - mean), [2, channels] fp64."""
    return _run(SUMS, z[:0], other, z, np.stack((shift, mean)), layout)


def normalised(z: Array, offset: Array, mean: Array, scale: Array, dtype: np.dtype, layout: str) -> Array:
    """Return (z - mean) * scale + offset, rounded to `dtype`; overwrites `z` where it has that type."""
    target = z if z.dtype == dtype else np.empty(z.shape, dtype)
    _run(NORMALISE, target, z[:0], z, np.stack((offset, mean, scale)), layout)
    return target


def gradient(dy: Array, z: Array, offset: Array, mean: Array, scale: Array, factor: Array, layout: str) -> Array:
    """Return dy * factor + (z - mean) * scale + offset in the type of `z`, which it overwrites."""
    _run(GRADIENT, z, dy, z, np.stack((offset, mean, scale, factor)), layout)
    return z
