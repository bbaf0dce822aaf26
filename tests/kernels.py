"""The right kernels of a convolution with the arguments that the vendor guide names, to plant defects on.

Files of the tests import them in kernels' processes, where the reference operators are not to be had.
"""

from __future__ import annotations

from tests.field import _right


def conv_forward(x, w, bias, *, stride, padding, dilation, groups, layout="nchw"):
    p = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": layout}
    return _right.conv_forward([x, w, bias], p)


def conv_backward_data(dy, w, *, input_size, stride, padding, dilation, groups):
    p = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": "nchw"}
    return _right.conv_backward_data([dy, w], p | {"input_size": input_size})


def conv_backward_weight(x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups):
    p = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": "nchw"}
    return _right.conv_backward_weight([x, dy], p | {"kernel_size": kernel_size, "with_bias": with_bias})
