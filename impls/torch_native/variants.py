"""Other ways to run torch, each a row of its own: `--impl 'torch-cpu[isa=avx2]'`, or all by `--variants`."""

from __future__ import annotations

import os

import torch

MKLDNN, PRECISION, TF32 = "CONFORMANCE_TORCH_MKLDNN", "CONFORMANCE_TORCH_CONV", "CONFORMANCE_TORCH_TF32"
"""Variables that are read when this package is imported, because contracts follow from them."""

if os.environ.get(MKLDNN) == "off":
    torch.backends.mkldnn.enabled = False
if PRECISION in os.environ:
    torch.backends.mkldnn.conv.fp32_precision = os.environ[PRECISION]


torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = TF32 in os.environ


def rounded_inputs() -> dict[str, str]:
    """Return the fields that contracts of fp32 convolutions on the CPU declare of their inputs."""
    return {"inputs": os.environ[PRECISION]} if PRECISION in os.environ else {}


def rounded_cuda_inputs() -> dict[str, str]:
    """Return the fields that contracts of fp32 convolutions on CUDA declare of their inputs."""
    return {"inputs": "tf32"} if TF32 in os.environ else {}


def declare(implementation) -> None:
    """Declare oneDNN by instruction set, torch's kernels instead of it or at a lower level, one thread, wrappers."""
    for isa in ("sse41", "avx2", "avx512_core"):
        implementation.variant(f"isa={isa}", environment={"ONEDNN_MAX_CPU_ISA": isa})
    implementation.variant("mkldnn=off", environment={MKLDNN: "off"})
    implementation.variant("aten=default", environment={"ATEN_CPU_CAPABILITY": "default"})
    implementation.variant("threads=1", prepare=lambda: torch.set_num_threads(1))
    implementation.variant("conv=bf16", environment={PRECISION: "bf16"})
    implementation.variant("deterministic", prepare=lambda: torch.use_deterministic_algorithms(True))
    implementation.variant("channels_last", wrap=_in_channels_last)
    implementation.variant("compile", wrap=lambda kernel: torch.compile(kernel, dynamic=False), compiles_per_shape=True)


def declare_cuda(implementation) -> None:
    """Declare cuDNN with torch's default setting: with TF32, which rounds inputs."""
    implementation.variant("tf32", environment={TF32: "on"})


def _in_channels_last(kernel):
    """Return the kernel, made to put images and filters of NCHW shape in channels-last memory."""

    def converted(*tensors, layout, **parameters):
        if layout == "nchw":
            tensors = [
                a.contiguous(memory_format=torch.channels_last) if a is not None and a.dim() == 4 else a
                for a in tensors
            ]
        return kernel(*tensors, layout=layout, **parameters)

    return converted
