"""A max pooling of rows, as the maximum of windows of an image of one row."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """The reference."""

    def __init__(self, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False):
        super().__init__()
        self.maxpool = nn.MaxPool1d(kernel_size, stride, padding, dilation, ceil_mode=ceil_mode)

    def forward(self, x):
        return self.maxpool(x)


def get_inputs():
    return [torch.rand(16, 32, 128)]


def get_init_inputs():
    return [4, 2, 1]


class ModelNew(nn.Module):
    def __init__(self, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False):
        super().__init__()
        stride = kernel_size if stride is None else stride
        self.arguments = (1, kernel_size), (1, stride), (0, padding), (1, dilation), ceil_mode

    def forward(self, x):
        return F.max_pool2d(x[:, :, None], *self.arguments)[:, :, 0]
