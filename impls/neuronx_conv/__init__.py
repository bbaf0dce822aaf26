"""The vendor's own convolution kernel, called as its U-Net sample calls it.

The sample exchanges images and channels to compute the two gradients with the same kernel. Which of the three
directions of a layer the kernel can take follows from its one untiled axis, its input channels.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from conformance import Contract, Implementation, neuron_device, nki_arrays

from .bridge import private_kernel_arrays
from .emulated import Emulated, turned

LANES = 128
"""Partitions of the kernel's input channels, which it does not tile."""

PRODUCTS = 2**28
"""Products of the largest problem that runs on the CPU."""

neuronx_conv = Implementation("neuronx-conv", device=neuron_device(), arrays=private_kernel_arrays())


def plain(p: Any) -> bool:
    """Return whether the problem is like the sample's layers. The sample asserts padding and bias only; other windows
    get a dx of the wrong shape."""
    window, steps = (p.r, p.s) == (3, 3), p.stride == p.dilation == (1, 1)
    return window and steps and p.padding == ((1, 1), (1, 1)) and p.groups == 1 and not p.bias and p.n > 0


def forward_fits(p: Any) -> bool:
    """Return whether the kernel's input channels fit: here the layer's."""
    return plain(p) and p.c <= LANES


def data_gradient_fits(p: Any) -> bool:
    """Return whether the kernel's input channels fit: here the layer's output channels."""
    return plain(p) and p.k <= LANES


def weight_gradient_fits(p: Any) -> bool:
    """Return whether the kernel's input channels fit: here the images of the batch."""
    return plain(p) and p.n <= LANES


class Directions:
    """The three directions, made of one kernel: image, weights and shape of the result -> result."""

    def __init__(self, kernel: Callable[..., Any], turned: Callable[..., Any]) -> None:
        self.kernel, self.turned = kernel, turned

    def conv_forward(self, x, w, bias):
        """Return y = conv(x, w)."""
        return self._convolved(x, w)

    def conv_backward_data(self, dy, w):
        """Return dx = conv(dy, w with its channels exchanged and its window turned by half a turn)."""
        return self._convolved(dy, self.turned(w.swapaxes(0, 1)))

    def conv_backward_weight(self, x, dy):
        """Return dw = conv(x, dy), with images and channels of both, and of the result, exchanged."""
        return self._convolved(x.swapaxes(0, 1), dy.swapaxes(0, 1)).swapaxes(0, 1)

    def _convolved(self, image, weights):
        sizes = (extent + 2 - window + 1 for extent, window in zip(image.shape[2:], weights.shape[2:], strict=True))
        return self.kernel(image, weights, (image.shape[0], weights.shape[0], *sizes))


def on_device(image, weights, shape):
    """Call the kernel of the toolchain, which is imported with the first call."""
    return import_module(".kernel", __name__).convolved(image, weights, shape)


def small(p: Any) -> bool:
    """Return whether a problem is small enough for the CPU."""
    return p.y.size * p.filter.size <= PRODUCTS * p.k


def _register(implementation: Implementation, directions: Directions, smaller: Callable[[Any], bool]) -> None:
    """Register the directions. Tiles of the sum are added up in the format of the tensors."""
    for name, fits in (
        ("conv_forward", forward_fits),
        ("conv_backward_data", data_gradient_fits),
        ("conv_backward_weight", weight_gradient_fits),
    ):
        for dtype in ("fp32", "bf16"):
            implementation.implements(
                name,
                dtypes=(dtype,),
                when=lambda p, fits=fits: fits(p) and smaller(p),
                contract=Contract(accumulate=dtype),
            )(getattr(directions, name))


_register(neuronx_conv, Directions(on_device, lambda w: w.flip((2, 3))), lambda p: True)
emulated = Emulated("gen2", ("trn1",))
neuronx_conv_emu = Implementation("neuronx-conv@emu", device="emulator", arrays=nki_arrays(emulated))
_register(neuronx_conv_emu, Directions(emulated.convolved, turned), small)
