"""A 2-D convolution as a matrix product with unfolded windows."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """The reference."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=False):
        super().__init__()
        self.conv2d = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)

    def forward(self, x):
        return self.conv2d(x)


def get_inputs():
    return [torch.rand(8, 16, 32, 32)]


def get_init_inputs():
    return [16, 24, 3, 1, 1]


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=False):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)

    def forward(self, x):
        conv = self.conv
        n, _, *extents = x.shape
        k, g, stride = conv.out_channels, conv.groups, conv.stride
        axes = zip(extents, conv.padding, conv.dilation, conv.kernel_size, stride, strict=True)
        size = [(extent + 2 * p - d * (taps - 1) - 1) // u + 1 for extent, p, d, taps, u in axes]
        columns = F.unfold(x, conv.kernel_size, conv.dilation, conv.padding, stride).reshape(
            n, g, -1, size[0] * size[1]
        )
        y = (conv.weight.reshape(1, g, k // g, -1) @ columns).reshape(n, k, *size)
        return y if conv.bias is None else y + conv.bias.reshape(1, -1, 1, 1)
