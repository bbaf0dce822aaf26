"""A convolution and its batch norm, with the variance from distances to the mean."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """The reference."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, bias=False), nn.BatchNorm2d(out_channels)
        )

    def forward(self, x):
        return self.layers(x)


def get_inputs():
    return [torch.rand(8, 8, 24, 24)]


def get_init_inputs():
    return [8, 16, 3, 1, 1]


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(out_channels)

    def forward(self, x):
        bn, z = self.bn, self.conv(x)
        if self.training:
            mean = z.mean((0, 2, 3))
            distance = z - mean[:, None, None]
            var = (distance * distance).mean((0, 2, 3))
            count = z.numel() // z.shape[1]
            with torch.no_grad():
                bn.running_mean.lerp_(mean, bn.momentum)
                bn.running_var.lerp_(var * count / (count - 1), bn.momentum)
        else:
            distance, var = z - bn.running_mean[:, None, None], bn.running_var
        return distance * (bn.weight / torch.sqrt(var + bn.eps))[:, None, None] + bn.bias[:, None, None]
