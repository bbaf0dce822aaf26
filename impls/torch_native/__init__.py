"""What torch itself offers, on the CPU and on CUDA: conv2d, conv_transpose2d, batch_norm, avg_pool2d, max_pool2d, those
of one and three dimensions, and their gradients; and convolution with batch norm as one autograd function."""

from __future__ import annotations

import itertools
import math

import torch

from conformance import Contract, Implementation, torch_arrays

from . import fused, grouped, variants
from .conv import conv_backward_data, conv_backward_weight, conv_forward, conv_forward_of_int8
from .conv_bn import conv_bn_backward, conv_bn_forward, conv_bn_inference
from .conv_requantized import conv_requantized
from .conv_transpose import (
    conv_transpose_backward_data,
    conv_transpose_backward_weight,
    conv_transpose_forward,
)
from .max_pool import max_pool_backward, max_pool_forward
from .pool import avg_pool_backward, avg_pool_forward, overlapping, overlapping_and_composed

KERNELS = (
    conv_forward,
    conv_backward_data,
    conv_backward_weight,
    conv_bn_forward,
    conv_bn_backward,
    conv_bn_inference,
    avg_pool_forward,
    max_pool_forward,
    conv_transpose_forward,
    conv_transpose_backward_data,
    conv_transpose_backward_weight,
)
GROUPED = (grouped.conv_forward, grouped.conv_backward_data, grouped.conv_backward_weight)
GRADIENTS = (
    "conv_backward_data",
    "conv_backward_weight",
    "conv_bn_backward",
    "conv_transpose_forward",
    "conv_transpose_backward_weight",
)
"""And what is computed as one: a transposed convolution."""
FORWARDS = ("conv_forward", "conv_transpose_backward_data")
"""And the data gradient that is one."""
AVERAGES = (avg_pool_forward, avg_pool_backward)
PAIRS = ("conv_bn_forward", "conv_bn_backward", "conv_bn_inference")
EVERY_DTYPE = ("fp32", "bf16", "fp16", "fp64")
HALVES = ("bf16", "fp16")
BOTH_LAYOUTS = ("nchw", "nhwc")
EVERY_LAYOUT = (*BOTH_LAYOUTS, "ncw", "nwc", "ncdhw", "ndhwc")


def _cpu_fields() -> dict[tuple[str, str], dict[str, str]]:
    """Findings on the CPU. oneDNN's bf16 dot products flush subnormals; torch's own gradients, which run where oneDNN
    does not support a 16-bit format on this processor, keep overlaps and partial sums in that format."""
    fields = {(name, "bf16"): {"subnormals": "flushed"} for name in (*FORWARDS, *PAIRS)}
    enabled = torch.backends.mkldnn.enabled
    supported = {
        "bf16": enabled and torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        "fp16": enabled and torch.ops.mkldnn._is_mkldnn_fp16_supported(),
    }
    for name, (dtype, by_onednn) in itertools.product(GRADIENTS, supported.items()):
        accumulate = {"accumulate": "auto" if by_onednn else dtype}
        fields[name, dtype] = accumulate | ({"subnormals": "flushed"} if dtype == "bf16" else {})
    if rounded := variants.rounded_inputs():
        fields |= {(name, "fp32"): rounded for name in (*GRADIENTS, *FORWARDS, *PAIRS)}
    return fields


def padded_beyond_stride(p) -> bool:
    """Whether output padding is as large as the stride, which a larger dilation allows."""
    return any(more >= u for more, u in zip(p.output_padding, p.stride, strict=True))


def no_smaller_volume(p) -> bool:
    """torch's avg_pool3d refuses windows that are larger than the image, padded or not."""
    return p.rank < 3 or all(size >= window for size, window in zip(p.size, p.window, strict=True))


def both(first, second):
    return lambda p: first(p) and second(p)


def _cuda_fields() -> dict[tuple[str, str], dict[str, str]]:
    rounded = variants.rounded_cuda_inputs()
    return {(name, "fp32"): rounded for name in (*GRADIENTS, *FORWARDS, *PAIRS)} if rounded else {}


def _register(device: str, fields: dict[tuple[str, str], dict[str, str]], pooled_in_storage) -> Implementation:
    """`fields` are what contracts of an operator and dtype declare on this device, beyond what they do everywhere;
    `pooled_in_storage(geometry)` is where shares of a pooled gradient are rounded before they are added."""
    name = f"torch-{device}"
    implementation = Implementation(name, device=device, arrays=torch_arrays(device), version=torch.__version__)

    def offer(kernel, dtype, when=lambda p: True, layouts=EVERY_LAYOUT, **declared) -> None:
        if kernel in AVERAGES:
            when = both(when, no_smaller_volume)
        flat = device == "cpu" and dtype in HALVES and kernel in AVERAGES  # the CPU's avg_pool3d takes no 16 bits
        implementation.implements(
            kernel.__name__,
            dtypes=(dtype,),
            layouts=layouts,
            when=(lambda p: p.rank < 3 and when(p)) if flat else when,
            **declared,
        )(kernel)

    if device == "cpu":  # oneDNN's transposed convolution takes no output padding beyond the stride
        for kernel, dtype in itertools.product((conv_transpose_forward, conv_transpose_backward_weight), HALVES):
            own = fields.get((kernel.__name__, dtype), {}) | {"accumulate": dtype}
            offer(kernel, dtype, when=padded_beyond_stride, contract=Contract(**own))
    for kernel, dtype in itertools.product(KERNELS, EVERY_DTYPE):
        between = {"between": "storage"} if kernel.__name__ in PAIRS and dtype in HALVES else {}
        offer(kernel, dtype, contract=Contract(**between, **fields.get((kernel.__name__, dtype), {})))
    if device == "cpu":
        for kernel, dtype in itertools.product(GROUPED, EVERY_DTYPE):
            offer(kernel, dtype, layouts=grouped.LAYOUTS, contract=Contract(**fields.get((kernel.__name__, dtype), {})))
    for kernel in (avg_pool_backward, max_pool_backward):
        for dtype in HALVES:
            offer(kernel, dtype, when=pooled_in_storage, contract=Contract(accumulate=dtype))
        for dtype in EVERY_DTYPE:
            offer(kernel, dtype)
    implementation.differentiates("conv_bn_forward", label="unfused", saves=2)(conv_bn_forward)
    for kernel in (conv_forward, avg_pool_forward, max_pool_forward, conv_transpose_forward):
        implementation.differentiates(kernel.__name__)(kernel)
    return implementation


def _register_fused(device: str) -> Implementation:
    name = f"torch-fused-{device}"
    implementation = Implementation(name, device=device, arrays=torch_arrays(device), version=torch.__version__)
    for kernel in (fused.conv_bn_forward, fused.conv_bn_backward, fused.conv_bn_inference):
        implementation.implements(kernel.__name__, dtypes=EVERY_DTYPE, layouts=BOTH_LAYOUTS)(kernel)
    implementation.differentiates("conv_bn_forward", label="fused", saves=1)(fused.conv_bn_forward)
    return implementation


# On the CPU torch adds up the shares of overlapping windows in the storage format.
torch_cpu = _register("cpu", _cpu_fields(), overlapping)
torch_cuda = _register("cuda", _cuda_fields(), overlapping_and_composed)
variants.declare(torch_cpu)
variants.declare_cuda(torch_cuda)
# torch has no convolution of fp8, of int32 none on CUDA and on the CPU none that is dilated.
torch_cpu.implements("conv_forward", dtypes=("int8",), layouts=EVERY_LAYOUT, when=lambda p: set(p.dilation) == {1})(
    conv_forward_of_int8
)
for implementation in (torch_cpu, torch_cuda):
    implementation.implements(
        "conv_requantized", dtypes=("int8", "fp8_e4m3", "fp8_e5m2"), layouts=EVERY_LAYOUT, contract=Contract()
    )(conv_requantized)

torch_fused_cpu, torch_fused_cuda = _register_fused("cpu"), _register_fused("cuda")


if torch.cpu._is_amx_tile_supported():
    torch_cpu.waive(
        "conv_forward",
        reason="oneDNN's AMX convolution of bf16 reads beyond its buffer where the output has one column and a stride",
        url="https://github.com/pytorch/pytorch/issues/169688",
        when=lambda p: p.rank == 2 and p.output_size[1] == 1 and p.stride[1] > 1 and p.s > 1 and p.output_size[0] > 4,
        dtypes=("bf16",),
    )
elif torch.cpu._is_avx512_bf16_supported():
    torch_cpu.waive(
        "conv_forward",
        reason="oneDNN's AVX512-BF16 convolution of bf16 takes channels by pairs: one alone makes NaN of an infinity",
        url="https://github.com/uxlfoundation/oneDNN",
        when=lambda p: p.groups == 1 and 1 < p.c < 16 and p.c % 2 and math.prod(p.window) > 1,
        dtypes=("bf16",),
        distributions=("special", "mixed"),
    )

torch_cpu.waive(
    "avg_pool_backward",
    reason="torch divides in fp16, in which a window of more than 65,504 elements is infinite: the gradient is zero",
    url="https://github.com/pytorch/pytorch/blob/v2.9.0/aten/src/ATen/native/cpu/AvgPoolKernel.cpp",
    when=lambda p: (p.divisor_override or p.r * p.s) > 65504 and not overlapping(p),
    dtypes=("fp16",),
)
