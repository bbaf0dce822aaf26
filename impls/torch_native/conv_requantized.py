"""Convolution of 8 bits with a result of 8 bits, by torch's operators: sums of whole numbers are exact in fp64."""

from __future__ import annotations

import torch

from .conv import conv_forward
from .layout import along_channels, nchw, restored


def conv_requantized(x, w, bias, scale, *, x_zero_point, y_zero_point, layout, **parameters):
    whole = not x.dtype.is_floating_point
    wide = torch.float64 if whole else torch.float32
    bias = None if bias is None else bias.to(wide)
    sums = nchw(conv_forward(x.to(wide) - x_zero_point, w.to(wide), bias, layout=layout, **parameters), layout)
    y = sums.to(torch.float32) * along_channels(scale, sums)
    if whole:
        ends = torch.iinfo(x.dtype)
        return restored((y.round() + y_zero_point).clamp(ends.min, ends.max).to(x.dtype), layout)
    largest = torch.finfo(x.dtype).max
    return restored(y.clamp(-largest, largest).to(x.dtype), layout)
