"""torch's own operators, on the CPU and on CUDA: conv2d, conv_transpose2d, batch_norm, avg_pool2d, max_pool2d, those of
one and three dimensions, and their gradients; and convolution with batch norm as one autograd function."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import torch

from conformance import Contract, Implementation, Unsupported, torch_arrays

from . import activation, fused, grouped, matmul_grouped, matmul_scaled, variants
from .contracts import EVERY_LAYOUT, HALVES, fields_on, overlapping, specials_on
from .conv import conv_backward_data, conv_backward_weight, conv_forward, conv_forward_of_int8
from .conv_bn import conv_bn_backward, conv_bn_forward, conv_bn_inference
from .conv_requantized import conv_requantized
from .conv_transpose import (
    conv_transpose_backward_data,
    conv_transpose_backward_weight,
    conv_transpose_forward,
)
from .matmul import gemm, matmul, matmul_backward_a, matmul_backward_b, matmul_of_int8
from .matmul_requantized import matmul_by_int_mm, matmul_requantized, quantized_linear, suits_int_mm, suits_linear
from .max_pool import max_pool_backward, max_pool_forward
from .pool import avg_pool_backward, avg_pool_forward, padding_moves_windows

KERNELS = (
    conv_forward,
    conv_backward_data,
    conv_backward_weight,
    conv_bn_forward,
    conv_bn_backward,
    conv_bn_inference,
    avg_pool_forward,
    avg_pool_backward,
    max_pool_forward,
    max_pool_backward,
    conv_transpose_forward,
    conv_transpose_backward_data,
    conv_transpose_backward_weight,
)
BY_NAME = {kernel.__name__: kernel for kernel in KERNELS}
GROUPED = (grouped.conv_forward, grouped.conv_backward_data, grouped.conv_backward_weight)
PRODUCTS = (matmul, gemm, matmul_backward_a, matmul_backward_b)
AVERAGES = (avg_pool_forward, avg_pool_backward)
EVERY_DTYPE = ("fp32", "bf16", "fp16", "fp64")
BOTH_LAYOUTS = ("nchw", "nhwc")
MATRICES = ("nn", "nt", "tn", "tt")


def no_smaller_volume(p) -> bool:
    """Return whether avg_pool3d takes the problem: it refuses windows larger than the image, padded or not."""
    return p.rank < 3 or all(size >= window for size, window in zip(p.size, p.window, strict=True))


def both(first, second):
    return lambda p: first(p) and second(p)


def not_in_minutes(p) -> bool:
    """Refuse oneDNN's depthwise bf16 convolutions in channels last that hang, or take minutes, where it has bf16."""
    if p.rank == 2 and p.groups == p.c == p.k > 1 and p.s >= 255:
        raise Unsupported("oneDNN's depthwise convolution of bf16 in channels last takes minutes under 255 columns")
    return True


def not_for_ever(p) -> bool:
    """Refuse oneDNN's depthwise 16-bit convolutions that hang on processors that multiply fp16, from 14 columns on."""
    if p.groups == p.c == p.k > 1 and p.s > 12:
        raise Unsupported("oneDNN's depthwise convolution of 16 bits hangs here under 13 columns or more")
    return True


def multiplies_fp16() -> bool:
    try:
        return "avx512_fp16" in Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False


def _register(device: str) -> Implementation:
    name = f"torch-{device}"
    implementation = Implementation(name, device=device, arrays=torch_arrays(device), version=torch.__version__)
    fields = fields_on(device)

    def offer(kernel, dtype, when=lambda p: True, layouts=EVERY_LAYOUT, special=None) -> None:
        if kernel in AVERAGES:
            when = both(when, no_smaller_volume)
        if device == "cpu" and dtype in HALVES and kernel in AVERAGES:  # the CPU's avg_pool3d takes no 16 bits
            when = both(when, lambda p: p.rank < 3)
        declared = fields.get((kernel.__name__, dtype), {}) | (special or {})
        implementation.implements(
            kernel.__name__, dtypes=(dtype,), layouts=layouts, when=when, contract=Contract(**declared)
        )(kernel)

    for special in specials_on(device):
        offer(BY_NAME[special.operator], special.dtype, special.when, special.layouts, special.fields)
    slow = torch.cpu._is_avx512_bf16_supported() and device == "cpu"  # processors with AMX support it too
    hangs = device == "cpu" and multiplies_fp16()
    for kernel, dtype in itertools.product(KERNELS, EVERY_DTYPE):
        if hangs and (kernel, dtype) == (conv_forward, "fp16"):
            offer(kernel, dtype, not_for_ever)
        elif slow and (kernel, dtype) == (conv_forward, "bf16"):
            place = EVERY_LAYOUT.index("nhwc")
            offer(kernel, dtype, layouts=EVERY_LAYOUT[:place])
            offer(kernel, dtype, not_for_ever if hangs else not_in_minutes, ("nhwc",))
            offer(kernel, dtype, layouts=EVERY_LAYOUT[place + 1 :])
        else:
            offer(kernel, dtype)
    if device == "cpu":
        for kernel, dtype in itertools.product(GROUPED, EVERY_DTYPE):
            halts = hangs and (kernel, dtype) == (grouped.conv_forward, "fp16")
            offer(kernel, dtype, not_for_ever if halts else lambda p: True, layouts=grouped.LAYOUTS)
    for kernel in PRODUCTS:
        flushed = Contract(subnormals="flushed") if device == "cpu" else Contract()  # oneDNN's bf16 dot products
        implementation.implements(kernel.__name__, dtypes=("bf16",), layouts=MATRICES, contract=flushed)(kernel)
        implementation.implements(kernel.__name__, dtypes=("fp32", "fp16", "fp64"), layouts=MATRICES)(kernel)
    of_product = {("matmul", "bf16"): {"subnormals": "flushed"}} if device == "cpu" else {}
    takes = not_for_ever if slow or hangs else lambda p: True
    activation.declare(implementation, EVERY_LAYOUT, MATRICES, fields | of_product, takes)
    implementation.differentiates("matmul")(matmul)
    implementation.differentiates("conv_bn_forward", label="unfused", saves=2)(conv_bn_forward)
    for kernel in (conv_forward, avg_pool_forward, max_pool_forward, conv_transpose_forward, conv_bn_inference):
        implementation.differentiates(kernel.__name__)(kernel)
    return implementation


def _register_fused(device: str) -> Implementation:
    name = f"torch-fused-{device}"
    implementation = Implementation(name, device=device, arrays=torch_arrays(device), version=torch.__version__)
    for kernel in (fused.conv_bn_forward, fused.conv_bn_backward, fused.conv_bn_inference):
        implementation.implements(kernel.__name__, dtypes=EVERY_DTYPE, layouts=BOTH_LAYOUTS)(kernel)
    implementation.differentiates("conv_bn_forward", label="fused", saves=1)(fused.conv_bn_forward)
    return implementation


torch_cpu, torch_cuda = _register("cpu"), _register("cuda")
variants.declare(torch_cpu)
variants.declare_cuda(torch_cuda)
# torch has no convolution of fp8, and none of int32 on CUDA; on the CPU it has no dilated one of int32.
torch_cpu.implements(
    "conv_forward", dtypes=("int8", "uint8"), layouts=EVERY_LAYOUT, when=lambda p: set(p.dilation) == {1}
)(conv_forward_of_int8)
torch_cpu.implements("matmul", dtypes=("int8", "uint8"), layouts=MATRICES)(matmul_of_int8)
torch_cpu.implements("matmul_scaled", dtypes=matmul_scaled.DTYPES, layouts=MATRICES, when=matmul_scaled.takes)(
    matmul_scaled.matmul_scaled
)
matmul_grouped.declare(torch_cpu, MATRICES)
for implementation in (torch_cpu, torch_cuda):
    implementation.implements(
        "conv_requantized", dtypes=("int8", "uint8", "fp8_e4m3", "fp8_e5m2"), layouts=EVERY_LAYOUT, contract=Contract()
    )(conv_requantized)
for suits, product in ((suits_linear, quantized_linear), (suits_int_mm, matmul_by_int_mm)):
    torch_cpu.implements("matmul_requantized", dtypes=("int8", "uint8"), layouts=MATRICES, when=suits)(product)
for implementation in (torch_cpu, torch_cuda):
    implementation.implements("matmul_requantized", dtypes=("int8", "uint8", "fp8_e4m3", "fp8_e5m2"), layouts=MATRICES)(
        matmul_requantized
    )

torch_fused_cpu, torch_fused_cuda = _register_fused("cpu"), _register_fused("cuda")


if torch.cpu._is_amx_tile_supported():
    torch_cpu.waive(
        "conv_forward",
        reason="oneDNN's AMX convolution of bf16 reads beyond its buffer where the output has one column and a stride",
        url="https://github.com/pytorch/pytorch/issues/169688",
        when=lambda p: p.rank == 2 and p.output_size[1] == 1 and p.stride[1] > 1 and p.s > 1 and p.output_size[0] > 4,
        dtypes=("bf16",),
    )
    for name in ("conv_bn_forward", "conv_bn_inference", "conv_bn_backward"):
        torch_cpu.waive(
            name,
            reason="oneDNN's AMX convolution of bf16 reads beyond its buffer: one column of output and a stride",
            url="https://github.com/pytorch/pytorch/issues/169688",
            when=lambda p: (
                (p.rank == 3 and p.output_size[2] == 1 and p.stride[2] > 1 and p.s > 1 and p.k > p.groups)
                and math.prod(p.output_size) > 4
            ),
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
        "conv_backward_data",
        reason="oneDNN's AVX512-BF16 gradient of a dilated depthwise convolution in 3-D makes NaN of an infinity",
        url="https://github.com/uxlfoundation/oneDNN",
        when=lambda p: p.rank == 3 and p.c == p.groups > 1 and max(p.dilation) > 1,
        dtypes=("bf16",),
        distributions=("mixed",),
    )
torch_cpu.waive(
    "avg_pool_backward",
    reason="torch divides in fp16, in which a window of more than 65,504 elements is infinite: the gradient is zero",
    url="https://github.com/pytorch/pytorch/blob/v2.9.0/aten/src/ATen/native/cpu/AvgPoolKernel.cpp",
    when=lambda p: (p.divisor_override or p.r * p.s) > 65504 and not overlapping(p),
    dtypes=("fp16",),
)
for name, lost in (("conv_forward", "the output has no channels either"), ("conv_backward_weight", "dbias is zero")):
    torch_cpu.waive(
        name,
        reason=f"of an image without channels {lost}",
        url="https://github.com/pytorch/pytorch/blob/v2.9.0/aten/src/ATen/native/Convolution.cpp",
        when=lambda p, name=name: p.c == 0 and (p.bias or name == "conv_forward") and p.n > 0,
    )
IN_PADDED_IMAGE = (
    "torch's gradient in channels-last memory takes a pixel's place in the image for that in the padded image"
)
for name, cases in (
    ("avg_pool_backward", {"layouts": ("nhwc", "nwc")}),
    ("avg_pool_forward", {"distributions": ("behaviour",)}),
):
    torch_cuda.waive(
        name,
        reason=IN_PADDED_IMAGE,
        url="https://github.com/pytorch/pytorch/issues/188344",
        when=padding_moves_windows,
        **cases,
    )
for name in ("max_pool_forward", "max_pool_backward"):
    torch_cuda.waive(
        name,
        reason="torch places doubles behind an odd number of ints in shared memory: misaligned address",
        url="https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda/DilatedMaxPool2d.cu",
        when=lambda p: p.rank == 2 and p.c == 1 and set(p.output_size) == {1} and p.n > 0,
        dtypes=("fp64",),
        layouts=("nhwc",),
    )
