"""Contracts for the arithmetic of torch's operators: where sums are rounded, and to which format.

Every declaration follows from torch's source or from runs on the device; its reason stands beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from math import gcd
from typing import Any, NamedTuple

import torch

from . import variants

GRADIENTS = (
    "conv_backward_data",
    "conv_backward_weight",
    "conv_bn_backward",
    "conv_transpose_forward",
    "conv_transpose_backward_weight",
)
"""Operators computed as gradients; a transposed convolution is one."""
FORWARDS = ("conv_forward", "conv_transpose_backward_data")
"""Operators computed as forward convolutions; a transposed convolution's data gradient is one."""
PAIRS = ("conv_bn_forward", "conv_bn_backward", "conv_bn_inference")
POOLS = ("avg_pool_backward", "max_pool_backward")
HALVES = ("bf16", "fp16")
FEW_IMAGES = 64
CHANNELS_FIRST, CHANNELS_LAST = ("nchw", "ncw", "ncdhw"), ("nhwc", "nwc", "ndhwc")
VOLUMES = ("ncdhw", "ndhwc")
EVERY_LAYOUT = (*CHANNELS_FIRST, *CHANNELS_LAST)

Fields = dict[str, Any]
"""Fields of a contract."""


class Special(NamedTuple):
    """Fields that the contract of an operator and dtype declares on some problems and layouts alone."""

    operator: str
    dtype: str
    fields: Fields
    when: Callable[[Any], bool] = lambda p: True
    layouts: tuple[str, ...] = EVERY_LAYOUT


def fields_on(device: str) -> dict[tuple[str, str], Fields]:
    """Return the fields that the contract of an operator and dtype declares on all problems."""
    fields = _cpu_fields() if device == "cpu" else {}
    rounded = variants.rounded_inputs() if device == "cpu" else variants.rounded_cuda_inputs()
    if rounded:
        fields |= {(name, "fp32"): rounded for name in (*GRADIENTS, *FORWARDS, *PAIRS)}
    between: Fields = {"between": "storage"}
    return fields | {(name, dtype): between | fields.get((name, dtype), {}) for name in PAIRS for dtype in HALVES}


def _cpu_fields() -> dict[tuple[str, str], Fields]:
    """Declare that oneDNN's bf16 dot products flush subnormals, and that torch's own gradients, which run where oneDNN
    does not support a 16-bit format on this processor, keep overlaps and partial sums in that format."""
    fields: dict[tuple[str, str], Fields] = {(name, "bf16"): {"subnormals": "flushed"} for name in (*FORWARDS, *PAIRS)}
    for name, dtype in itertools.product(GRADIENTS, HALVES):
        accumulate: Fields = {"accumulate": "auto" if _is_by_onednn(dtype) else dtype}
        fields[name, dtype] = accumulate | ({"subnormals": "flushed"} if dtype == "bf16" else {})
    return fields


def _is_by_onednn(dtype: str) -> bool:
    """Return whether oneDNN computes gradients of a 16-bit format on this processor."""
    supported = getattr(torch.ops.mkldnn, f"_is_mkldnn_{dtype}_supported")
    return torch.backends.mkldnn.enabled and supported()


def specials_on(device: str) -> Iterator[Special]:
    """Return the declarations for some problems alone; the first that covers a case counts."""
    return _cpu_specials() if device == "cpu" else _cuda_specials()


def _cpu_specials() -> Iterator[Special]:
    for dtype in HALVES:
        fields: Fields = {"accumulate": dtype}
        # Torch's own gradients of a convolution sum an image in fp32, and add the next image, or the next tap of an
        # overlap, in 16 bits; batch norm's are sums in fp32. On 320 problems with two seeds they keep the bound of two
        # partial sums, except dw of 4,097 images and more. Under a contract of sums in 16 bits, hardly any of these
        # gradients could be told from zeros.
        if not _is_by_onednn(dtype):
            partial: Fields = {"accumulate": "auto", "splits": 4, "partials": dtype}
            yield Special("conv_bn_backward", dtype, partial, lambda p: p.n <= FEW_IMAGES)
        # oneDNN's transposed convolution takes no output padding beyond the stride
        for operator in ("conv_transpose_forward", "conv_transpose_backward_weight"):
            flushed = {"subnormals": "flushed"} if dtype == "bf16" else {}
            yield Special(operator, dtype, fields | flushed, _padded_beyond_stride)
        # the shares of overlapping windows are added up in the storage format
        for operator in POOLS:
            yield Special(operator, dtype, fields, overlapping)


def _cuda_specials() -> Iterator[Special]:
    """Yield the fields seen with torch 2.11 and cuDNN 9.19 on an H200."""
    for dtype in HALVES:
        fields: Fields = {"accumulate": dtype}
        # cuDNN's gradients of volumes add partial sums by atomics in the storage format: differently in every call
        yield Special("conv_transpose_forward", dtype, fields, layouts=VOLUMES)
        yield Special("conv_transpose_backward_weight", dtype, fields, layouts=VOLUMES)
        yield Special("conv_backward_data", dtype, fields, layouts=("ndhwc",))
        # and so do those of a depthwise image in channels-last memory, which only cuDNN computes
        yield Special("conv_backward_data", dtype, fields, depthwise, ("nhwc",))
        # DepthwiseConv3d.cu: the threads of a block add up their sums in shared memory of the storage format
        yield Special("conv_backward_weight", dtype, fields, depthwise, VOLUMES)
        # cuDNN takes no output padding beyond the stride; NaiveConvolutionTranspose2d.cu stores the sum after each tap
        # and each image
        for operator in ("conv_transpose_forward", "conv_transpose_backward_weight"):
            yield Special(operator, dtype, fields, _padded_beyond_stride)
        # Convolution.cpp adds the bias to cuDNN's stored result: the second of two partial sums. Torch's own depthwise
        # kernels, which are for channels-first memory, add it before they round.
        biased: Fields = {"splits": 2, "partials": dtype}
        yield Special("conv_transpose_forward", dtype, biased, lambda p: p.bias)
        yield Special("conv_forward", dtype, biased, lambda p: p.bias, CHANNELS_LAST)
        yield Special("conv_forward", dtype, biased, lambda p: p.bias and not depthwise(p), CHANNELS_FIRST)
        # AveragePool2d.cu divides in the storage format before it adds up in fp32; AveragePool3d.cu, like
        # DilatedMaxPool3d.cu, adds by atomics in the storage format
        yield Special("avg_pool_backward", dtype, fields, overlapping)
        yield Special("max_pool_backward", dtype, fields, overlapping, VOLUMES)
    # cuDNN takes Winograd's F(4x4, 3x3) for weight gradients of many channels: a model of it that sums in turn has the
    # device's errors on n16 c64 h56 w56 k64 (rms 0.81 and 0.80, the largest at the same tap)
    yield Special("conv_backward_weight", "fp32", {"algorithm": "winograd-f4"}, many_channels, ("nchw",))
    # atom.add.f32 in global memory flushes subnormal numbers (PTX ISA, atom)
    yield Special("avg_pool_backward", "fp32", {"subnormals": "flushed"}, overlapping, VOLUMES)
    # some of cuDNN's kernels flush them: of those for rows and images, the ones for channels-last memory
    yield Special("conv_backward_data", "fp32", {"subnormals": "flushed"}, layouts=(*CHANNELS_LAST, "ncdhw"))
    # Normalization.cuh: SumReduceOp hands partial sums on through a constructor that takes the storage format; each
    # product and each of nine rounds of a block's threads is rounded. fp16 and channels-last memory take another path.
    rounds: Fields = {"between": "storage", "splits": 10, "partials": "bf16"}
    yield Special("conv_bn_backward", "bf16", rounds, lambda p: p.affine and not p.eps_outside, CHANNELS_FIRST)


def overlapping(p) -> bool:
    """Return whether windows share elements, as dilated ones can with any stride, so that gradients are added up."""
    axes = zip(p.window, p.stride, p.dilation, strict=True)
    return any(taps > stride // gcd(stride, dilation) for taps, stride, dilation in axes)


def depthwise(p) -> bool:
    """Return whether torch treats the problem as depthwise: several groups of one input channel each."""
    return 1 < p.groups == p.c


def many_channels(p) -> bool:
    return p.groups == 1 and min(p.c, p.k) >= 64


def _padded_beyond_stride(p) -> bool:
    """Return whether output padding is as large as the stride, which a larger dilation allows."""
    return any(more >= u for more, u in zip(p.output_padding, p.stride, strict=True))
