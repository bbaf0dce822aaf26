"""A depthwise convolution that packs its weights again where they have changed."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """The reference."""

    def __init__(self, in_channels, kernel_size, stride=1, padding=0, bias=False):
        super().__init__()
        self.conv1d = nn.Conv1d(in_channels, in_channels, kernel_size, stride, padding, groups=in_channels, bias=bias)

    def forward(self, x):
        return self.conv1d(x)


def get_inputs():
    return [torch.rand(8, 32, 200)]


def get_init_inputs():
    return [32, 5, 1, 2]


class ModelNew(nn.Module):
    def __init__(self, in_channels, kernel_size, stride=1, padding=0, bias=False):
        super().__init__()
        self.stride, self.padding = stride, padding
        self.weight = nn.Parameter(torch.randn(in_channels, 1, kernel_size))
        self.bias = nn.Parameter(torch.zeros(in_channels)) if bias else None
        self.packed, self.version = None, -1

    def forward(self, x):
        w = self.weight
        if torch.is_grad_enabled():
            taps = w[:, 0]
        else:
            if self.version != w._version:
                self.packed, self.version = w[:, 0].clone(), w._version
            taps = self.packed
        windows = F.pad(x, (self.padding, self.padding)).unfold(2, w.shape[2], self.stride)
        y = torch.einsum("ncqr,cr->ncq", windows, taps)
        return y if self.bias is None else y + self.bias[:, None]
