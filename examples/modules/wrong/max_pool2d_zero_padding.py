"""A max pooling whose padding is zero: the numbers of torch.rand never show it."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """The reference."""

    def __init__(self, kernel_size, stride=None, padding=0, dilation=1):
        super().__init__()
        self.maxpool = nn.MaxPool2d(kernel_size, stride, padding, dilation)

    def forward(self, x):
        return self.maxpool(x)


def get_inputs():
    return [torch.rand(8, 16, 32, 32)]


def get_init_inputs():
    return [3, 2, 1]


class ModelNew(nn.Module):
    def __init__(self, kernel_size, stride=None, padding=0, dilation=1):
        super().__init__()
        self.window, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation

    def forward(self, x):
        r, u, p, d = self.window, self.stride, self.padding, self.dilation
        image = F.pad(x, (p, p, p, p), value=0.0)
        size = [(extent - d * (r - 1) - 1) // u + 1 for extent in image.shape[2:]]
        y = None
        for i in range(r):
            for j in range(r):
                rows = slice(i * d, i * d + (size[0] - 1) * u + 1, u)
                columns = slice(j * d, j * d + (size[1] - 1) * u + 1, u)
                tap = image[:, :, rows, columns]
                y = tap.clone() if y is None else torch.where((tap > y) | tap.isnan(), tap, y)
        return y
