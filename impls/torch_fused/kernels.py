"""The kernels that the suite knows, made of these functions."""

from __future__ import annotations

import torch

from .conv import convolved
from .conv_norm import conv_batch_norm, pair_gradients, require_pair
from .geometry import Window, require_convolution
from .norm import Convention, normalize_


def conv_bn_forward(
    x,
    w,
    gamma,
    beta,
    running_mean,
    running_var,
    *,
    stride,
    padding,
    dilation,
    groups,
    eps,
    eps_outside,
    momentum,
    layout,
):
    """Through the autograd function, which can be differentiated."""
    y, *statistics = conv_batch_norm(
        _nchw(x, layout),
        _nchw(w, layout),
        gamma,
        beta,
        running_mean,
        running_var,
        window=Window(stride, padding, dilation, groups),
        convention=Convention(eps, eps_outside),
        momentum=momentum,
    )
    return _restored(y, layout), *statistics


def conv_bn_backward(dy, x, w, gamma, *, stride, padding, dilation, groups, eps, eps_outside, layout):
    """What the function's backward does, with the statistics computed again."""
    window, convention = Window(stride, padding, dilation, groups), Convention(eps, eps_outside)
    x, w, dy = (_nchw(tensor, layout) for tensor in (x, w, dy))
    require_pair(x, w, window, convention, gamma=gamma, beta=gamma)
    dx, dw, *affine = pair_gradients(dy, x, w, gamma, None, None, window, convention)
    return _restored(dx, layout), _restored(dw, layout), *(() if gamma is None else affine)


def conv_bn_inference(
    x, w, gamma, beta, running_mean, running_var, *, stride, padding, dilation, groups, eps, eps_outside, layout
):
    """y by the running statistics, in the memory of the convolution's result."""
    window, x, w = Window(stride, padding, dilation, groups), _nchw(x, layout), _nchw(w, layout)
    require_convolution(x, w, window)
    with torch.no_grad():
        z = convolved(x, w, window)
        y = normalize_(z, running_mean, running_var, gamma, beta, Convention(eps, eps_outside))
    return _restored(y.to(x.dtype), layout)


def _nchw(tensor, layout):
    """A channels-last tensor as torch sees it: NCHW shape over NHWC memory."""
    return tensor if layout == "nchw" else tensor.permute(0, 3, 1, 2)


def _restored(tensor, layout):
    return tensor if layout == "nchw" else tensor.permute(0, 2, 3, 1)
