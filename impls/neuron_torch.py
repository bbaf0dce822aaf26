"""torch-neuronx's operators on a Neuron device: conv2d, avg_pool2d and their gradients by autograd."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from conformance import Implementation, neuron_device, torch_neuron_arrays

DTYPES = ("fp32", "bf16", "fp16")

torch_neuronx = Implementation("torch-neuronx", device=neuron_device(), arrays=torch_neuron_arrays())


def padded_by_torch(p: Any) -> bool:
    """Return whether avg_pool2d can do the padding: equal on both sides, by half a window at most."""
    (top, bottom), (left, right) = p.padding
    return top == bottom and left == right and 2 * top <= p.r and 2 * left <= p.s


def _gradients(function, leaves, gradient):
    """Return the gradients of the sum of gradient * function(leaves) in the leaves."""
    torch = import_module("torch")
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    with torch.enable_grad():
        return torch.autograd.grad(function(*leaves), leaves, gradient)


def _convolved(x, w, bias, stride, padding, dilation, groups):
    """Call conv2d, which pads both sides equally; for other padding the image is padded before."""
    functional = import_module("torch.nn.functional")
    (top, bottom), (left, right) = padding
    if top != bottom or left != right:
        x, top, left = functional.pad(x, (left, right, top, bottom)), 0, 0
    return functional.conv2d(x, w, bias, stride, (top, left), dilation, groups)


@torch_neuronx.implements("conv_forward", dtypes=DTYPES)
def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
    """Return y."""
    return _convolved(x, w, bias, stride, padding, dilation, groups)


@torch_neuronx.implements("conv_backward_data", dtypes=DTYPES)
def conv_backward_data(dy, w, *, input_size, stride, padding, dilation, groups):
    """Return dx."""
    x = dy.new_zeros((dy.shape[0], w.shape[1] * groups, *input_size))
    return _gradients(lambda x: _convolved(x, w, None, stride, padding, dilation, groups), [x], dy)[0]


@torch_neuronx.implements("conv_backward_weight", dtypes=DTYPES)
def conv_backward_weight(x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups):
    """Return dw, and dbias if it is asked for."""
    w, bias = dy.new_zeros((dy.shape[1], x.shape[1] // groups, *kernel_size)), dy.new_zeros(dy.shape[1])
    leaves = [w, bias] if with_bias else [w]
    found = _gradients(lambda w, bias=None: _convolved(x, w, bias, stride, padding, dilation, groups), leaves, dy)
    return found if with_bias else found[0]


@torch_neuronx.implements("avg_pool_forward", dtypes=DTYPES, when=padded_by_torch)
def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    """Return y."""
    own = (padding[0][0], padding[1][0])
    pool = import_module("torch.nn.functional").avg_pool2d
    return pool(x, kernel_size, stride, own, ceil_mode, count_include_pad, divisor_override)


@torch_neuronx.implements("avg_pool_backward", dtypes=DTYPES, when=padded_by_torch)
def avg_pool_backward(dy, *, input_size, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    """Return dx."""
    x = dy.new_zeros((*dy.shape[:2], *input_size))
    pool, own = import_module("torch.nn.functional").avg_pool2d, (padding[0][0], padding[1][0])
    rest = (ceil_mode, count_include_pad, divisor_override)
    return _gradients(lambda x: pool(x, kernel_size, stride, own, *rest), [x], dy)[0]
