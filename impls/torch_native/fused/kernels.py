"""The kernels of the suite's operators, made of these functions. `window` is stride, padding, dilation and groups."""

from __future__ import annotations

import torch

from ..layout import nchw, restored
from .conv import convolved
from .conv_norm import conv_batch_norm, pair_gradients, require_pair
from .norm import Convention, normalize_
from .parameters import Parameters, require_convolution


def conv_bn_forward(
    x, w, gamma, beta, running_mean, running_var, *, eps, eps_outside, momentum, layout, **window
):  # fmt: skip
    """Compute y through the autograd function, which can be differentiated."""
    x, w, convention = nchw(x, layout), nchw(w, layout), Convention(eps, eps_outside)
    vectors = gamma, beta, running_mean, running_var
    y, *statistics = conv_batch_norm(
        x, w, *vectors, window=Parameters(**window), convention=convention, momentum=momentum
    )
    return restored(y, layout), *statistics


def conv_bn_backward(dy, x, w, gamma, *, eps, eps_outside, layout, **window):
    """Compute the gradients of the autograd function's backward, with the statistics computed again."""
    window, convention = Parameters(**window), Convention(eps, eps_outside)
    x, w, dy = (nchw(tensor, layout) for tensor in (x, w, dy))
    require_pair(x, w, window, convention, gamma=gamma, beta=gamma)
    dx, dw, *affine = pair_gradients(dy, x, w, gamma, None, None, window, convention)
    return restored(dx, layout), restored(dw, layout), *(() if gamma is None else affine)


def conv_bn_inference(x, w, gamma, beta, running_mean, running_var, *, eps, eps_outside, layout, **window):
    """Compute y by the running statistics, in the memory of the convolution's result."""
    window, x, w = Parameters(**window), nchw(x, layout), nchw(w, layout)
    require_convolution(x, w, window)
    with torch.no_grad():
        z = convolved(x, w, window)
        y = normalize_(z, running_mean, running_var, gamma, beta, Convention(eps, eps_outside))
    return restored(y.to(x.dtype), layout)
