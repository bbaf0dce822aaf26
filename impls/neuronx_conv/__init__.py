"""The vendor's own convolution kernel, called as its U-Net sample calls it.

The sample exchanges images and channels to make the two gradients out of the same kernel. Which of the three directions
a layer takes through it follows from the kernel's one untiled axis, its input channels.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from conformance import Contract, Implementation, neuron_device

from .bridge import private_kernel_arrays

LANES = 128
"""Partitions of the kernel's input channels, which it does not tile."""

neuronx_conv = Implementation("neuronx-conv", device=neuron_device(), arrays=private_kernel_arrays())


def plain(p: Any) -> bool:
    """What the sample's layers are. It asserts padding and bias only; other windows get a dx of the wrong shape."""
    window, steps = (p.r, p.s) == (3, 3), p.stride == p.dilation == (1, 1)
    return window and steps and p.padding == ((1, 1), (1, 1)) and p.groups == 1 and not p.bias and p.n > 0


def forward_fits(p: Any) -> bool:
    """The input channels are the layer's."""
    return plain(p) and p.c <= LANES


def data_gradient_fits(p: Any) -> bool:
    """The input channels are the layer's output channels."""
    return plain(p) and p.k <= LANES


def weight_gradient_fits(p: Any) -> bool:
    """The input channels are the images of the batch."""
    return plain(p) and p.n <= LANES


def conv_forward(x, w, bias):
    """y = conv(x, w)."""
    return _convolved(x, w)


def conv_backward_data(dy, w):
    """dx = conv(dy, w with its channels exchanged and its window turned by half a turn)."""
    return _convolved(dy, w.transpose(0, 1).flip((2, 3)))


def conv_backward_weight(x, dy):
    """dw = conv(x, dy), images and channels of both exchanged, and those of the result."""
    return _convolved(x.transpose(0, 1), dy.transpose(0, 1)).transpose(0, 1)


def _convolved(image, weights):
    sizes = (extent + 2 - window + 1 for extent, window in zip(image.shape[2:], weights.shape[2:], strict=True))
    return import_module(".kernel", __name__).convolved(image, weights, (image.shape[0], weights.shape[0], *sizes))


# Tiles of the sum are added up in the format of the tensors.
for kernel, fits in (
    (conv_forward, forward_fits),
    (conv_backward_data, data_gradient_fits),
    (conv_backward_weight, weight_gradient_fits),
):
    for dtype in ("fp32", "bf16"):
        declared = neuronx_conv.implements(
            kernel.__name__, dtypes=(dtype,), when=fits, contract=Contract(accumulate=dtype)
        )
        declared(kernel)
