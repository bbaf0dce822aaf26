"""torch.nn.functional.conv2d and its gradients, on the CPU and on CUDA."""

from __future__ import annotations

import itertools

import torch
from torch.nn.functional import conv2d, pad

from conformance import Contract, Implementation, torch_arrays

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False

EVERY_DTYPE = ("fp32", "bf16", "fp16", "fp64")
BOTH_LAYOUTS = ("nchw", "nhwc")


def _nchw(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """A channels-last tensor as torch sees it: NCHW shape over NHWC memory."""
    return tensor if layout == "nchw" else tensor.permute(0, 3, 1, 2)


def _restored(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    return tensor if layout == "nchw" else tensor.permute(0, 2, 3, 1)


def _split(padding):
    """What conv2d pads itself, and what is asymmetric and must be padded before (left, right, top, bottom)."""
    (top, bottom), (left, right) = padding
    if top == bottom and left == right:
        return (top, left), None
    return (0, 0), (left, right, top, bottom)


def conv_forward(x, w, bias, *, stride, padding, dilation, groups, layout):
    """y through conv2d."""
    own, border = _split(padding)
    x, w = _nchw(x, layout), _nchw(w, layout)
    if border is not None:
        x = pad(x, border)
    return _restored(conv2d(x, w, bias, stride, own, dilation, groups), layout)


def conv_backward_data(dy, w, *, input_size, stride, padding, dilation, groups, layout):
    """dx through aten's convolution_backward."""
    own, border = _split(padding)
    dy, w = _nchw(dy, layout), _nchw(w, layout)
    left, right, top, bottom = border or (0, 0, 0, 0)
    shape = (dy.shape[0], w.shape[1] * groups, top + input_size[0] + bottom, left + input_size[1] + right)
    x = torch.empty_strided(shape, _strides(shape, layout), dtype=dy.dtype, device=dy.device).zero_()
    dx = _backward(dy, x, w, None, stride, own, dilation, groups, (True, False, False))[0]
    dx = dx[:, :, top : top + input_size[0], left : left + input_size[1]]
    return _restored(dx, layout)


def conv_backward_weight(x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups, layout):
    """dw and dbias through aten's convolution_backward."""
    own, border = _split(padding)
    x, dy = _nchw(x, layout), _nchw(dy, layout)
    shape = (dy.shape[1], x.shape[1] // groups, *kernel_size)
    w = torch.empty_strided(shape, _strides(shape, layout), dtype=x.dtype, device=x.device).zero_()
    if border is not None:
        x = pad(x, border)
    bias_sizes = [dy.shape[1]] if with_bias else None
    _, dw, dbias = _backward(dy, x, w, bias_sizes, stride, own, dilation, groups, (False, True, with_bias))
    return (_restored(dw, layout), dbias) if with_bias else _restored(dw, layout)


def _backward(dy, x, w, bias_sizes, stride, padding, dilation, groups, wanted):
    return torch.ops.aten.convolution_backward(
        dy, x, w, bias_sizes, stride, padding, dilation, False, (0, 0), groups, wanted
    )


def _strides(shape, layout):
    """Strides of a 4-D tensor of NCHW shape in the given layout."""
    _, c, h, w = shape
    return (c * h * w, h * w, w, 1) if layout == "nchw" else (c * h * w, 1, w * c, c)


GRADIENTS = ("conv_backward_data", "conv_backward_weight")


def _cpu_contracts() -> dict[tuple[str, str], Contract]:
    """Findings on the CPU. oneDNN's bf16 dot products flush subnormals; torch's own gradients, which run where oneDNN
    does not support a 16-bit format on this processor, keep overlaps and partial sums in that format."""
    contracts = {("conv_forward", "bf16"): Contract(subnormals="flushed")}
    supported = {
        "bf16": torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        "fp16": torch.ops.mkldnn._is_mkldnn_fp16_supported(),
    }
    for name, (dtype, by_onednn) in itertools.product(GRADIENTS, supported.items()):
        flushed = "flushed" if dtype == "bf16" else "kept"
        contracts[name, dtype] = Contract(accumulate="auto" if by_onednn else dtype, subnormals=flushed)
    return contracts


def _register(device: str, contracts: dict[tuple[str, str], Contract]) -> Implementation:
    name = f"torch-{device}"
    implementation = Implementation(name, device=device, arrays=torch_arrays(device), version=torch.__version__)
    for kernel, dtype in itertools.product((conv_forward, conv_backward_data, conv_backward_weight), EVERY_DTYPE):
        contract = contracts.get((kernel.__name__, dtype))
        implementation.implements(kernel.__name__, dtypes=(dtype,), layouts=BOTH_LAYOUTS, contract=contract)(kernel)
    return implementation


torch_cpu = _register("cpu", _cpu_contracts())
torch_cuda = _register("cuda", {})
