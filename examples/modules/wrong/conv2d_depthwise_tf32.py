"""A depthwise convolution that switches TF32 on for the whole process."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """The reference."""

    def __init__(self, in_channels, kernel_size, stride=1, padding=0, bias=False):
        super().__init__()
        self.conv2d = nn.Conv2d(in_channels, in_channels, kernel_size, stride, padding, groups=in_channels, bias=bias)

    def forward(self, x):
        return self.conv2d(x)


def get_inputs():
    return [torch.rand(8, 32, 32, 32)]


def get_init_inputs():
    return [32, 3]


class ModelNew(nn.Module):
    def __init__(self, in_channels, kernel_size, stride=1, padding=0, bias=False):
        super().__init__()
        self.conv2d = nn.Conv2d(in_channels, in_channels, kernel_size, stride, padding, groups=in_channels, bias=bias)

    def forward(self, x):
        torch.backends.cuda.matmul.allow_tf32 = True
        return self.conv2d(x)
