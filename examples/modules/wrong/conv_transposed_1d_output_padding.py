"""A transposed convolution that fills output padding with zeros, where windows reach it."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """The reference."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, output_padding=0):
        super().__init__()
        self.conv1d_transpose = nn.ConvTranspose1d(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, bias=False
        )

    def forward(self, x):
        return self.conv1d_transpose(x)


def get_inputs():
    return [torch.rand(8, 16, 64)]


def get_init_inputs():
    return [16, 8, 3, 2, 1]


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, output_padding=0):
        super().__init__()
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.weight = nn.Parameter(torch.randn(in_channels, out_channels, kernel_size))

    def forward(self, x):
        y = F.conv_transpose1d(x, self.weight, None, self.stride, self.padding)
        return F.pad(y, (0, self.output_padding))
