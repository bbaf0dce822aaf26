"""Convolution where groups are an axis: torch's own kernels on tensors that are reshaped before and after."""

from __future__ import annotations

from . import conv

LAYOUTS = ("gnhwc", "nhwgc", "gnwc", "nwgc", "gndhwc", "ndhwgc")
FIRST = {1: "ncw", 2: "nchw", 3: "ncdhw"}


def _channels(layout):
    """Return the axes of an image's groups and of their channels."""
    return (0 if layout[0] == "g" else -2), -1


def image(tensor, layout):
    """Return an image as [N, C, ...]."""
    return tensor.movedim(_channels(layout), (1, 2)).flatten(1, 2).contiguous()


def weights(tensor):
    """Reshape [G, K of a group, ..., C of a group] to [K, C of a group, ...]."""
    return tensor.movedim(-1, 2).flatten(0, 1).contiguous()


def stored_image(tensor, layout, groups):
    return tensor.unflatten(1, (groups, -1)).movedim((1, 2), _channels(layout))


def conv_forward(x, w, bias, *, layout, groups, stride, padding, dilation):
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": FIRST[len(stride)]}
    return stored_image(conv.conv_forward(image(x, layout), weights(w), bias, **how), layout, groups)


def conv_backward_data(dy, w, *, layout, groups, input_size, stride, padding, dilation):
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": FIRST[len(stride)]}
    dx = conv.conv_backward_data(image(dy, layout), weights(w), input_size=input_size, **how)
    return stored_image(dx, layout, groups)


def conv_backward_weight(x, dy, *, layout, groups, kernel_size, with_bias, stride, padding, dilation):
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": FIRST[len(stride)]}
    how |= {"kernel_size": kernel_size, "with_bias": with_bias}
    gradients = conv.conv_backward_weight(image(x, layout), image(dy, layout), **how)
    dw, dbias = gradients if with_bias else (gradients, None)
    dw = dw.unflatten(0, (groups, -1)).movedim(2, -1)
    return (dw, dbias) if with_bias else dw
