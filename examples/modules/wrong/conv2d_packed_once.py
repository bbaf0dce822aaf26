"""A 2-D convolution that packs its weights at the first call and never reads them again."""

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
    return [torch.rand(4, 16, 24, 24)]


def get_init_inputs():
    return [16, 32, 3]


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=False):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        self.packed = None

    def forward(self, x):
        conv = self.conv
        if self.packed is None:
            self.packed = conv.weight.detach().contiguous(memory_format=torch.channels_last).clone()
        return F.conv2d(x, self.packed, conv.bias, conv.stride, conv.padding, conv.dilation, conv.groups)
