"""Sums in an order that does not change: partial results, and the pixels of each channel."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .address import SPACES, Form
from .memory import Tensor, empty, launch
from .plan import grid_for, slices_for
from .storage import Format, inline
from .target import cuda


@cache
def _partials_kernel(stored: Format, result: Format) -> Any:
    wide, narrow = stored.wide, result.narrow

    @cuda.jit
    def partials(out: Any, parts: Any, size: int, count: int) -> None:
        for element in range(cuda.grid(1), size, cuda.gridsize(1)):
            total = wide(0)
            for part in range(count):
                total += parts[part * size + element]
            out[element] = narrow(total)

    return partials


def add_partials(out: Tensor, parts: Tensor, count: int) -> None:
    """Set out[i] = sum over p < count of parts[p * out.size + i], first to last, rounded once."""
    launch(_partials_kernel(parts.format, out.format), *grid_for(out.size), out, parts, out.size, count)


@inline
def itself(first: float, second: float, center: float) -> float:
    return first


Term = Callable[[float, float, float], float]
"""Term of the sum, from an element of one tensor, that of another, and a number of the channel."""


@cache
def _channels_kernel(term: Term, first_format: Format, second_format: Format, sums: Format, rank: int = 2) -> Any:
    widen, widen_other, wide, (digits, place) = first_format.widen, second_format.widen, sums.wide, SPACES[rank]

    @cuda.jit
    def channels(
        parts: Any, first: Any, second: Any, centers: Any, counts: Form, at: Form, at_other: Form,
        steps: tuple[int, ...],
    ) -> None:  # fmt: skip
        channel_count, slices, by_channel, by_channel_other, along_channels = steps
        for thread in range(cuda.grid(1), channel_count * slices, cuda.gridsize(1)):
            channel = thread % channel_count if along_channels else thread // slices
            part = thread // channel_count if along_channels else thread % slices
            center, total = wide(centers[channel]), wide(0)
            for pixel in range(part, counts[0], slices):
                index = digits(pixel, counts)
                u = wide(widen(first[channel * by_channel + place(at, index)]))
                v = wide(widen_other(second[channel * by_channel_other + place(at_other, index)]))
                total += term(u, v, center)
            parts[part * channel_count + channel] = total

    return channels


def channel_sums(out: Tensor, first: Tensor, second: Tensor, centers: Tensor, term: Term = itself) -> None:
    """Set out[c] = sum over pixels of term(first, second, centers[c]); each slice takes every `slices`-th pixel, so
    that neighbouring threads read neighbouring memory whichever axis is the last."""
    channels, by, other = first.sizes[1], first.steps, second.steps
    slices = slices_for(first.counts[0])
    parts = empty((slices * channels,), np.dtype(centers.format.wide))
    steps = channels, slices, by[1], other[1], int(by[1] < by[-1])
    forms = first.counts, first.places, second.places
    kernel = _channels_kernel(term, first.format, second.format, centers.format, len(by) - 2)
    launch(kernel, *grid_for(channels * slices), parts, first, second, centers, *forms, steps)
    add_partials(out, parts, slices)
