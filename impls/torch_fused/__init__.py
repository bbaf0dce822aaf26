"""Autograd functions for convolution, batch norm, and the two as one that keeps less for its backward."""

from __future__ import annotations

import torch

from conformance import Implementation, torch_arrays

from .conv import convolution
from .conv_norm import conv_batch_norm
from .geometry import Window
from .kernels import conv_bn_backward, conv_bn_forward, conv_bn_inference
from .norm import Convention, batch_norm

__all__ = [
    "Convention",
    "Window",
    "batch_norm",
    "conv_batch_norm",
    "convolution",
    "torch_fused_cpu",
    "torch_fused_cuda",
]

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


def _register(device: str) -> Implementation:
    implementation = Implementation(
        f"torch-fused-{device}", device=device, arrays=torch_arrays(device), version=torch.__version__
    )
    for kernel in (conv_bn_forward, conv_bn_backward, conv_bn_inference):
        implementation.implements(kernel.__name__, dtypes=("fp32", "bf16", "fp16", "fp64"), layouts=("nchw", "nhwc"))(
            kernel
        )
    implementation.differentiates("conv_bn_forward", label="fused", saves=1)(conv_bn_forward)
    return implementation


torch_fused_cpu = _register("cpu")
torch_fused_cuda = _register("cuda")
