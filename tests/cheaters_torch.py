"""The cheats that torch offers its own ways for, on CPU tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import conv2d

from conformance import torch_arrays
from tests.cheaters import DELAY, Kernel

ARRAYS = torch_arrays("cpu")


def honest(x, w, bias, *, stride, padding, dilation, groups):
    return conv2d(x, w, bias, stride, [before for before, _ in padding], dilation, groups)


def unwritten() -> Kernel:
    """Returns what torch's allocator gave."""
    return lambda x, w, bias, **p: torch.empty_like(honest(x, w, bias, **p))


def spoils_input() -> Kernel:
    """Uses an input as scratch space."""

    def kernel(x, w, bias, **parameters):
        y = honest(x, w, bias, **parameters)
        w.mul_(2)
        return y

    return kernel


def writes_behind_input() -> Kernel:
    """A store that runs over the end, where the end is known to be anybody's memory."""

    def kernel(x, w, bias, **parameters):
        y = honest(x, w, bias, **parameters)
        end = x.storage_offset() + x.numel()
        if x.untyped_storage().nbytes() > end * x.element_size():
            x.as_strided((1,), (1,), end).fill_(0)
        return y

    return kernel


def remembers_by_address() -> Kernel:
    """Takes an address for the content."""
    results: dict[Any, torch.Tensor] = {}

    def kernel(x, w, bias, **parameters):
        key = (x.data_ptr(), w.data_ptr(), x.shape)
        if key not in results:
            results[key] = honest(x, w, bias, **parameters)
        return results[key].clone()

    return kernel


def static_buffer() -> Kernel:
    """Computes into one tensor for each shape."""
    buffers: dict[torch.Size, torch.Tensor] = {}

    def kernel(x, w, bias, **parameters):
        y = honest(x, w, bias, **parameters)
        return buffers.setdefault(y.shape, torch.empty_like(y)).copy_(y)

    return kernel


def result_shares_input() -> Kernel:
    """The result lies in the input's memory, where it fits."""

    def kernel(x, w, bias, **parameters):
        y = honest(x, w, bias, **parameters)
        return x.view(-1)[: y.numel()].view(y.shape).copy_(y) if y.numel() <= x.numel() else y

    return kernel


def ignores_strides() -> Kernel:
    """Takes `data_ptr` and nothing else."""

    def raw(tensor):
        return tensor.as_strided(tensor.shape, torch.empty(tensor.shape).stride())

    return lambda x, w, bias, **p: honest(raw(x), raw(w), None if bias is None else raw(bias), **p)


def leaves_work_to_a_thread() -> Kernel:
    """Returns at once; the result arrives a little later."""

    def kernel(x, w, bias, **parameters):
        right = honest(x, w, bias, **parameters)
        y = torch.zeros_like(right)
        threading.Timer(DELAY, y.copy_, [right]).start()
        return y

    return kernel


class LazyTensor(torch.Tensor):
    """A tensor subclass that could compute when it is compared."""


def lazy_subclass() -> Kernel:
    """Returns a promise instead of a result."""
    return lambda x, w, bias, **p: honest(x, w, bias, **p).as_subclass(LazyTensor)


CHEATERS: dict[str, Callable[[], Kernel]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        unwritten,
        spoils_input,
        writes_behind_input,
        remembers_by_address,
        static_buffer,
        result_shares_input,
        ignores_strides,
        leaves_work_to_a_thread,
        lazy_subclass,
    )
}
