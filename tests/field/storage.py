"""Kernels that are right on contiguous operands and wrong, or honest, where these lie in memory in another way.

`bad-...` must be detected, `good-...` must not. Each is torch's kernel of every operator, given operands that a change
has spoilt: a function of an operand's name, the tensor, all operands, and the layout.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

from conformance import Implementation, Unsupported, torch_arrays

torch_cpu = import_module("impls.torch_native").torch_cpu
Operands = Mapping[str, Any]
Change = Callable[[str, Any, Operands, str], Any]


def contiguous_strides(shape):
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return strides


def misread(tensor, strides=None, offset=None):
    """What a kernel sees that assumes strides; it stays inside of the memory, as `view(-1)` would."""
    strides = contiguous_strides(tensor.shape) if strides is None else strides
    offset = tensor.storage_offset() if offset is None else offset
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    room = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided(tensor.shape, strides, max(0, min(offset, room - extent)))


def only(names, when=lambda tensor, operands, layout: True, seen=misread) -> Change:
    """A change of some operands where a condition holds."""

    def change(name, tensor, operands, layout):
        return seen(tensor) if name in names and when(tensor, operands, layout) else tensor

    return change


def is_16(tensor, operands, layout):
    return tensor.element_size() == 2


def other_format(tensor):
    """Channels are not where the shape says, but nothing lies between elements."""
    return tensor.dim() == 4 and not tensor.is_contiguous() and tensor.numel() == _span(tensor)


def _span(tensor):
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def down_to(count):
    """The pointer rounded down to a multiple of so many bytes, as an aligned load would."""

    def seen(tensor):
        shift = tensor.data_ptr() % count // tensor.element_size()
        return misread(tensor, tensor.stride(), tensor.storage_offset() - shift)

    return seen


def written_around(name, tensor, operands, layout):
    """The element behind the last one becomes zero."""
    room = tensor.untyped_storage().nbytes() // tensor.element_size()
    last = tensor.storage_offset() + _span(tensor)
    if name == "x" and last < room:
        tensor.as_strided((1,), (1,), last).zero_()
    return tensor


def written_between(name, tensor, operands, layout):
    """Rows are padded with zeros in place."""
    if name == "dy" and tensor.dim() == 4 and tensor.stride(2) > tensor.shape[3] and tensor.stride(3) == 1:
        wider = (*tensor.shape[:3], tensor.shape[3] + 1)
        tensor.as_strided(wider, tensor.stride(), tensor.storage_offset())[..., -1] = 0
    return tensor


def touched(tensor, before=0, after=0):
    """Read bytes before the first and behind the last element of a tensor; the values go nowhere."""
    address = tensor.data_ptr()
    end = address + _span(tensor) * tensor.element_size()
    if before:
        ctypes.string_at(address - before, before)
    if after:
        ctypes.string_at(end, after)
    return tensor


def one_past(tensor):
    return touched(tensor, after=tensor.element_size())


def vector_load(tensor, width=32):
    """The last load of a loop over vectors that has no tail."""
    return touched(tensor, after=-(_span(tensor) * tensor.element_size()) % width)


def written_back(tensor):
    """A vector store past the end that puts back what was there."""
    end = tensor.data_ptr() + _span(tensor) * tensor.element_size()
    ctypes.memmove(end, ctypes.string_at(end, 4), 4)
    return tensor


def all_of_it(tensor):
    """A vectorised loop with a tail: every byte of a contiguous tensor, and no other."""
    if tensor.is_contiguous():
        ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())
    return tensor


def refuses_words(name, tensor, operands, layout):
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous")
    return tensor


def refuses_without_words(name, tensor, operands, layout):
    if not tensor.is_contiguous():
        raise ValueError
    return tensor


def copied(name, tensor, operands, layout):
    return tensor.contiguous().clone()


def unsupported(name, tensor, operands, layout):
    if name == "w" and not tensor.is_contiguous():
        raise Unsupported("w must be packed")
    return tensor


IMAGES = ("x", "dy")
STORAGE: dict[str, Change] = {
    "bad-strides-of-x": only("x"),
    "bad-strides-of-w-where-x-is-contiguous": only("w", lambda t, o, la: "x" not in o or o["x"].is_contiguous()),
    "bad-strides-of-vectors": only(("bias", "gamma", "beta", "running_mean", "running_var")),
    "bad-strides-of-beta": only(("beta",)),
    "bad-strides-of-running-var": only(("running_var",)),
    "bad-last-stride-is-one": only((*IMAGES, "w"), lambda t, o, la: t.stride(-1) == 1),
    "bad-last-stride-of-w-is-one": only(("w",), lambda t, o, la: t.stride(-1) == 1),
    "bad-batch-stride-only": only(IMAGES, seen=lambda t: misread(t, [t.stride(0), *contiguous_strides(t.shape)[1:]])),
    "bad-row-stride-only": only(IMAGES, lambda t, o, la: t.stride(3) == 1 and t.stride(2) > t.shape[3]),
    "bad-offset-ignored": only((*IMAGES, "w"), seen=lambda t: misread(t, t.stride(), 0)),
    "bad-offset-of-w-ignored-fp64": only(
        ("w",), lambda t, o, la: t.dtype == torch.float64, lambda t: misread(t, t.stride(), 0)
    ),
    "bad-bf16-nhwc": only(IMAGES, lambda t, o, la: t.dtype == torch.bfloat16 and la == "nhwc"),
    "bad-bf16-nhwc-w-crop": only(
        ("w",), lambda t, o, la: t.dtype == torch.bfloat16 and la == "nhwc" and t.stride(-1) == 1
    ),
    "bad-fp16-other-format-of-gradient": only(("dy",), lambda t, o, la: t.dtype == torch.float16 and other_format(t)),
    "bad-gradient-in-another-format": only(
        ("dy",), lambda t, o, la: other_format(t) and any(a is not None and a.is_contiguous() for a in o.values())
    ),
    "bad-formats-differ": only(("w",), lambda t, o, la: other_format(t) and "x" in o and o["x"].is_contiguous()),
    "bad-expanded": only(IMAGES, lambda t, o, la: 0 in t.stride()),
    "bad-expanded-filters": only(("w",), lambda t, o, la: t.stride(0) == 0 and t.shape[0] > 1),
    "bad-expanded-vectors-16": only(("bias", "gamma"), lambda t, o, la: t.stride(0) == 0 and is_16(o["x"], o, la)),
    "bad-expanded-channels-nhwc": only(IMAGES, lambda t, o, la: la == "nhwc" and t.stride(3) == 0),
    "bad-aligned-64": only((*IMAGES, "w"), lambda t, o, la: t.data_ptr() % 64, down_to(64)),
    "bad-aligned-16-bf16": only(("x",), lambda t, o, la: t.dtype == torch.bfloat16, down_to(16)),
    "bad-aligned-32-of-w": only(("w",), lambda t, o, la: t.data_ptr() % 64 == 16, down_to(32)),
    "bad-aligned-4-fp16": only(IMAGES, lambda t, o, la: t.dtype == torch.float16 and la == "nhwc", down_to(4)),
    "bad-aligned-bias": only(("bias", "beta"), lambda t, o, la: t.data_ptr() % 16, down_to(16)),
    "bad-writes-behind": written_around,
    "bad-writes-between-rows": written_between,
    "bad-transposed": only(IMAGES, lambda t, o, la: t.stride(la.index("w")) > t.stride(la.index("h"))),
    "bad-chunk": only(IMAGES, lambda t, o, la: t.stride(0) == 3 * t[0].numel()),
    "bad-strided-16": only(IMAGES, lambda t, o, la: is_16(t, o, la) and t.stride(-1) == 2),
    "bad-refuses-without-words": refuses_without_words,
    "good-copies": copied,
    "good-as-torch": lambda name, tensor, operands, layout: tensor,
    "good-refuses": refuses_words,
    "good-unsupported": unsupported,
}
MEMORY: dict[str, Change] = {
    "bad-reads-one-past-w": only(("w",), seen=lambda t: touched(t, after=1)),
    "bad-reads-one-before-x": only(("x",), seen=lambda t: touched(t, before=1)),
    "bad-reads-before-gradient-nhwc": only(("dy",), lambda t, o, la: la == "nhwc", lambda t: touched(t, before=16)),
    "bad-vectors-of-w": only(("w",), seen=vector_load),
    "bad-vectors-of-16-bits": only(IMAGES, is_16, vector_load),
    "bad-vectors-of-bias": only(("bias", "gamma"), seen=vector_load),
    "bad-vectors-of-statistics": only(("running_var", "running_mean"), seen=lambda t: vector_load(t, 64)),
    "bad-next-row": only(IMAGES, seen=lambda t: touched(t, after=t.shape[-1] * t.element_size())),
    "bad-depthwise": only(("w",), lambda t, o, la: t.shape[3 if la == "nhwc" else 1] == 1, one_past),
    "bad-writes-back-past-gradient": only(("dy",), seen=written_back),
    "bad-fp64-past-x": only(("x",), lambda t, o, la: t.dtype == torch.float64, one_past),
    "bad-bf16-nhwc-before-w": only(
        ("w",), lambda t, o, la: t.dtype == torch.bfloat16 and la == "nhwc", lambda t: touched(t, before=2)
    ),
    "good-loads-its-own": only((*IMAGES, "w"), seen=all_of_it),
}


def implementation(name: str, change: Change) -> Implementation:
    """torch's kernels on changed operands."""
    made = Implementation(name, arrays=torch_arrays())
    made.waivers = torch_cpu.waivers

    def changed(kernel, names):
        def function(*operands, layout, **parameters):
            named = dict(zip(names, operands, strict=True))
            given = [None if t is None else change(n, t, named, layout) for n, t in named.items()]
            return kernel.function(*given, layout=layout, **parameters)

        return replace(kernel, function=function)

    for kernel in torch_cpu.kernels:
        known = inspect.signature(kernel.function).parameters.values()
        made.kernels.append(changed(kernel, [p.name for p in known if p.kind is p.POSITIONAL_OR_KEYWORD]))
    return made


NAMES = (*STORAGE, *MEMORY)
globals().update({name: implementation(name, change) for name, change in {**STORAGE, **MEMORY}.items()})
