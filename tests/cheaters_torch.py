"""The cheats that torch offers its own ways for, on CPU tensors."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.nn.functional import conv2d

from conformance import torch_arrays
from tests.cheaters import DELAY, Kernel, Spoil

ARRAYS = torch_arrays("cpu")


def honest(x, w, bias, *, stride, padding, dilation, groups):
    return conv2d(x, w, bias, stride, [before for before, _ in padding], dilation, groups)


def after(spoil: Spoil) -> Kernel:
    """The right kernel, and what becomes of its result."""

    def kernel(x, w, bias, *, stride, padding, dilation, groups):
        y = honest(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
        return spoil(y, x, w, bias)

    return kernel


def unwritten() -> Kernel:
    """Returns what torch's allocator gave."""
    return after(lambda y, *_: torch.empty_like(y))


def spoils_input() -> Kernel:
    """Uses an input as scratch space."""

    def spoil(y, x, w, bias):
        w.mul_(2)
        return y

    return after(spoil)


def remembers_by_address() -> Kernel:
    """Takes an address for the content."""
    results: dict[Any, torch.Tensor] = {}

    def spoil(y: torch.Tensor, x, w, bias):
        return results.setdefault((x.data_ptr(), w.data_ptr(), x.shape), y).clone()

    return after(spoil)


def static_buffer() -> Kernel:
    """Computes into one tensor for each shape."""
    buffers: dict[torch.Size, torch.Tensor] = {}
    return after(lambda y, *_: buffers.setdefault(y.shape, torch.empty_like(y)).copy_(y))


def result_shares_input() -> Kernel:
    """The result lies in the input's memory, where it fits."""
    return after(lambda y, x, *_: x.view(-1)[: y.numel()].view(y.shape).copy_(y) if y.numel() <= x.numel() else y)


def leaves_work_to_a_thread() -> Kernel:
    """Returns at once; the result arrives a little later."""

    def spoil(y, *_):
        found = torch.zeros_like(y)
        threading.Timer(DELAY, found.copy_, [y]).start()
        return found

    return after(spoil)


class LazyTensor(torch.Tensor):
    """A tensor subclass that could compute when it is compared."""


def lazy_subclass() -> Kernel:
    """Returns a promise instead of a result."""
    return after(lambda y, *_: y.as_subclass(LazyTensor))
