"""What torch itself offers, on the CPU and on CUDA: conv2d, batch_norm, avg_pool2d, max_pool2d and their
gradients; and convolution with batch norm as one autograd function."""

from __future__ import annotations

import itertools

import torch

from conformance import Contract, Implementation, torch_arrays

from . import fused, variants
from .conv import conv_backward_data, conv_backward_weight, conv_forward
from .conv_bn import conv_bn_backward, conv_bn_forward, conv_bn_inference
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
)
GRADIENTS = ("conv_backward_data", "conv_backward_weight", "conv_bn_backward")
PAIRS = ("conv_bn_forward", "conv_bn_backward", "conv_bn_inference")
EVERY_DTYPE = ("fp32", "bf16", "fp16", "fp64")
HALVES = ("bf16", "fp16")
BOTH_LAYOUTS = ("nchw", "nhwc")


def _cpu_fields() -> dict[tuple[str, str], dict[str, str]]:
    """Findings on the CPU. oneDNN's bf16 dot products flush subnormals; torch's own gradients, which run where oneDNN
    does not support a 16-bit format on this processor, keep overlaps and partial sums in that format."""
    fields = {(name, "bf16"): {"subnormals": "flushed"} for name in ("conv_forward", *PAIRS)}
    enabled = torch.backends.mkldnn.enabled
    supported = {
        "bf16": enabled and torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        "fp16": enabled and torch.ops.mkldnn._is_mkldnn_fp16_supported(),
    }
    for name, (dtype, by_onednn) in itertools.product(GRADIENTS, supported.items()):
        accumulate = {"accumulate": "auto" if by_onednn else dtype}
        fields[name, dtype] = accumulate | ({"subnormals": "flushed"} if dtype == "bf16" else {})
    if rounded := variants.rounded_inputs():
        fields |= {(name, "fp32"): rounded for name in (*GRADIENTS, "conv_forward", *PAIRS)}
    return fields


def _cuda_fields() -> dict[tuple[str, str], dict[str, str]]:
    rounded = variants.rounded_cuda_inputs()
    return {(name, "fp32"): rounded for name in (*GRADIENTS, "conv_forward", *PAIRS)} if rounded else {}


def _register(device: str, fields: dict[tuple[str, str], dict[str, str]], pooled_in_storage) -> Implementation:
    """`fields` are what contracts of an operator and dtype declare on this device, beyond what they do everywhere;
    `pooled_in_storage(geometry)` is where shares of a pooled gradient are rounded before they are added."""
    name = f"torch-{device}"
    # GNU OpenMP's threads are not there in a forked child: a call hangs
    implementation = Implementation(
        name, device=device, arrays=torch_arrays(device), version=torch.__version__, unsafe=("fork",)
    )

    def offer(kernel, dtypes, **declared) -> None:
        implementation.implements(kernel.__name__, dtypes=dtypes, layouts=BOTH_LAYOUTS, **declared)(kernel)

    for kernel, dtype in itertools.product(KERNELS, EVERY_DTYPE):
        between = {"between": "storage"} if kernel.__name__ in PAIRS and dtype in HALVES else {}
        offer(kernel, (dtype,), contract=Contract(**between, **fields.get((kernel.__name__, dtype), {})))
    for kernel in (avg_pool_backward, max_pool_backward):
        for dtype in HALVES:
            offer(kernel, (dtype,), when=pooled_in_storage, contract=Contract(accumulate=dtype))
        offer(kernel, EVERY_DTYPE)
    implementation.differentiates("conv_bn_forward", label="unfused", saves=2)(conv_bn_forward)
    for kernel in (conv_forward, avg_pool_forward, max_pool_forward):
        implementation.differentiates(kernel.__name__)(kernel)
    return implementation


def _register_fused(device: str) -> Implementation:
    name = f"torch-fused-{device}"
    # GNU OpenMP's threads are not there in a forked child: a call hangs
    implementation = Implementation(
        name, device=device, arrays=torch_arrays(device), version=torch.__version__, unsafe=("fork",)
    )
    for kernel in (fused.conv_bn_forward, fused.conv_bn_backward, fused.conv_bn_inference):
        implementation.implements(kernel.__name__, dtypes=EVERY_DTYPE, layouts=BOTH_LAYOUTS)(kernel)
    implementation.differentiates("conv_bn_forward", label="fused", saves=1)(fused.conv_bn_forward)
    return implementation


# On the CPU torch adds up the shares of overlapping windows in the storage format.
torch_cpu = _register("cpu", _cpu_fields(), overlapping)
torch_cuda = _register("cuda", _cuda_fields(), overlapping_and_composed)
variants.declare(torch_cpu)
variants.declare_cuda(torch_cuda)
torch_fused_cpu, torch_fused_cuda = _register_fused("cpu"), _register_fused("cuda")


if torch.cpu._is_amx_tile_supported():
    torch_cpu.waive(
        "conv_forward",
        reason="oneDNN's AMX convolution of bf16 reads beyond its buffer where the output has one column and a stride",
        url="https://github.com/pytorch/pytorch/issues/169688",
        when=lambda p: p.output_size[1] == 1 and p.stride[1] > 1 and p.s > 1 and p.output_size[0] > 4,
        dtypes=("bf16",),
    )

torch_cpu.waive(
    "avg_pool_backward",
    reason="torch divides in fp16, in which a window of more than 65,504 elements is infinite: the gradient is zero",
    url="https://github.com/pytorch/pytorch/blob/v2.9.0/aten/src/ATen/native/cpu/AvgPoolKernel.cpp",
    when=lambda p: (p.divisor_override or p.r * p.s) > 65504 and not overlapping(p),
    dtypes=("fp16",),
)
